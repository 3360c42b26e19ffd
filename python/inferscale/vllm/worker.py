"""The worker's role on one rank: places records into the engine's KV cache, and captures from it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

import numpy as np
import torch

from inferscale import _core
from inferscale.vllm import model, probe
from inferscale.vllm.layout import Reader, Writer, core_slots, split_slots
from inferscale.vllm.messages import CaptureJob, LoadItem, LoadJob, StepMetadata, WorkerAcks
from inferscale.vllm.rank_channel import RankServer, socket_path
from inferscale.vllm.settings import Settings
from inferscale.vllm.store import RankRecords

logger = logging.getLogger("vllm.inferscale")

_MAX_THREADS = 4  # of a load; what it needs is bandwidth, which few threads use up


class WorkerSide:
    """Hooks are called by the worker's thread; the rank channel by threads of its own."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any, settings: Settings, rank: int, ranks: int) -> None:
        self._config = vllm_config
        self._cache_config = kv_cache_config
        self._settings = settings
        self._rank, self._n_ranks = rank, ranks
        self._records: RankRecords | None = None
        self._server: RankServer | None = None
        self._about: dict[str, Any] = {"ok": False, "reason": "not started"}
        self._writer: Writer | None = None
        self._reader: Reader | None = None
        self._cache: _core.EngineCache | None = None  # where the core reads and writes it in place
        self._block_size = 1
        self._failed_blocks: set[int] = set()
        self._acks = WorkerAcks()
        self._load_seconds: list[float] = []
        self._buffers: tuple[torch.Tensor, torch.Tensor] | None = None

    # -- start -----------------------------------------------------------------------------------

    def start(self, adapter: ModuleType | None, reason: str, caches: dict[str, torch.Tensor]) -> None:
        """Opens the store, checks everything and then listens. ``reason``: why there is no injection
        whatever the checks say. Raises nothing that the configuration or the model causes."""
        try:
            self._open_store()
            if adapter is None or reason:
                raise model.Refused(reason)
            self._check(adapter, caches)
            self._about |= {"ok": True, "reason": ""}
        except model.Refused as refused:
            self._about |= {"ok": False, "reason": str(refused)}
        except Exception as error:
            logger.error("InferScale: start-up check failed", exc_info=error)
            self._about |= {"ok": False, "reason": f"{type(error).__name__}: {error}"}
        token = _core.control_token(self._settings.secret)
        self._server = RankServer(
            socket_path(self._settings.data_dir, self._rank), token, self._handlers()
        )

    def _open_store(self) -> None:
        whole = model.spec_dict(self._config)
        files = model.weight_files(self._config)
        canonical = model.canonical_settings(self._config, whole)
        cache = str(self._settings.data_dir / "fingerprints")
        whole["fingerprint"] = _core.hf_fingerprint(files, canonical, cache)
        heads = self._config.model_config.get_num_kv_heads(self._config.parallel_config)
        self._shape = whole["shape"] | {"n_kv_heads": heads}  # of this rank
        self._spec = _core.ModelSpec.from_dict(whole)
        self._max_positions = int(self._config.model_config.max_model_len)
        with _on_all_processors() as processors:
            self._threads = min(_MAX_THREADS, processors)
            store = _core.RecordStore(
                str(self._settings.data_dir / f"rank-{self._rank}"),
                self._settings.host_budget,
                self._settings.disk_budget,
                self._spec,
                self._settings.store_codec,
                self._rank,
                self._n_ranks,
                self._max_positions,
                self._threads,
            )
        self._records = RankRecords(store)
        self._about |= {
            "fingerprint": whole["fingerprint"],
            "shape": whole["shape"],
            "rope": whole["rope"],
            "store_codec": self._settings.store_codec,
            "load_tokens": self._load_tokens(),
        }

    def _load_tokens(self) -> int:
        """How many tokens' records the host budget holds at once: more cannot be loaded for a request."""
        shape = self._shape
        width = shape["n_kv_heads"] * (shape["head_dim_k"] + shape["head_dim_v"]) * shape["n_layers"]
        size = width * (4 if self._settings.store_codec == "f32" else 2)
        return int(0.9 * self._settings.host_budget / size)

    def _check(self, adapter: ModuleType, caches: dict[str, torch.Tensor]) -> None:
        model.check_config(self._config)
        self._block_size = model.check_cache_config(self._cache_config)
        shape = self._shape
        names = sorted(caches, key=_layer_number)
        tensors = [caches[name] for name in names]
        if len({tensor.data_ptr() for tensor in tensors}) != len(tensors) != 0:
            raise model.Refused("layers share their KV cache")
        if len(tensors) != shape["n_layers"]:
            raise model.Refused(f"{len(tensors)} layers have a KV cache, not {shape['n_layers']}")
        num_blocks = int(self._cache_config.num_blocks)
        self._writer = adapter.make_writer(adapter.attention_layers(self._config, names), tensors)
        self._reader = adapter.make_reader(tensors, num_blocks)
        self._device, self._dtype = tensors[0].device, tensors[0].dtype
        rope = probe.check_rope(adapter, self._spec, self._about["rope"], self._max_positions)
        probe.check_cache(
            self._writer, self._reader, tensors, num_blocks, self._block_size,
            shape["n_kv_heads"], shape["head_dim_k"],
        )
        probe.check_rotation(
            adapter, rope, self._spec, self._about["shape"], self._max_positions
        )
        self._cache = self._cache_in_place(tensors, num_blocks)
        self._repeated = probe.RepeatedTokens(self._spec, self._max_positions)

    def _cache_in_place(self, tensors: list[torch.Tensor], num_blocks: int) -> "_core.EngineCache | None":
        """The cache, where the core was seen to read and write it as the engine does."""
        try:
            cache = _core.EngineCache(self._reader.pairs)
            probe.check_in_place(
                cache, self._writer, self._reader, tensors, num_blocks, self._block_size,
                self._spec, self._n_ranks, self._max_positions,
            )
        except (model.Refused, NotImplementedError, TypeError, ValueError) as reason:
            logger.info("InferScale: rank %d: the engine's own writer fills its KV cache: %s", self._rank, reason)
            return None
        logger.info("InferScale: rank %d: KV cache in place, %d threads", self._rank, self._threads)
        return cache

    def _handlers(self) -> dict[str, Any]:
        handlers: dict[str, Any] = {"hello": lambda _: self._about}
        if self._records is not None:
            handlers |= {
                "records": self._records.list_records,
                "erase": self._records.erase,
                "verify": self._records.verify,
                "stats": self._records.stats,
            }
        return handlers

    # -- loading ---------------------------------------------------------------------------------

    def load(self, meta: StepMetadata) -> None:
        """Places the records of all requests of the step; one composition. What fails is reported by
        block, and the other requests are not touched by it."""
        if not meta.loads:
            return
        begun = time.perf_counter()
        try:
            self._load(meta.loads)
        except Exception as error:
            if len(meta.loads) == 1:
                self._fail(meta.loads[0], error)
            else:
                for job in meta.loads:  # one bad record must not cost the others theirs
                    try:
                        self._load([job])
                    except Exception as reason:
                        self._fail(job, reason)
        self._load_seconds.append(time.perf_counter() - begun)

    def _load(self, jobs: list[LoadJob]) -> None:
        if self._cache is None:
            self._load_by_engine(jobs)
            return
        store = self._records.store
        placements = [
            (
                store.prepare([_compose_item(item) for item in job.items]), job.begin,
                core_slots(job.block_ids, job.first_block, job.begin, job.end, self._block_size),
            )
            for job in jobs
        ]
        store.place(placements, self._cache)

    def _load_by_engine(self, jobs: list[LoadJob]) -> None:
        """Composes into memory of ours, and writes that with the engine's own writer."""
        items = [item for job in jobs for item in job.items]
        total = sum(len(item.tokens) for item in items)
        keys, values = self._rows(total)
        self._records.store.compose([_compose_item(item) for item in items], keys, values)
        rows, slots = _placement(jobs, self._block_size)
        whole = len(rows) == total
        slots = slots.to(self._device)
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

    def _fail(self, job: LoadJob, error: Exception) -> None:
        self._failed_blocks.update(job.block_ids)
        self._acks.failed_loads.append(
            (self._rank, job.request_id, f"{type(error).__name__}: {error}")
        )
        for item in job.items:
            if not self._records.store.contains(item.key):
                self._acks.lost.append((self._rank, item.key))

    # -- capturing -------------------------------------------------------------------------------

    def save(self, meta: StepMetadata) -> None:
        """Stores the rows that the step's forward pass has completed."""
        for job in meta.captures:
            try:
                reason = self._capture(job)
            except Exception as error:
                logger.warning("InferScale: request %s: capture failed: %s", job.request_id, error)
                reason = "capture_store_full" if isinstance(error, MemoryError) else "capture_failed"
            if reason is None:
                self._acks.captured.append((self._rank, job.key))
            else:
                self._acks.refused.append((self._rank, job.key, reason))
        if meta.captures:
            self._acks.lost += [(self._rank, key) for key in self._records.evicted()]

    def _capture(self, job: CaptureJob) -> str | None:
        end = job.begin + len(job.tokens)
        slots = split_slots(job.block_ids, job.first_block, job.begin, end, self._block_size)
        slots = slots.to(self._device)
        first, _ = self._reader.read(0, slots)
        if not self._repeated.agree(job.tokens, job.begin, first.cpu()):
            return "capture_rotation"
        if self._cache is not None:
            rows = slots.numpy().astype(np.uint32)
            return self._records.capture_rows(
                job.meta, job.fence, job.tokens, job.begin, self._cache, rows
            )
        rows = [self._reader.read(layer, slots) for layer in range(self._shape["n_layers"])]
        keys = torch.stack([key for key, _ in rows]).cpu().contiguous()
        values = torch.stack([value for _, value in rows]).cpu().contiguous()
        return self._records.capture(job.meta, job.fence, job.tokens, job.begin, keys, values)

    # -- what a step gives back ------------------------------------------------------------------

    def take_failed_blocks(self) -> set[int]:
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def take_acks(self) -> WorkerAcks | None:
        if self._acks.empty():
            return None
        acks, self._acks = self._acks, WorkerAcks()
        return acks

    def take_load_seconds(self) -> list[float]:
        seconds, self._load_seconds = self._load_seconds, []
        return seconds

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._cache = None
        if self._records is not None:
            self._records.close()


@contextmanager
def _on_all_processors() -> Iterator[int]:
    """Threads that are made meanwhile run on every processor that a thread of this process has: the
    engine keeps each of its own to one. Gives their number."""
    own = os.sched_getaffinity(0)
    every = set(own)
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError):  # it may have ended
            every |= os.sched_getaffinity(int(thread))
    with suppress(OSError):  # then they share our processor, which is slower and nothing else
        os.sched_setaffinity(0, every)
    try:
        yield len(os.sched_getaffinity(0))
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, own)


def _layer_number(name: str) -> tuple[int, str]:
    numbers = [int(part) for part in name.split(".") if part.isdecimal()]
    return (numbers[0] if numbers else -1, name)


def _compose_item(item: LoadItem) -> tuple[str, str, str | None, np.ndarray, int]:
    return (item.key, item.scope_hash, item.context_id, item.tokens, item.begin)


def _placement(jobs: list[LoadJob], block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Which rows of the composed buffer are wanted, and the slots they go to."""
    rows, slots, offset = [], [], 0
    for job in jobs:
        first = job.items[0].begin
        rows.append(torch.arange(offset + job.begin - first, offset + job.end - first))
        slots.append(split_slots(job.block_ids, job.first_block, job.begin, job.end, block_size))
        offset += sum(len(item.tokens) for item in job.items)
    return torch.cat(rows), torch.cat(slots)
