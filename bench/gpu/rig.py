"""A vLLM engine in this process with random weights, its requests, and statistics over them."""

from __future__ import annotations

import itertools
import os
import random
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness import Client  # of tests/vllm
from shapes import SHAPES, write_shape

HEADER, FACT, QUESTION = 40, 28, 30  # tokens


@dataclass
class Options:
    shape: str
    folder: Path
    model: str = ""  # a folder with weights of that shape; random ones without
    dtype: str = "bfloat16"
    eager: bool = False
    gpu_memory_utilization: float = 0.5
    max_model_len: int = 4096
    codec: str = "auto"  # of the records
    gpu_budget: Any = "8GiB"
    pinned_budget: Any = "6GiB"
    host_budget: Any = "8GiB"
    connector: bool = True
    block_size: int = 0  # vLLM's own


def _randomise(model: Any) -> None:
    """vLLM's dummy weights are nearly equal, and so would be all answers: matrices normal(0, 0.02)."""
    import torch

    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.02)
            elif name.endswith("bias"):
                parameter.normal_(0.0, 0.02)
            else:
                parameter.fill_(1.0)


def _watch_caches() -> dict[str, Any]:
    """The KV caches by layer, once the connector has been given them."""
    from inferscale.vllm.worker import WorkerSide

    caches: dict[str, Any] = {}
    start = WorkerSide.start

    def watched(self: Any, adapter: Any, reason: str, given: dict[str, Any]) -> None:
        caches.update(given)
        start(self, adapter, reason, given)

    WorkerSide.start = watched
    return caches


class Rig:
    """One engine; requests are one at a time or driven by ``step``. Times are in milliseconds."""

    def __init__(self, options: Options) -> None:
        os.environ |= {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
            "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
            "VLLM_HOST_IP": "127.0.0.1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }
        begun = time.perf_counter()
        from vllm import LLM
        from vllm.config import KVTransferConfig

        from inferscale.vllm import model as connector_model

        self.import_s = time.perf_counter() - begun
        if options.model:
            folder = Path(options.model)
        else:
            folder = write_shape(options.shape, options.folder / "models")
            # Random weights are in no file; the shape alone tells the models of these measurements apart.
            connector_model.weight_files = lambda _: [str(folder / "config.json")]
        self.data_dir = options.folder / f"data-{options.shape}"
        extra = {
            "data_dir": str(self.data_dir), "host_budget": options.host_budget,
            "disk_budget": 0, "store_codec": options.codec, "gpu_budget": options.gpu_budget, "pinned_budget": options.pinned_budget,
        }
        transfer = KVTransferConfig(
            kv_connector="InferScaleConnector", kv_connector_module_path="inferscale.vllm",
            kv_role="kv_both", kv_connector_extra_config=extra,
        )
        begun = time.perf_counter()
        settings: dict[str, Any] = {
            "model": str(folder), "load_format": "auto" if options.model else "dummy", "skip_tokenizer_init": True,
            "dtype": options.dtype, "max_model_len": options.max_model_len, "seed": 0,
            "enforce_eager": options.eager, "enable_prefix_caching": True, "disable_log_stats": True,
        }
        if os.environ.get("INFERSCALE_BENCH_CPU"):
            settings |= {"kv_cache_memory_bytes": 256 << 20, "block_size": 32, "max_num_batched_tokens": 4096}
        else:
            settings["gpu_memory_utilization"] = options.gpu_memory_utilization
        if options.block_size:
            settings["block_size"] = options.block_size
        if options.connector:
            settings["kv_transfer_config"] = transfer
        self.caches = _watch_caches()
        self.llm = LLM(**settings)
        if not options.model:
            self.llm.apply_model(_randomise)
        self.start_s = time.perf_counter() - begun
        self.engine = self.llm.llm_engine
        self.vocabulary = SHAPES[options.shape]["vocab_size"]
        self.shape = SHAPES[options.shape]
        self.names = itertools.count()

    @property
    def scheduler(self) -> Any:
        return self.engine.engine_core.engine_core.scheduler

    @property
    def side(self) -> Any:
        return self.scheduler.connector._scheduler

    @property
    def worker(self) -> Any:
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return get_kv_transfer_group()._worker

    def reason(self) -> str:
        """Why there is no injection; empty when there is."""
        about = self.worker._about
        return "" if about["ok"] else about["reason"]

    def client(self) -> Client:
        secret = (self.data_dir / "secret").read_bytes()
        return Client(secret, self.side._fingerprint, names=self.names)

    def tokens(self, draw: random.Random, count: int) -> list[int]:
        return [draw.randrange(100, self.vocabulary) for _ in range(count)]

    def sampling(self, max_tokens: int, params: Any = None, logprobs: int | None = None) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        extra = {"kv_transfer_params": {"inferscale": params}} if params is not None else None
        return SamplingParams(
            temperature=0.0, max_tokens=max_tokens, ignore_eos=True, detokenize=False,
            extra_args=extra, logprobs=logprobs, output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def add(self, ids: list[int], salt: str | None, sampling: Any) -> str:
        name = f"q{next(self.names)}"
        prompt: dict[str, Any] = {"prompt_token_ids": ids}
        if salt is not None:
            prompt["cache_salt"] = salt
        self.engine.add_request(name, prompt, sampling)
        return name

    def one(self, ids: list[int], salt: str | None, sampling: Any) -> tuple[Any, float]:
        """The output of one request on an otherwise idle engine, and how long it took."""
        begun = time.perf_counter()
        self.add(ids, salt, sampling)
        done = None
        while done is None:
            for output in self.engine.step():
                if output.finished:
                    done = output
        return done, 1e3 * (time.perf_counter() - begun)

    def drain(self) -> list[Any]:
        """Runs until there is nothing to do."""
        outputs = []
        scheduler = self.llm.llm_engine.engine_core.engine_core.scheduler
        while self.engine.has_unfinished_requests():
            outputs += [output for output in self.engine.step() if output.finished]
            if not scheduler.running and scheduler.has_unfinished_requests():
                time.sleep(0.001)  # all wait for room for their captures; vLLM's own loop does the same
        return outputs


def reply(output: Any) -> dict[str, Any]:
    return (output.kv_transfer_params or {}).get("inferscale", {})


def summary(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    at = lambda share: round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)  # noqa: E731
    return {
        "n": len(ordered), "median": round(statistics.median(ordered), 3), "mean": round(statistics.fmean(ordered), 3),
        "p10": at(0.1), "p90": at(0.9), "p95": at(0.95), "p99": at(0.99),
    }


def ratio_interval(above: list[float], below: list[float], draws: int = 2000) -> dict[str, float]:
    """Ratio of the medians, with a 95 % bootstrap interval over the rounds (pairs of one round stay)."""
    one, other = np.asarray(above), np.asarray(below)
    count = min(len(one), len(other))
    one, other = one[:count], other[:count]
    picks = np.random.default_rng(0).integers(0, count, (draws, count))
    ratios = np.median(one[picks], axis=1) / np.median(other[picks], axis=1)
    low, high = np.percentile(ratios, [2.5, 97.5])
    return {
        "ratio": round(float(np.median(one) / np.median(other)), 4),
        "low": round(float(low), 4), "high": round(float(high), 4),
    }
