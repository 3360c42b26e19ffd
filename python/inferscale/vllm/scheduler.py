"""The scheduler's role: what is injected, what is captured, and under which cache salt."""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections import Counter, OrderedDict
from types import ModuleType
from typing import Any

import numpy as np

from inferscale import _core
from inferscale.vllm.captures import CaptureRoom, capture_job, plan_capture, refusal
from inferscale.vllm.counters import Counters
from inferscale.vllm.epochs import EpochTable
from inferscale.vllm.erasure import Eraser
from inferscale.vllm.messages import CaptureJob, CaptureResult, LoadJob, StepMetadata, WorkerAcks
from inferscale.vllm.ranks import Ranks
from inferscale.vllm.records import MAX_PARKED, PARKED, RecordBook, read_records
from inferscale.vllm.settings import Settings
from inferscale.vllm.trace import Trace, TraceRing
from inferscale.vllm.tracking import CaptureUnderWay, InjectedBlocks, PlannedCapture, Tracked
from inferscale.vllm.verification import Verification

logger = logging.getLogger("vllm.inferscale")

PARAMS = "inferscale"  # the key in kv_transfer_params
_ROOM_S = 10.0  # that a request with captures waits for room; then it goes on without them


class SchedulerSide:
    """Hooks are called by the scheduler's thread; what the control channel uses is thread-safe."""

    def __init__(
        self, settings: Settings, adapter: ModuleType | None, fingerprint: str, block_size: int,
        n_blocks: int, ranks: Ranks, injecting: bool, load_tokens: int, capture_tokens: int, token_bytes: int,
    ) -> None:
        """Opens the epochs, finishes erasures that were left open and reads what records there are.

        ``injecting``: false makes every request text; what lies in the stores can still be erased.
        ``load_tokens``: how many tokens' records a rank can load for one request. ``capture_tokens``: as
        ``CaptureRoom`` has it. ``token_bytes``: of one token's keys and values on a rank.
        Raises RankError, sqlite3.Error, OSError: then there is no injection.
        """
        self._settings = settings
        self._adapter = adapter
        self._injecting = injecting
        self.stopped = ""  # why injection ended after it had begun
        self._fingerprint = fingerprint
        self._block_size = block_size
        self._load_tokens = load_tokens
        self.ranks = ranks
        self.book = RecordBook(len(ranks))
        self.epochs = EpochTable(settings.data_dir)
        self.eraser = Eraser(self.epochs, self.book, ranks)
        self.traces = TraceRing()
        self._requests: dict[str, Tracked] = {}
        self._loads: list[LoadJob] = []
        self._acks_lock = threading.Lock()  # results come by steps and by the ranks' channels
        self._capturing: dict[int, CaptureUnderWay] = {}  # by number
        self._planned: list[int] = []  # of these, in this step
        self._captures_planned = 0
        self._room = CaptureRoom(capture_tokens)
        self._lately: OrderedDict[str, Trace] = OrderedDict()  # of admitted requests, by id; the last 1024
        self._injected = InjectedBlocks(2 * n_blocks)
        self._block_pool: Any = None
        counters = Counters()
        self.count, self.take_counters, self.totals = counters.count, counters.take, counters.totals
        self.verification = Verification(self.book, ranks.another(), token_bytes, settings.verify_rate, self.count)
        self.eraser.resume()
        unusable = read_records(ranks, self.epochs.scopes(), self.book)
        if any(unusable):
            self.ranks.erase(*unusable, self.eraser.fence())
        self.ranks.follow(self.told)

    # -- a request's life ------------------------------------------------------------------------

    def on_new_request(self, request: Any) -> None:
        raw = (request.kv_transfer_params or {}).get(PARAMS)
        if raw is None:
            return
        if not self._injecting:
            self.count("fallback:injection_off")
            return
        try:
            text = raw if isinstance(raw, str) else json.dumps(raw)
            params = _core.parse_params(text, self._settings.secret)
        except (ValueError, TypeError, PermissionError, RecursionError) as error:
            reason = "not_signed" if isinstance(error, PermissionError) else "malformed"
            self._refuse(request, reason)
            return
        prompt = _core.token_array(request.prompt_token_ids or [])
        owner = (params.scope["tenant"], params.scope["user"])
        trace = Trace(params.request, params.purpose, len(prompt))
        tracked = Tracked(request.request_id, params, owner, prompt, trace)
        self._requests[request.request_id] = tracked
        self.traces.add(trace)
        reason = self._distrust(request, params, owner)
        if reason is not None:
            trace.refused = [*params.inject, *(wanted.key for wanted in params.capture)]
            self._count_fallback(tracked, reason, max(1, params.n_inject))
            self._adapter.resalt(request, f"inferscale-refused-{uuid.uuid4()}")
            return
        salt = _core.cache_salt(params, self._settings.secret, self._fingerprint)
        if request.cache_salt != salt:
            self._adapter.resalt(request, salt)
            self.count("resalted")
        tracked.injects = params.n_inject > 0 and params.purpose != "text"
        if tracked.injects and self.book.has_unverified:
            self.verification.hurry(params.inject)
        self._plan_captures(tracked)

    def _refuse(self, request: Any, reason: str) -> None:
        """Parameters that cannot be believed: text, in a cache namespace of its own."""
        trace = Trace("", "text", len(request.prompt_token_ids or []))
        tracked = Tracked(request.request_id, None, ("", ""), np.empty(0, np.int32), trace)
        self._requests[request.request_id] = tracked
        self._count_fallback(tracked, reason, 1)
        self._adapter.resalt(request, f"inferscale-refused-{uuid.uuid4()}")

    def _distrust(self, request: Any, params: Any, owner: tuple[str, str]) -> str | None:
        """Why a signed request is served as text, apart from everything else."""
        if getattr(request, "skip_reading_prefix_cache", False):
            return "prompt_logprobs"
        if getattr(request, "mm_features", None) or getattr(request, "prompt_embeds", None) is not None:
            return "not_text"
        if getattr(request, "resumable", False):
            return "streamed_prompt"
        if getattr(request, "lora_request", None) is not None:
            return "lora"
        known = self.epochs.epoch(owner)
        if known is None:
            known = self.epochs.start(owner, params.epoch)
        if params.epoch < known:
            return "stale_epoch"
        if params.epoch > known:
            self.eraser.catch_up(owner, params.epoch)
            return "epoch_ahead"
        if self.eraser.catching_up(owner):
            return "epoch_ahead"
        return None

    def _plan_captures(self, tracked: Tracked) -> None:
        params = tracked.params
        for wanted in params.capture:
            plan = plan_capture(
                wanted, params.scope, tracked.prompt, self._settings.secret, self._fingerprint
            )
            if isinstance(plan, str):
                self._count_fallback(tracked, plan, 1)
                continue
            scope = _core.owner_scope(params.scope, wanted.owner)
            if self.epochs.learn_scope(scope)[1]:
                self.book.learn_scope(scope)
            tracked.captures.append(plan)

    def matched_tokens(self, request: Any, local_hit: int) -> int | None:
        """How many tokens beyond ``local_hit`` come from records. May be called many times. None: not
        now, since what the request would capture has no room yet."""
        tracked = self._requests.get(request.request_id)
        if tracked is None:
            return 0
        if tracked.captures and not tracked.reserved and self._must_wait(tracked):
            return None
        tracked.local_hit = local_hit
        tracked.match, tracked.query_fallbacks = None, Counter()
        if not (tracked.injects and self._injecting):
            return 0
        waiting = self.book.has_unverified  # asked before the match: what is read meanwhile is missing to it
        unverified = len(self.book.unverified_keys(tracked.params.inject)) if waiting else 0
        match = self.book.match(tracked.prompt, tracked.params)
        tracked.match = match
        for entry in match.fallbacks:
            tracked.query_fallbacks[entry.reason] += entry.count
        if unverified:  # to the index these are missing
            late = min(unverified, tracked.query_fallbacks["record_missing"])
            tracked.query_fallbacks["record_missing"] -= late
            tracked.query_fallbacks["record_unverified"] += late
            tracked.query_fallbacks += Counter()  # without what is 0
        if match.begin > local_hit:
            tracked.query_fallbacks["header_cold"] += match.n_segments
            return 0
        end = min(self._loadable(tracked), len(tracked.prompt) - 1, request.num_tokens - 1)
        return max(0, end - local_hit)

    def _must_wait(self, tracked: Tracked) -> bool:
        if self._room.fits(tracked.capture_tokens()):
            return False
        now = time.monotonic()
        tracked.waiting_since = tracked.waiting_since or now
        if now - tracked.waiting_since < _ROOM_S:
            return True
        self._count_fallback(tracked, "capture_busy", len(tracked.captures))
        tracked.captures = []
        return False

    def _loadable(self, tracked: Tracked) -> int:
        """Where the matched run ends, or earlier, where the host budget does."""
        end, left_out = tracked.match.limit(tracked.local_hit, self._load_tokens)
        if left_out:
            tracked.query_fallbacks["host_budget"] += left_out
        return end

    def allocated(self, request: Any, block_ids: list[int], count: int) -> None:
        """Blocks were given to a request; ``count`` tokens behind its local hit are to be loaded."""
        tracked = self._requests.get(request.request_id)
        if tracked is None:
            return
        tracked.blocks = list(block_ids)
        tracked.hashes = request.block_hashes
        if tracked.captures and not tracked.reserved:
            self._room.take(tracked.capture_tokens())
            tracked.reserved = True
        begin = tracked.local_hit
        tracked.loaded = (begin, begin + count) if count > 0 else (0, 0)
        if count > 0:
            self._loads.append(self._load_job(tracked))
            self._note_injected(tracked)
        self._record_admission(tracked, max(0, count))

    def _note_injected(self, tracked: Tracked) -> None:
        """The block in which the loaded rows end may be filled, and found by others, only later."""
        begin, end = tracked.loaded
        self._injected.note(tracked.hashes, self._block_size, begin, end)
        tracked.unnoted = -(-end // self._block_size) > len(tracked.hashes)

    def _load_job(self, tracked: Tracked) -> LoadJob:
        """What was erased since the match is in it, too: the ranks will not find it."""
        begin, end = tracked.loaded
        plan, first, last = tracked.match.plan(begin, end)
        tokens = tracked.prompt[first:last]
        first = begin // self._block_size
        last = -(-end // self._block_size)
        return LoadJob(tracked.request_id, begin, end, first, tracked.blocks[first:last], plan, tokens)

    def _record_admission(self, tracked: Tracked, count: int) -> None:
        """The first admission is what the trace speaks of; a preempted request has several."""
        trace = tracked.trace
        self._lately[tracked.request_id] = trace
        while len(self._lately) > 1024:
            self._lately.popitem(last=False)
        trace.admissions = [*trace.admissions[-7:], {"local_hit": tracked.local_hit, "injected": count}]
        if len(trace.admissions) > 1:
            self.count("readmitted")
            return
        trace.local_hit = tracked.local_hit
        trace.injected = count
        reach, match = tracked.local_hit + count, tracked.match
        if match is not None and match.begin <= tracked.local_hit:
            trace.served = (match, reach)
        for reason, number in tracked.query_fallbacks.items():
            self._count_fallback(tracked, reason, number)
        if count:
            self.count("injected_requests")
            self.count("injected_tokens", count)
        if tracked.injects and trace.served is not None and match.n_segments and match.begin < reach:
            self.count("matched_requests")

    def build_meta(self, output: Any) -> StepMetadata:
        """The work of the step that was just scheduled."""
        meta = StepMetadata(loads=self._loads)
        self._planned = []
        capturing = {}  # most requests have nothing to do in most steps
        for tracked in self._requests.values():
            if tracked.unnoted:
                self._note_injected(tracked)
            if tracked.captures:
                capturing[tracked.request_id] = tracked
        for scheduled in self._adapter.scheduled_requests(output) if capturing else ():
            tracked = capturing.get(scheduled.request_id)
            if tracked is None:
                continue
            if scheduled.new_block_ids:
                tracked.blocks += scheduled.new_block_ids
            self._emit_captures(tracked, scheduled.computed + scheduled.scheduled, meta)
        self._loads = []
        return meta

    def drop_step(self) -> list[int]:
        """Forgets what was planned for this step; the ids of the blocks that loads were to fill."""
        for number in self._planned:
            self._result(CaptureResult(0, number, self._capturing[number].key, "capture_failed"))
        loads, self._loads = self._loads, []
        return [block for job in loads for block in job.block_ids]

    def _bound_parked(self, key: str) -> None:
        info = self.book.info(key)
        if info is not None and info.kind == PARKED:
            old = self.book.parked({info.scope_hash})[:-MAX_PARKED]
            if old:
                self.eraser.forget(old)

    def _emit_captures(self, tracked: Tracked, reach: int, meta: StepMetadata) -> None:
        waiting = []
        for plan in tracked.captures:
            if plan.end > reach:
                waiting.append(plan)
                continue
            reason = self._refuse_capture(tracked, plan)
            if reason is not None:
                self._count_fallback(tracked, reason, 1)
                self._room.give_back(plan.end - plan.begin)
                continue
            meta.captures.append(self._begin_capture(tracked, plan))
        tracked.captures = waiting

    def _begin_capture(self, tracked: Tracked, plan: PlannedCapture) -> CaptureJob:
        """The capture counts as under way until ``_result`` says that all ranks have it, or one has not."""
        fence = self.eraser.fence()
        self._captures_planned += 1
        number = self._captures_planned
        self.book.expect(plan.key, plan.info, number)
        self._capturing[number] = CaptureUnderWay(plan.key, plan.end - plan.begin, tracked.trace)
        self._planned.append(number)
        return capture_job(tracked, plan, self._block_size, fence, number)

    def _refuse_capture(self, tracked: Tracked, plan: Any) -> str | None:
        if self.epochs.epoch(tracked.owner) != tracked.params.epoch:
            return "stale_epoch"
        return refusal(tracked, plan, self._injected, self._block_size)

    def worker_output(self, acks: WorkerAcks | None, invalid_blocks: set[int]) -> None:
        """What the ranks did in a step."""
        if invalid_blocks and self._block_pool is not None:
            # vLLM evicts the blocks of requests that still run; those of one that was aborted in
            # this very step would stay in the prefix cache without their rows.
            self._block_pool.evict_blocks(invalid_blocks)
        if acks is None:
            return
        for result in acks.captured:
            self._result(result)
        for rank, key in acks.lost:
            self.book.lost(rank, key)
        for _, request_id, reason in acks.failed_loads:
            self.count("failed_loads")
            logger.warning("InferScale: request %s: load failed: %s", request_id, reason)
            trace = self._lately.get(request_id)
            if trace is not None:
                trace.failed = reason

    def told(self, rank: int, captured: list[CaptureResult], lost: list[str]) -> None:
        """What a rank has done behind the steps. Called by a thread of the rank's own."""
        for result in captured:
            self._result(result)
        for key in lost:
            self.book.lost(rank, key)

    def _result(self, result: CaptureResult) -> None:
        with self._acks_lock:
            under_way = self._capturing.get(result.number)
            if result.reason is not None:
                self._capture_refused(result, under_way)
            elif self.book.arrived(result.rank, result.key, result.number):
                self.count("captures")
                self._bound_parked(result.key)
                if under_way is not None:
                    under_way.trace.captured = [*under_way.trace.captured, result.key]
            elif self.book.missing(result.key, result.number):
                return
            if self._capturing.pop(result.number, None) is not None:
                self._room.give_back(under_way.tokens)

    def _capture_refused(self, result: CaptureResult, under_way: CaptureUnderWay | None) -> None:
        reason = result.reason
        self.book.refused(result.rank, result.key, result.number)
        self.count(f"fallback:{reason}")
        if under_way is not None:
            under_way.trace.fallbacks[reason] += 1
        if reason == "capture_rotation" and not self.stopped:
            self.stopped = "the model does not rotate keys as its configuration says"
            self._injecting = False
            logger.error("InferScale: no injection from now on: %s", self.stopped)

    def finished(self, request: Any) -> dict[str, Any] | None:
        """The request has ended, in whatever way. Returns what the reply says."""
        tracked = self._requests.pop(request.request_id, None)
        if tracked is None:
            return None
        if tracked.reserved:
            self._room.give_back(tracked.capture_tokens())
        tracked.trace.finished = True
        return {PARAMS: tracked.trace.to_json()}

    # -- counters --------------------------------------------------------------------------------

    def _count_fallback(self, tracked: Tracked, reason: str, number: int) -> None:
        tracked.trace.fallbacks[reason] += number
        self.count(f"fallback:{reason}", number)

    def bind_block_pool(self, pool: Any) -> None:
        self._block_pool = pool

    def close(self) -> None:
        self.verification.close()
        self.ranks.close()
        self.epochs.close()
