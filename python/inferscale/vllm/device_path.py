"""Between the records and a KV cache in the memory of a GPU: one launch a step, nothing waits.

The core's kernels read and write the cache as ``layout.describe`` has it, on the stream on which the
engine's own work of the step is queued. So loads come after what wrote the blocks before and ahead of
the forward pass, and captures after it, without an event.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from inferscale.vllm import probe
from inferscale.vllm.host_path import capture_failure, note_capture
from inferscale.vllm.layout import split_slots
from inferscale.vllm.messages import CaptureJob, LoadJob, WorkerAcks
from inferscale.vllm.store import RankRecords

logger = logging.getLogger("vllm.inferscale")

_PATIENCE_S = 60.0  # for the bytes of a capture to arrive


class DevicePath:
    """Hooks are called by the worker's thread; a thread of its own waits for the device."""

    def __init__(
        self, records: RankRecords, device: Any, block_size: int, repeated: probe.RepeatedTokens, rank: int,
        stream: Callable[[], int],
    ) -> None:
        """``device``: a _core.DeviceRecords over the store of ``records`` and the engine's caches;
        ``stream``: the address of the stream that the engine uses now."""
        self._records = records
        self._device = device
        self._block_size = block_size
        self._repeated = repeated
        self._rank = rank
        self._stream = stream
        self._waiter = ThreadPoolExecutor(1, thread_name_prefix="inferscale-device")

    def load(self, jobs: list[LoadJob]) -> None:
        """Queues one launch that places the records of all jobs. Raises what the core raises; then
        nothing was queued."""
        self._device.load(load_items(jobs), load_rows(jobs, self._block_size), self._stream())

    def save(self, jobs: list[CaptureJob], acks: WorkerAcks) -> None:
        """Queues the gathering of the rows that the step's forward pass completes. ``acks`` can tell
        what came of it once the bytes have arrived."""
        try:
            batch = self._device.begin_capture(
                [self._capture_item(job) for job in jobs], self._stream()
            )
        except Exception as error:
            for job in jobs:
                note_capture(acks, self._rank, job, capture_failure(job, error))
            return
        stored = self._waiter.submit(self._store, jobs, batch)
        acks.later.append(lambda told: self._tell(told, jobs, stored))

    def _capture_item(self, job: CaptureJob) -> tuple[Any, ...]:
        end = job.begin + len(job.tokens)
        rows = split_slots(job.block_ids, job.first_block, job.begin, end, self._block_size)
        return (job.meta, job.tokens, job.begin, rows.astype(np.uint32))

    def _store(self, jobs: list[CaptureJob], batch: Any) -> list[str | None]:
        """What became of each job; runs on the waiting thread."""
        batch.wait()
        return [self._store_one(job, batch, number) for number, job in enumerate(jobs)]

    def _store_one(self, job: CaptureJob, batch: Any, number: int) -> str | None:
        try:
            if not self._repeated.agree_plain(job.tokens, batch.first_layer_keys(number)):
                return "capture_rotation"
            return self._records.keep(job.meta, job.fence, lambda: batch.store(number))
        except Exception as error:
            return capture_failure(job, error)

    def _tell(self, acks: WorkerAcks, jobs: list[CaptureJob], stored: "Future[list[str | None]]") -> None:
        try:
            reasons = stored.result(timeout=_PATIENCE_S)
        except Exception as error:
            reasons = [capture_failure(job, error) for job in jobs]
        for job, reason in zip(jobs, reasons):
            note_capture(acks, self._rank, job, reason)
        acks.lost += [(self._rank, key) for key in self._records.evicted()]

    def stats(self) -> list[dict[str, Any]]:
        """Of the tiers on the device and in pinned memory."""
        return list(self._device.stats())

    def close(self) -> None:
        self._waiter.shutdown(wait=True)
        self._device.close()


def cuda_stream() -> int:
    """Of the calling thread, on its device."""
    return torch.cuda.current_stream().cuda_stream


def load_items(jobs: list[LoadJob]) -> list[tuple[Any, ...]]:
    """(key, scope_hash, context_id, tokens, first_position, first_token, n_tokens) of each record: of
    the first and the last record of a job some tokens may be there already or not wanted."""
    items = []
    for job in jobs:
        for item in job.items:
            first = max(job.begin - item.begin, 0)
            last = min(job.end - item.begin, len(item.tokens))
            items.append(
                (item.key, item.scope_hash, item.context_id, item.tokens, item.begin, first, last - first)
            )
    return items


def load_rows(jobs: list[LoadJob], block_size: int) -> np.ndarray:
    """The slots of all jobs' tokens, uint32."""
    slots = [
        split_slots(job.block_ids, job.first_block, job.begin, job.end, block_size) for job in jobs
    ]
    return np.concatenate(slots).astype(np.uint32)
