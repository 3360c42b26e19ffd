"""The worker's role on one rank: places records into the engine's KV cache, and captures from it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

import torch

from inferscale import _core
from inferscale.vllm import key_bias, layout, model, probe
from inferscale.vllm.device_path import MAX_LOAD_TOKENS, DevicePath, cuda_stream, max_capture_tokens
from inferscale.vllm.host_path import HostPath
from inferscale.vllm.late_captures import Outbox
from inferscale.vllm.layout import Reader, Writer
from inferscale.vllm.messages import LoadJob, StepMetadata, WorkerAcks
from inferscale.vllm.rank_channel import RankServer, socket_path
from inferscale.vllm.settings import Settings, budget_bytes, free_host_memory
from inferscale.vllm.store import RankRecords

logger = logging.getLogger("vllm.inferscale")

_ERASE_S = 30.0  # for captures on their way, of which an erasure must leave nothing
_MAX_WAIT_S = 30.0  # of a call that asks what became of captures
_MAX_THREADS = 4  # of a load; what it needs is bandwidth, which few threads use up


class WorkerSide:
    """Hooks are called by the worker's thread; the rank channel by threads of its own."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any, settings: Settings, rank: int, ranks: int) -> None:
        self._config = vllm_config
        self._cache_config = kv_cache_config
        self._settings = settings
        self._codec = model.store_codec(vllm_config, settings.store_codec)
        self._rank, self._n_ranks = rank, ranks
        self._records: RankRecords | None = None
        self._server: RankServer | None = None
        self._about: dict[str, Any] = {"ok": False, "reason": "not started"}
        self._writer: Writer | None = None
        self._reader: Reader | None = None
        self._block_size = 1
        self._failed_blocks: set[int] = set()
        self._acks = WorkerAcks()
        self._load_seconds: list[float] = []
        self._path: HostPath | DevicePath | None = None
        self._outbox = Outbox()

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
        with _on_all_processors():  # what it serves must not keep to the engine's first thread's processor
            self._server = RankServer(
                socket_path(self._settings.data_dir, self._rank), token, self._handlers()
            )

    def _open_store(self) -> None:
        whole = model.spec_dict(self._config)
        files = model.weight_files(self._config)
        bias = key_bias.read(files, whole) if model.adds_key_bias(self._config, whole) else []
        canonical = model.canonical_settings(self._config, whole, bool(bias))
        cache = str(self._settings.data_dir / "fingerprints")
        whole["fingerprint"] = _core.hf_fingerprint(files, canonical, cache)
        heads = self._config.model_config.get_num_kv_heads(self._config.parallel_config)
        self._shape = whole["shape"] | {"n_kv_heads": heads}  # of this rank
        self._spec = _core.ModelSpec.from_dict(whole)  # what the start-up checks write has no bias
        self._store_spec = _core.ModelSpec.from_dict(whole | {"key_bias": bias})
        self._max_positions = int(self._config.model_config.max_model_len)
        with _on_all_processors() as processors:
            # The engine's own threads, where it has any: between two of its own pieces of work they wait
            # without sleeping, and threads of ours would have to share their processors with them.
            openmp = _core.has_openmp()
            self._threads = min(_MAX_THREADS, torch.get_num_threads() if openmp else processors)
            store = _core.RecordStore(
                str(self._settings.data_dir / f"rank-{self._rank}"),
                self._settings.host_budget,
                self._settings.disk_budget,
                self._store_spec,
                self._codec,
                self._rank,
                self._n_ranks,
                self._max_positions,
                self._threads,
                openmp=openmp,
            )
        self._records = RankRecords(store)
        self._about |= {
            "fingerprint": whole["fingerprint"],
            "shape": whole["shape"],
            "rope": whole["rope"],
            "store_codec": self._codec,
            "load_tokens": self._load_tokens(),
            "token_bytes": self._records.store.token_bytes,
            "capture_tokens": 0,
        }

    def _load_tokens(self) -> int:
        """How many tokens' records the host budget holds at once: more cannot be loaded for a request."""
        return int(0.9 * self._settings.host_budget / self._records.store.token_bytes)

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
        rope = probe.check_rope(adapter, self._spec, self._about["rope"], self._max_positions)
        probe.check_cache(
            self._writer, self._reader, tensors, num_blocks, self._block_size,
            shape["n_kv_heads"], shape["head_dim_k"],
        )
        probe.check_rotation(
            adapter, rope, self._spec, self._about["shape"], self._max_positions
        )
        repeated = probe.RepeatedTokens(self._spec, self._max_positions)
        if tensors[0].device.type == "cuda":
            self._path = self._device_path(adapter, rope, tensors, num_blocks, repeated)
        else:
            self._path = HostPath(
                self._records, shape, self._block_size, self._writer, self._reader, tensors[0],
                self._cache_in_place(tensors, num_blocks), repeated, self._rank,
            )

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

    def _device_path(
        self, adapter: ModuleType, rope: Any, tensors: list[torch.Tensor], num_blocks: int,
        repeated: probe.RepeatedTokens,
    ) -> DevicePath:
        """Raises Refused where the core cannot use this GPU, or does other than the engine."""
        if not _core.has_cuda:
            raise model.Refused("the KV cache is on a GPU, and this build of InferScale has no CUDA")
        caches = layout.describe(tensors, num_blocks)
        probe.check_device(
            adapter, rope, self._spec, self._codec, caches, tensors, self._writer, self._reader,
            num_blocks, self._block_size, self._max_positions, (self._rank, self._n_ranks), cuda_stream,
        )
        store = self._records.store
        capture_tokens = max_capture_tokens(store.token_bytes, self._max_positions)
        free_gpu, _ = torch.cuda.mem_get_info(tensors[0].device)
        store.attach_device(
            caches,
            gpu_budget=budget_bytes(self._settings.gpu_budget, free_gpu),
            pinned_budget=budget_bytes(self._settings.pinned_budget, free_host_memory()),
            max_load_tokens=max(MAX_LOAD_TOKENS, self._max_positions),
            max_capture_tokens=capture_tokens,
        )
        self._about["load_tokens"] = int(0.9 * store.device_tokens)
        self._about["capture_tokens"] = capture_tokens
        return DevicePath(
            self._records, self._block_size, repeated, self._rank, capture_tokens, cuda_stream, self._outbox,
        )

    def _handlers(self) -> dict[str, Any]:
        handlers: dict[str, Any] = {"hello": lambda _: self._about}
        if self._records is not None:
            handlers |= {
                "records": self._records.list_records,
                "erase": self._erase,
                "check": self._records.check,
                "captured": lambda message: self._outbox.take(
                    int(message["after"]), min(_MAX_WAIT_S, float(message["wait_s"]))
                ),
                "verify": self._records.verify,
                "stats": self._records.stats,
            }
        return handlers

    def _erase(self, message: dict[str, Any]) -> dict[str, int]:
        """Captures that had begun are refused or erased, and their bytes gone, when this returns."""
        erased = self._records.erase(message)
        if self._path is not None:
            self._path.settle(_ERASE_S)
        return erased

    # -- loading and capturing -------------------------------------------------------------------

    def load(self, meta: StepMetadata) -> None:
        """Places the records of all requests of the step; one composition. What fails is reported by
        block, and the other requests are not touched by it."""
        if not meta.loads:
            return
        begun = time.perf_counter()
        try:
            self._path.load(meta.loads)
        except Exception as error:
            if len(meta.loads) == 1:
                self._fail(meta.loads[0], error)
            else:
                for job in meta.loads:  # one bad record must not cost the others theirs
                    try:
                        self._path.load([job])
                    except Exception as reason:
                        self._fail(job, reason)
        self._load_seconds.append(time.perf_counter() - begun)

    def _fail(self, job: LoadJob, error: Exception) -> None:
        self._failed_blocks.update(job.block_ids)
        self._acks.failed_loads.append(
            (self._rank, job.request_id, f"{type(error).__name__}: {error}")
        )
        for item in job.items():
            if not self._records.store.contains(item.key):
                self._acks.lost.append((self._rank, item.key))

    def save(self, meta: StepMetadata) -> None:
        """Takes the rows that the step's forward pass has completed, or will have."""
        if meta.captures:
            self._path.save(meta.captures, self._acks)

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
        if self._path is not None:
            self._path.close()
        self._outbox.close()
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
