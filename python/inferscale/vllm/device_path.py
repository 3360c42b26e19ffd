"""Between the records and a KV cache in the memory of a GPU: one launch a step, nothing waits.

The core's kernels read and write the cache as ``layout.describe`` has it, on the stream on which the
engine's own work of the step is queued. So loads come after what wrote the blocks before and ahead of
the forward pass, and captures after it, without an event. What a capture has read is finished by
``LateCaptures``, while the engine goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch

from inferscale.vllm import probe
from inferscale.vllm.host_path import capture_failure
from inferscale.vllm.late_captures import LateCaptures, Outbox
from inferscale.vllm.layout import split_slots
from inferscale.vllm.messages import CaptureJob, CaptureResult, LoadJob, WorkerAcks
from inferscale.vllm.store import RankRecords

_Job = TypeVar("_Job", LoadJob, CaptureJob)

MAX_LOAD_TOKENS = 1 << 16  # of one launch
MAX_RUNS = 64  # of one capture
_CAPTURE_BYTES = 256 << 20  # of one capture: the core holds several
_PATIENCE_S = 2.0  # of a step, for the memory of earlier captures
_CLOSE_S = 10.0  # for captures on their way when the engine ends


class DevicePath:
    """Hooks are called by the worker's thread, ``settle`` by any. A step that captures ends when the reading
    of its rows is queued: what comes into the stream later may overwrite them."""

    def __init__(
        self, records: RankRecords, block_size: int, repeated: probe.RepeatedTokens, rank: int,
        capture_tokens: int, stream: Callable[[], int], outbox: Outbox,
    ) -> None:
        """``records``: their store has been given the engine's caches (``attach_device``), and can
        capture ``capture_tokens`` tokens at a time; ``stream``: the address of the stream that the
        engine uses now; ``outbox``: is told what becomes of captures."""
        self._store = records.store
        self._block_size = block_size
        self._rank = rank
        self._capture_tokens = capture_tokens
        self._stream = stream
        self._late = LateCaptures(records, repeated, rank, outbox)

    def load(self, jobs: list[LoadJob]) -> None:
        """Queues one launch that places the records of all jobs, or as few as there is room for.
        Raises what the core raises."""
        stream = self._stream()
        for some in in_parts(jobs, lambda job: job.end - job.begin, MAX_LOAD_TOKENS):
            self._store.load([(job.plan, job.tokens) for job in some], load_rows(some, self._block_size), stream)

    def save(self, jobs: list[CaptureJob], acks: WorkerAcks) -> None:
        """Queues the gathering of the rows that the step's forward pass completes. The outbox is told
        what came of it; ``acks``, what could not even begin."""
        until = time.monotonic() + _PATIENCE_S
        for some in in_parts(jobs, lambda job: len(job.tokens), self._capture_tokens, MAX_RUNS):
            try:
                self._late.add(some, self._begin([self._capture_item(job) for job in some], until))
            except Exception as error:
                reason = "capture_busy" if isinstance(error, MemoryError) else None
                acks.captured += [
                    CaptureResult(self._rank, job.number, job.key, reason or capture_failure(job, error))
                    for job in some
                ]

    def _begin(self, runs: list[tuple[Any, ...]], until: float) -> Any:
        """The scheduler's side asks for no more than there is memory for, but a single request may have
        more captures than that: then earlier ones are waited for."""
        while True:
            try:
                return self._store.begin_capture(runs, self._stream())
            except MemoryError:
                if not self._late.wait_for_one(until):
                    raise

    def _capture_item(self, job: CaptureJob) -> tuple[Any, ...]:
        end = job.begin + len(job.tokens)
        rows = split_slots(job.block_ids, job.first_block, job.begin, end, self._block_size)
        return (job.meta, job.tokens, job.begin, rows.astype(np.uint32))

    def settle(self, timeout_s: float) -> None:
        """Returns when what was queued before is stored or refused, and its memory zeroed. Raises
        TimeoutError."""
        self._late.settle(timeout_s)

    def close(self) -> None:
        """Captures that are on their way are stored, or dropped where that takes too long."""
        self._late.close(_CLOSE_S)


def cuda_stream() -> int:
    """Of the calling thread, on its device."""
    return torch.cuda.current_stream().cuda_stream


def load_rows(jobs: list[LoadJob], block_size: int) -> np.ndarray:
    """The slots of all jobs' tokens, uint32."""
    slots = [
        split_slots(job.block_ids, job.first_block, job.begin, job.end, block_size) for job in jobs
    ]
    return (slots[0] if len(slots) == 1 else np.concatenate(slots)).astype(np.uint32)


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
