"""Counters of both roles, through vLLM's own statistics and ``/metrics``."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

_LOADS = "load_seconds"  # a list of measurements; everything else is a number
_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
_COUNTERS = {
    "injected_tokens": "Prompt tokens placed from records.",
    "injected_requests": "Requests into which records were placed.",
    "matched_requests": "Requests whose records were found, in the prefix cache or not.",
    "captures": "Records captured and acknowledged by all ranks.",
    "resalted": "Requests whose cache_salt was missing or wrong and was set.",
    "readmitted": "Requests admitted again after they were preempted.",
    "damaged_records": "Records of earlier runs that were damaged and dropped.",
    "failed_loads": "Loads that failed on a rank.",
    "hook_errors": "Exceptions that were stopped at a hook.",
}
_FALLBACK = "fallback:"


class InferScaleStats(KVConnectorStats):
    """``data``: numbers by name, fallbacks as ``fallback:<reason>``, and ``load_seconds``."""

    @classmethod
    def of(cls, counters: dict[str, int], load_seconds: list[float]) -> "InferScaleStats":
        data: dict[str, Any] = dict(counters)
        if load_seconds:
            data[_LOADS] = list(load_seconds)
        return cls(data=data)

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for name, value in other.data.items():
            if name == _LOADS:
                self.data[name] = [*self.data.get(name, []), *value]
            else:
                self.data[name] = self.data.get(name, 0) + value
        return self

    def reduce(self) -> dict[str, int | float]:
        summary: dict[str, int | float] = {
            f"InferScale {name}": value for name, value in self.data.items() if name != _LOADS
        }
        loads = self.data.get(_LOADS, [])
        if loads:
            summary["InferScale loads"] = len(loads)
            summary["InferScale mean load (ms)"] = round(1000 * sum(loads) / len(loads), 3)
        return summary

    def is_empty(self) -> bool:
        return not self.data


class InferScalePromMetrics(KVConnectorPromMetrics):
    """Prometheus metrics ``vllm:inferscale_*``, labelled as vLLM's own."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {
            name: self._counter_cls(
                name=f"vllm:inferscale_{name}", documentation=text, labelnames=labelnames
            )
            for name, text in _COUNTERS.items()
        }
        self._fallbacks = self._counter_cls(
            name="vllm:inferscale_fallbacks",
            documentation="Records of requests that were served as text, by reason.",
            labelnames=[*labelnames, "reason"],
        )
        self._load_seconds = self._histogram_cls(
            name="vllm:inferscale_load_seconds",
            documentation="Time a rank takes to compose and write the records of a step.",
            labelnames=labelnames,
            buckets=_BUCKETS,
        )

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        labels = self.per_engine_labelvalues[engine_idx]
        for name, value in transfer_stats_data.items():
            if name == _LOADS:
                for seconds in value:
                    self._load_seconds.labels(*labels).observe(seconds)
            elif name.startswith(_FALLBACK):
                self._fallbacks.labels(*labels, name.removeprefix(_FALLBACK)).inc(value)
            elif name in self._counters:
                self._counters[name].labels(*labels).inc(value)
