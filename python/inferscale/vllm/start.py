"""Brings up the scheduler's role once the ranks are there."""

from __future__ import annotations

import logging
from types import ModuleType
from typing import Any

from vllm.version import __version__ as vllm_version

from inferscale import _core
from inferscale.vllm import model
from inferscale.vllm.control import ControlServer, announce
from inferscale.vllm.operations import Operations
from inferscale.vllm.ranks import Ranks
from inferscale.vllm.scheduler import SchedulerSide
from inferscale.vllm.settings import Settings

logger = logging.getLogger("vllm.inferscale")


def start_scheduler(
    vllm_config: Any, kv_cache_config: Any, settings: Settings, adapter: ModuleType | None, reason: str
) -> tuple[SchedulerSide | None, ControlServer]:
    """The scheduler's side and the control channel. The ranks have registered their caches, so they
    answer. Without injection the side is there all the same when the stores are, so that deletes
    reach what lies in them. Raises OSError (control channel)."""
    token = _core.control_token(settings.secret)
    ranks = Ranks(settings.data_dir, token, vllm_config.parallel_config.tensor_parallel_size)
    side, about = None, {}
    try:
        answers = ranks.hello()
        about = answers[0]
        reason = reason or _disagreement(answers)
        if "fingerprint" in about:
            block_size = int(kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size)
            side = SchedulerSide(
                settings, adapter, about["fingerprint"], block_size,
                int(kv_cache_config.num_blocks), ranks, injecting=not reason,
                load_tokens=min(int(answer["load_tokens"]) for answer in answers),
                token_bytes=int(about["token_bytes"]),
                capture_tokens=min(int(answer["capture_tokens"]) for answer in answers),
            )
    except Exception as error:
        logger.error("InferScale: start failed", exc_info=error)
        reason, side = reason or f"{type(error).__name__}: {error}", None
    if reason:
        logger.warning("InferScale: no injection, serving plain: %s", reason)
    info = _info(vllm_config, about, adapter, reason, len(ranks))
    control = ControlServer(
        settings.control_host, settings.control_port, token, Operations(info, side).routes()
    )
    announce(settings.data_dir, control.url, info["fingerprint"])
    if not reason:
        logger.info(
            "InferScale: injection is on, %d records to verify, control channel at %s",
            len(side.book.unverified_keys()), control.url,
        )
        side.verification.start()
    return side, control


def _disagreement(answers: list[dict[str, Any]]) -> str:
    """Why not every rank can inject; empty when all can, and are of one model."""
    for rank, answer in enumerate(answers):
        if not answer["ok"]:
            return str(answer["reason"]) if len(answers) == 1 else f"rank {rank}: {answer['reason']}"
    if len({answer["fingerprint"] for answer in answers}) != 1:
        return "the ranks have loaded different models"
    return ""


def _info(
    vllm_config: Any, about: dict[str, Any], adapter: ModuleType | None, reason: str, n_ranks: int
) -> dict[str, Any]:
    return {
        "protocol": 1,
        "vllm": vllm_version,
        "model": str(vllm_config.model_config.served_model_name or vllm_config.model_config.model),
        "fingerprint": about.get("fingerprint", ""),
        "shape": about.get("shape", {}),
        "rope": about.get("rope", {}),
        "store_codec": about.get("store_codec", ""),
        "cache_dtype": model.cache_dtype(vllm_config),
        "ranks": n_ranks,
        "injection": not reason,
        "reason": reason,
        "max_model_len": int(vllm_config.model_config.max_model_len),
        "vocab_size": int(vllm_config.model_config.get_vocab_size()),
        "block_size": int(vllm_config.cache_config.block_size),
        "adapter": adapter.NAME if adapter is not None else "",
    }
