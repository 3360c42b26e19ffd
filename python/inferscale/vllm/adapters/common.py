"""What the known versions have in common; an adapter overrides what differs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from inferscale.vllm.layout import CpuReader, EngineWriter, Reader, StridedLayout, Writer

__all__ = [  # what an adapter is
    "Scheduled",
    "attention_layers",
    "make_reader",
    "make_writer",
    "resalt",
    "rope_modules",
    "rope_table",
    "rotate",
    "scheduled_requests",
]


@dataclass(frozen=True)
class Scheduled:
    """A request that runs in this step."""

    request_id: str
    computed: int  # tokens whose rows are there before the step
    scheduled: int  # tokens computed in the step
    new_block_ids: list[int] | None  # appended to its table; None: the table is what it was told


def scheduled_requests(output: Any) -> Iterator[Scheduled]:
    """The requests of a SchedulerOutput. Those admitted in this step have no ``new_block_ids``: the
    connector was given their whole table when their blocks were allocated."""
    for new in output.scheduled_new_reqs:
        yield Scheduled(
            new.req_id, new.num_computed_tokens, output.num_scheduled_tokens[new.req_id], None
        )
    cached = output.scheduled_cached_reqs
    for index, request_id in enumerate(cached.req_ids):
        blocks = cached.new_block_ids[index]
        resumed = request_id in cached.resumed_req_ids
        yield Scheduled(
            request_id,
            cached.num_computed_tokens[index],
            output.num_scheduled_tokens[request_id],
            None if resumed or blocks is None else list(blocks[0]),
        )


def resalt(request: Any, salt: str) -> None:
    """Gives a request that was just added another cache salt, and the block hashes that follow.

    Nothing has used the hashes yet: the hook that calls this runs before the request can be
    scheduled, on the scheduler's thread.
    """
    request.cache_salt = salt
    request.block_hashes.clear()
    request.update_block_hashes()


def rope_modules() -> list[Any]:
    """The rotary embeddings of the loaded model, each once."""
    from vllm.model_executor.layers.rotary_embedding import _ROPE_DICT

    return list({id(module): module for module in _ROPE_DICT.values()}.values())


def rope_table(module: Any) -> torch.Tensor:
    """[positions, cos | sin] of a rotary embedding in fp32, computed anew."""
    return module._compute_cos_sin_cache().float().cpu()


def rotate(module: Any, positions: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """``key`` [T, H, D] in fp32, as the engine rotates it at ``positions``."""
    flat = key.reshape(key.shape[0], -1).clone()
    _, rotated = module.forward_static(
        positions, flat.clone(), flat, module.head_size, module.rotary_dim,
        rope_table(module), module.is_neox_style,
    )
    return rotated.reshape(key.shape)


def attention_layers(vllm_config: Any, names: list[str]) -> list[Any]:
    """The attention modules behind the names of the caches."""
    context = vllm_config.compilation_config.static_forward_context
    return [context[name] for name in names]


def make_writer(layers: list[Any], caches: list[torch.Tensor]) -> Writer:
    return EngineWriter(layers, caches)


def make_reader(caches: list[torch.Tensor], num_blocks: int) -> Reader:
    if caches[0].device.type == "cpu":
        return CpuReader(caches)
    return StridedLayout(caches, num_blocks)
