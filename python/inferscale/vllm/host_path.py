"""Between the records and a KV cache in host memory: in place where the core was seen to read and write it
as the engine does, else by way of arrays and the engine's own writer, layer by layer."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch

from inferscale import _core
from inferscale.vllm import probe
from inferscale.vllm.layout import Reader, Writer, place_jobs, split_slots
from inferscale.vllm.messages import CaptureJob, CaptureResult, LoadJob, WorkerAcks
from inferscale.vllm.store import RankRecords

logger = logging.getLogger("vllm.inferscale")


class HostPath:
    """Everything has happened when a call returns. Used by the worker's thread alone."""

    def __init__(
        self, records: RankRecords, shape: dict[str, int], block_size: int, writer: Writer, reader: Reader,
        cache: torch.Tensor, in_place: "_core.EngineCache | None", repeated: probe.RepeatedTokens, rank: int,
    ) -> None:
        """``shape``: of this rank; ``cache``: of any layer; ``in_place``: the whole cache, or None where
        the core must not touch it."""
        self._records = records
        self._shape = shape
        self._block_size = block_size
        self._writer, self._reader = writer, reader
        self._device, self._dtype = cache.device, cache.dtype
        self._in_place = in_place
        self._repeated = repeated
        self._rank = rank
        self._buffers: tuple[torch.Tensor, torch.Tensor] | None = None

    def load(self, jobs: list[LoadJob]) -> None:
        """Raises what the core raises; then nothing was written."""
        if self._in_place is None:
            self._load_by_engine(jobs)
            return
        store = self._records.store
        placements = [
            (store.prepare(job.items()), job.begin, self._slots_of(job)) for job in jobs
        ]
        store.place(placements, self._in_place)

    def _slots_of(self, job: LoadJob) -> np.ndarray:
        slots = split_slots(job.block_ids, job.first_block, job.begin, job.end, self._block_size)
        return slots.astype(np.uint32)

    def _load_by_engine(self, jobs: list[LoadJob]) -> None:
        """Composes into memory of ours, and writes that with the engine's own writer."""
        total = sum(len(job.tokens) for job in jobs)
        keys, values = self._rows(total)
        self._records.store.compose([item for job in jobs for item in job.items()], keys, values)
        rows, slots = place_jobs(jobs, self._block_size)
        whole = len(rows) == total
        rows, slots = torch.from_numpy(rows), torch.from_numpy(slots).to(self._device)
        for layer in range(keys.shape[0]):
            key = keys[layer] if whole else keys[layer][rows]
            value = values[layer] if whole else values[layer][rows]
            self._writer.write(layer, key.to(self._device), value.to(self._device), slots)

    def _rows(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """[layers, count, heads, dim] of keys and of values, in memory that is kept for the next time."""
        shape = self._shape
        layers, heads, dim = shape["n_layers"], shape["n_kv_heads"], shape["head_dim_k"]
        size = layers * count * heads * dim
        if self._buffers is None or self._buffers[0].numel() < size:
            self._buffers = (torch.empty(size, dtype=self._dtype), torch.empty(size, dtype=self._dtype))
        return tuple(b[:size].view(layers, count, heads, dim) for b in self._buffers)

    def save(self, jobs: list[CaptureJob], acks: WorkerAcks) -> None:
        """Stores the rows that the step's forward pass has completed; ``acks`` is told."""
        for job in jobs:
            try:
                reason = self._capture(job)
            except Exception as error:
                reason = capture_failure(job, error)
            acks.captured.append(CaptureResult(self._rank, job.number, job.key, reason))
        acks.lost += [(self._rank, key) for key in self._records.evicted()]

    def _capture(self, job: CaptureJob) -> str | None:
        end = job.begin + len(job.tokens)
        slots = split_slots(job.block_ids, job.first_block, job.begin, end, self._block_size)
        where = torch.from_numpy(slots).to(self._device)
        first, _ = self._reader.read(0, where)
        if not self._repeated.agree(job.tokens, job.begin, first.cpu()):
            return "capture_rotation"
        if self._in_place is not None:
            rows = slots.astype(np.uint32)
            return self._records.capture_rows(job.meta, job.fence, job.tokens, job.begin, self._in_place, rows)
        read = [self._reader.read(layer, where) for layer in range(self._shape["n_layers"])]
        keys = torch.stack([key for key, _ in read]).cpu().contiguous()
        values = torch.stack([value for _, value in read]).cpu().contiguous()
        return self._records.capture(job.meta, job.fence, job.tokens, job.begin, keys, values)

    def settle(self, timeout_s: float) -> None:
        """As DevicePath's: nothing is on its way."""

    def close(self) -> None:
        self._in_place = None  # views of the engine's memory


def capture_failure(job: CaptureJob, error: Exception) -> str:
    """Logs why a capture was lost; the reason that the scheduler's side is told."""
    logger.warning("InferScale: request %s: capture failed: %s", job.request_id, error)
    return "capture_store_full" if isinstance(error, MemoryError) else "capture_failed"
