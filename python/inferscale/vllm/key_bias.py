"""What a model adds to its keys before it rotates them, from its weight files."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

logger = logging.getLogger("vllm.inferscale")

_NAME = re.compile(r"(?:model\.)?layers\.(0|[1-9][0-9]{0,3})\.self_attn\.k_proj\.bias")
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_LARGEST = 1e4  # keys with more would not fit into a cache of f16 either, and what is behind it would be lost


class _Unexpected(Exception):
    pass


def read(files: list[str], spec: dict[str, Any]) -> list[float]:
    """[layers * KV heads * head size] of all ranks' heads, as ``ModelSpec.from_dict`` takes it; empty where
    there is none, or where the files are not as expected: then records hold keys with the bias.

    ``files``: the weight files of a model that ``model.adds_key_bias``; ``spec``: as ``model.spec_dict`` has it.
    Raises nothing that they cause.
    """
    try:
        bias = _read(files, spec["shape"])
    except Exception as reason:
        logger.info("InferScale: records hold keys with their bias, if there is one: %s", reason)
        return []
    if bias is None or not bias.any():
        return []
    return bias.flatten().tolist()


def _read(files: list[str], shape: dict[str, int]) -> torch.Tensor | None:
    """[layers, elements of a key]; nothing when no layer has one."""
    layers: dict[int, torch.Tensor] = {}
    for number, bias in _tensors(files):
        if number in layers:
            raise _Unexpected(f"two biases of layer {number}")
        if bias.shape != (shape["n_kv_heads"] * shape["head_dim_k"],) or bias.dtype not in _DTYPES:
            raise _Unexpected(f"the bias of layer {number} is {bias.dtype} {tuple(bias.shape)}")
        if not bias.isfinite().all():
            raise _Unexpected(f"the bias of layer {number} is not finite")
        if bias.abs().max() > _LARGEST:
            raise _Unexpected(f"the bias of layer {number} is larger than {_LARGEST:g}")
        layers[number] = bias.float()
    if not layers:
        return None
    if sorted(layers) != list(range(shape["n_layers"])):
        raise _Unexpected(f"{len(layers)} of {shape['n_layers']} layers have a bias")
    return torch.stack([layers[number] for number in sorted(layers)])


def _tensors(files: list[str]) -> Iterator[tuple[int, torch.Tensor]]:
    """Layer and bias; nothing else of the files is read but their directories."""
    from safetensors import safe_open

    for path in files:
        if Path(path).suffix != ".safetensors":
            raise _Unexpected(f"{Path(path).name} is not a safetensors file")
        with safe_open(path, framework="pt", device="cpu") as tensors:
            for name in tensors.keys():
                if match := _NAME.fullmatch(name):
                    yield int(match[1]), tensors.get_tensor(name)
