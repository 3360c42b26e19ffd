"""Between the records and a KV cache by way of arrays in host memory, layer by layer: CPU engines."""

from __future__ import annotations

import logging
from typing import Any

import torch

from inferscale.vllm import probe
from inferscale.vllm.layout import Reader, Writer, place_jobs, split_slots
from inferscale.vllm.messages import CaptureJob, LoadItem, LoadJob, WorkerAcks
from inferscale.vllm.store import RankRecords

logger = logging.getLogger("vllm.inferscale")


class HostPath:
    """Everything has happened when a call returns. Used by the worker's thread alone."""

    def __init__(
        self, records: RankRecords, shape: dict[str, int], block_size: int, writer: Writer, reader: Reader,
        cache: torch.Tensor, repeated: probe.RepeatedTokens, rank: int,
    ) -> None:
        """``shape``: of this rank; ``cache``: of any layer."""
        self._records = records
        self._shape = shape
        self._block_size = block_size
        self._writer, self._reader = writer, reader
        self._device, self._dtype = cache.device, cache.dtype
        self._repeated = repeated
        self._rank = rank
        self._buffers: tuple[torch.Tensor, torch.Tensor] | None = None

    def load(self, jobs: list[LoadJob]) -> None:
        """Raises what the core raises; then nothing was written."""
        items = [item for job in jobs for item in job.items]
        total = sum(len(item.tokens) for item in items)
        keys, values = self._rows(total)
        self._records.store.compose([_compose_item(item) for item in items], keys.numpy(), values.numpy())
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
            note_capture(acks, self._rank, job, reason)
        acks.lost += [(self._rank, key) for key in self._records.evicted()]

    def _capture(self, job: CaptureJob) -> str | None:
        end = job.begin + len(job.tokens)
        slots = split_slots(job.block_ids, job.first_block, job.begin, end, self._block_size)
        slots = torch.from_numpy(slots).to(self._device)
        rows = [self._reader.read(layer, slots) for layer in range(self._shape["n_layers"])]
        keys = torch.stack([key for key, _ in rows]).cpu().contiguous()
        values = torch.stack([value for _, value in rows]).cpu().contiguous()
        if not self._repeated.agree(job.tokens, job.begin, keys[0].numpy()):
            return "capture_rotation"
        return self._records.capture(
            job.meta, job.fence, job.tokens, job.begin, keys.numpy(), values.numpy()
        )

    def close(self) -> None:
        return


def capture_failure(job: CaptureJob, error: Exception) -> str:
    """Logs why a capture was lost; the reason that the scheduler's side is told."""
    logger.warning("InferScale: request %s: capture failed: %s", job.request_id, error)
    return "capture_store_full" if isinstance(error, MemoryError) else "capture_failed"


def note_capture(acks: WorkerAcks, rank: int, job: CaptureJob, reason: str | None) -> None:
    if reason is None:
        acks.captured.append((rank, job.key))
    else:
        acks.refused.append((rank, job.key, reason))


def _compose_item(item: LoadItem) -> tuple[Any, ...]:
    return (item.key, item.scope_hash, item.context_id, item.tokens, item.begin)
