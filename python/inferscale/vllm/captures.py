"""Which captures of a request are taken, and when their rows are there."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from inferscale import _core
from inferscale.vllm.messages import CaptureJob
from inferscale.vllm.records import RecordInfo
from inferscale.vllm.tracking import InjectedBlocks, PlannedCapture, Tracked


class CaptureRoom:
    """How many tokens' rows are on their way to the ranks' stores. Thread-safe."""

    def __init__(self, tokens: int) -> None:
        """``tokens``: what a rank has memory for; 0: captures are stored within their step."""
        self._limit = tokens
        self._lock = threading.Lock()
        self._taken = 0

    def fits(self, tokens: int) -> bool:
        """Also when there is less room in all, but nothing is on its way."""
        with self._lock:
            return self._limit == 0 or self._taken == 0 or self._taken + tokens <= self._limit

    def take(self, tokens: int) -> None:
        with self._lock:
            self._taken += tokens

    def give_back(self, tokens: int) -> None:
        with self._lock:
            self._taken -= tokens


def plan_capture(
    wanted: Any, scope: dict[str, str], prompt: np.ndarray, secret: bytes, fingerprint: str
) -> PlannedCapture | str:
    """Checks one entry of ``capture`` against the prompt; the text says why it is refused."""
    if wanted.end > len(prompt):
        return "capture_range"
    owner = _core.owner_scope(scope, wanted.owner)
    tokens = np.ascontiguousarray(prompt[wanted.begin : wanted.end])
    key = _core.record_key(
        secret, owner, fingerprint, wanted.context_id, wanted.context_kind, tokens
    )
    if key != wanted.key:
        return "capture_key"
    info = RecordInfo(_core.scope_hash(owner), wanted.context_kind, wanted.context_id, tokens)
    return PlannedCapture(key, wanted.begin, wanted.end, info, wanted.context_tokens)


def refusal(
    tracked: Tracked, plan: PlannedCapture, injected: InjectedBlocks, block_size: int
) -> str | None:
    """Why the rows of a capture are not what its record would say they are; None when they are."""
    begin, end = tracked.loaded
    if begin < plan.end and plan.begin < end:
        return "capture_injected"
    reach = min(plan.end, tracked.local_hit)
    if plan.begin < reach and injected.touches(tracked.hashes, block_size, plan.begin, reach):
        return "capture_injected"
    context = tracked.params.context
    matched = tracked.match.n_segments if tracked.match is not None else 0
    if context.split(":")[0] == "log" and matched < tracked.params.n_inject:
        return "capture_context"  # its context id says that all of them were injected
    return None


def capture_job(
    tracked: Tracked, plan: PlannedCapture, block_size: int, fence: int, number: int
) -> CaptureJob:
    first = plan.begin // block_size
    last = -(-plan.end // block_size)
    return CaptureJob(
        request_id=tracked.request_id,
        key=plan.key,
        begin=plan.begin,
        tokens=plan.info.tokens,
        first_block=first,
        block_ids=tracked.blocks[first:last],
        meta={
            "key": plan.key,
            "scope_hash": plan.info.scope_hash,
            "context_id": plan.info.context_id,
            "context_kind": plan.info.kind,
            "context_tokens": plan.context_tokens,
        },
        fence=fence,
        number=number,
    )
