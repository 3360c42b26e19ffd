"""The class that vLLM loads: hands its calls to the role's side, and lets no exception out."""

from __future__ import annotations

import copy
import logging
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)
from vllm.version import __version__ as vllm_version

from inferscale.vllm import versions
from inferscale.vllm.guard import Faults, guarded
from inferscale.vllm.messages import StepMetadata, WorkerAcks
from inferscale.vllm.settings import load_settings
from inferscale.vllm.start import start_scheduler
from inferscale.vllm.stats import InferScalePromMetrics, InferScaleStats
from inferscale.vllm.worker import WorkerSide

logger = logging.getLogger("vllm.inferscale")


class InferScaleConnector(KVConnectorBase_V1):
    """Serves injected memory, or nothing: when anything is not as it was proved to work, vLLM runs as
    if there were no connector, and one line says why. One instance per role and process."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any = None) -> None:
        """Raises ValueError for settings that are not known, so that vLLM does not start."""
        super().__init__(vllm_config, role, kv_cache_config)
        self.faults = Faults()
        self._reported_faults = 0
        self._settings = load_settings(self._kv_transfer_config.kv_connector_extra_config)
        self._adapter = versions.find_adapter(vllm_version)
        self._reason = "" if self._adapter else versions.unknown_version(vllm_version)
        self._worker: WorkerSide | None = None
        self._lost_blocks: set[int] = set()  # worker: not loaded, not yet reported
        self._unplanned: list[int] = []  # scheduler: promised, but no load was planned
        self._scheduler: Any = None
        self._control: Any = None
        if role == KVConnectorRole.SCHEDULER:
            self._start_scheduler()

    @property
    def requires_kv_delivery(self) -> bool:
        return False

    @property
    def prefer_cross_layer_blocks(self) -> bool:
        return False

    # -- worker ----------------------------------------------------------------------------------

    @guarded()
    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        parallel = self._vllm_config.parallel_config
        worker = WorkerSide(
            self._vllm_config, self._kv_cache_config, self._settings, parallel.rank,
            parallel.tensor_parallel_size,
        )
        worker.start(self._adapter, self._reason, kv_caches)
        self._worker = worker

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """What is not loaded, for whatever reason, is reported: those rows hold anything."""
        meta = self._step()
        if meta is None:
            return
        self._lost_blocks.update(meta.lost_blocks)
        try:
            if meta.loads:
                self._worker.load(meta)
        except Exception as error:
            self.faults.note("start_load_kv", error)
            self._lost_blocks.update(block for job in meta.loads for block in job.block_ids)

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        return

    @guarded()
    def wait_for_save(self) -> None:
        meta = self._step()
        if meta is not None and self._worker is not None:
            self._worker.save(meta)

    def get_block_ids_with_load_errors(self) -> set[int]:
        lost, self._lost_blocks = self._lost_blocks, set()
        return lost | self._worker.take_failed_blocks() if self._worker is not None else lost

    @guarded()
    def build_connector_worker_meta(self) -> WorkerAcks | None:
        return self._worker.take_acks() if self._worker is not None else None

    def _step(self) -> StepMetadata | None:
        meta = self._connector_metadata
        return meta if isinstance(meta, StepMetadata) else None

    # -- scheduler -------------------------------------------------------------------------------

    @guarded()
    def _start_scheduler(self) -> None:
        self._scheduler, self._control = start_scheduler(
            self._vllm_config, self._kv_cache_config, self._settings, self._adapter, self._reason
        )

    @guarded()
    def on_new_request(self, request: Any) -> None:
        _keep_from_ranks(request)
        if self._scheduler is not None:
            self._scheduler.on_new_request(request)

    @guarded(lambda: (0, False))
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        if self._scheduler is None:
            return 0, False
        return self._scheduler.matched_tokens(request, num_computed_tokens), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Tokens that were promised count as computed: an exception here must end the request."""
        if self._scheduler is None:
            return
        block_ids = list(blocks.get_block_ids()[0])
        try:
            self._scheduler.allocated(request, block_ids, num_external_tokens)
        except Exception as error:
            self.faults.note("update_state_after_alloc", error)
            if num_external_tokens > 0:
                self._unplanned += block_ids

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        if self._scheduler is None:
            return StepMetadata()
        lost, self._unplanned = self._unplanned, []
        try:
            meta = self._scheduler.build_meta(scheduler_output)
        except Exception as error:
            self.faults.note("build_connector_meta", error)
            meta = StepMetadata()
            lost += self._scheduler.drop_step()
        meta.lost_blocks = lost
        return meta

    @guarded()
    def update_connector_output(self, connector_output: Any) -> None:
        if self._scheduler is not None:
            acks = connector_output.kv_connector_worker_meta
            self._scheduler.worker_output(
                acks if isinstance(acks, WorkerAcks) else None,
                set(connector_output.invalid_block_ids or ()),
            )

    @guarded(lambda: (False, None))
    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        if self._scheduler is None:
            return False, None
        return False, self._scheduler.finished(request)

    @guarded()
    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        if self._scheduler is not None:
            self._scheduler.bind_block_pool(gpu_block_pool)

    # -- both ------------------------------------------------------------------------------------

    @guarded()
    def get_kv_connector_stats(self) -> InferScaleStats | None:
        counters: dict[str, int] = self._scheduler.take_counters() if self._scheduler else {}
        errors = sum(self.faults.counts().values())
        if errors > self._reported_faults:
            counters["hook_errors"] = errors - self._reported_faults
            self._reported_faults = errors
        seconds = self._worker.take_load_seconds() if self._worker is not None else []
        stats = InferScaleStats.of(counters, seconds)
        return None if stats.is_empty() else stats

    @guarded()
    def shutdown(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._scheduler is not None:
            self._scheduler.close()
        if self._worker is not None:
            self._worker.close()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> InferScaleStats:
        return InferScaleStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any
    ) -> InferScalePromMetrics:
        return InferScalePromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)


def _keep_from_ranks(request: Any) -> None:
    """Our parameters stay with the request's own copy. vLLM pickles the sampling parameters for each rank: that
    takes time, and what is nested very deeply would end the engine."""
    sampling = getattr(request, "sampling_params", None)
    extra = getattr(sampling, "extra_args", None)
    if extra and "kv_transfer_params" in extra:
        request.sampling_params = copy.copy(sampling)  # it may be shared with whoever sent the request
        request.sampling_params.extra_args = {
            name: value for name, value in extra.items() if name != "kv_transfer_params"
        }
