"""Between the records and a KV cache in the memory of a GPU: one launch a step, nothing waits.

The core's kernels read and write the cache as ``layout.describe`` has it, on the stream on which the
engine's own work of the step is queued. So loads come after what wrote the blocks before and ahead of
the forward pass, and captures after it, without an event.
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import torch

from inferscale.vllm import probe
from inferscale.vllm.host_path import capture_failure, note_capture
from inferscale.vllm.layout import split_slots
from inferscale.vllm.messages import CaptureJob, LoadJob, WorkerAcks
from inferscale.vllm.store import RankRecords

logger = logging.getLogger("vllm.inferscale")

_Job = TypeVar("_Job", LoadJob, CaptureJob)

MAX_LOAD_TOKENS = 1 << 16  # of one launch
MAX_RUNS = 64  # of one capture
_CAPTURE_BYTES = 256 << 20  # of one capture: the core holds several
_PATIENCE_S = 60.0  # for the bytes of a capture to arrive


class DevicePath:
    """Hooks are called by the worker's thread; a thread of its own waits for the device."""

    def __init__(
        self, records: RankRecords, block_size: int, repeated: probe.RepeatedTokens, rank: int,
        capture_tokens: int, stream: Callable[[], int],
    ) -> None:
        """``records``: their store has been given the engine's caches (``attach_device``), and can
        capture ``capture_tokens`` tokens at a time; ``stream``: the address of the stream that the
        engine uses now."""
        self._records = records
        self._store = records.store
        self._block_size = block_size
        self._repeated = repeated
        self._rank = rank
        self._capture_tokens = capture_tokens
        self._stream = stream
        self._on_their_way: deque[Future[list[str | None]]] = deque(maxlen=64)
        self._waiter = ThreadPoolExecutor(1, thread_name_prefix="inferscale-device")

    def load(self, jobs: list[LoadJob]) -> None:
        """Queues one launch that places the records of all jobs, or as few as there is room for.
        Raises what the core raises."""
        stream = self._stream()
        for some in in_parts(jobs, lambda job: job.end - job.begin, MAX_LOAD_TOKENS):
            self._store.load(
                load_items(some), load_tokens(some), load_rows(some, self._block_size), stream
            )

    def save(self, jobs: list[CaptureJob], acks: WorkerAcks) -> None:
        """Queues the gathering of the rows that the step's forward pass completes. ``acks`` can tell
        what came of it once the bytes have arrived."""
        for some in in_parts(jobs, lambda job: len(job.tokens), self._capture_tokens, MAX_RUNS):
            try:
                batch = self._begin([self._capture_item(job) for job in some])
            except Exception as error:
                for job in some:
                    note_capture(acks, self._rank, job, capture_failure(job, error))
                continue
            kept = self._waiter.submit(self._keep, some, batch)
            self._on_their_way.append(kept)
            acks.later.append(functools.partial(self._tell, some, kept))

    def _begin(self, runs: list[tuple[Any, ...]]) -> Any:
        """Waits for earlier captures only when all of the core's buffers are theirs."""
        while True:
            try:
                return self._store.begin_capture(runs, self._stream())
            except MemoryError:
                if not self._on_their_way:
                    raise
                self._on_their_way.popleft().exception(timeout=_PATIENCE_S)

    def _capture_item(self, job: CaptureJob) -> tuple[Any, ...]:
        end = job.begin + len(job.tokens)
        rows = split_slots(job.block_ids, job.first_block, job.begin, end, self._block_size)
        return (job.meta, job.tokens, job.begin, rows.astype(np.uint32))

    def _keep(self, jobs: list[CaptureJob], batch: Any) -> list[str | None]:
        """What became of each job; runs on the waiting thread."""
        batch.wait()
        return [self._keep_one(job, batch, number) for number, job in enumerate(jobs)]

    def _keep_one(self, job: CaptureJob, batch: Any, number: int) -> str | None:
        try:
            keys = np.frombuffer(batch.first_layer_keys(number), np.float32).reshape(len(job.tokens), -1)
            if not self._repeated.agree_plain(job.tokens, keys):
                return "capture_rotation"
            return self._records.keep(job.meta, job.fence, lambda: batch.store(number))
        except Exception as error:
            return capture_failure(job, error)

    def _tell(self, jobs: list[CaptureJob], kept: "Future[list[str | None]]", acks: WorkerAcks) -> None:
        try:
            reasons = kept.result(timeout=_PATIENCE_S)
        except Exception as error:
            reasons = [capture_failure(job, error) for job in jobs]
        for job, reason in zip(jobs, reasons):
            note_capture(acks, self._rank, job, reason)
        acks.lost += [(self._rank, key) for key in self._records.evicted()]

    def close(self) -> None:
        """Returns when the captures that are on their way have been stored."""
        self._waiter.shutdown(wait=True)


def cuda_stream() -> int:
    """Of the calling thread, on its device."""
    return torch.cuda.current_stream().cuda_stream


def load_items(jobs: list[LoadJob]) -> list[tuple[Any, ...]]:
    """(key, scope_hash, context_id, how many tokens, first_position, first_token, n_tokens) of each
    record: of the first and the last one of a job some tokens may be there already or not wanted."""
    items = []
    for job in jobs:
        for key, scope_hash, context_id, tokens, begin in job.items:
            size = len(tokens)
            first = job.begin - begin if begin < job.begin else 0
            last = job.end - begin if begin + size > job.end else size
            items.append((key, scope_hash, context_id, size, begin, first, last - first))
    return items


def load_tokens(jobs: list[LoadJob]) -> np.ndarray:
    """The ids of all records, one after the other."""
    return np.concatenate([item.tokens for job in jobs for item in job.items])


def load_rows(jobs: list[LoadJob], block_size: int) -> np.ndarray:
    """The slots of all jobs' tokens, uint32."""
    slots = [
        split_slots(job.block_ids, job.first_block, job.begin, job.end, block_size) for job in jobs
    ]
    return np.concatenate(slots).astype(np.uint32)


def in_parts(
    jobs: list[_Job], size: Callable[[_Job], int], most: int, most_jobs: int = 1 << 30
) -> Iterator[list[_Job]]:
    """Jobs in their order, as many at a time as have ``most`` tokens; one that has more stands alone."""
    part: list[_Job] = []
    tokens = 0
    for job in jobs:
        if part and (tokens + size(job) > most or len(part) == most_jobs):
            yield part
            part, tokens = [], 0
        part.append(job)
        tokens += size(job)
    if part:
        yield part


def max_capture_tokens(token_bytes: int, max_model_len: int) -> int:
    """Of one capture, by what it takes in memory."""
    return max(1, min(max_model_len, max(1024, _CAPTURE_BYTES // token_bytes)))
