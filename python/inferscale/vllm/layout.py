"""Rows of vLLM's paged KV cache: writing tokens' keys and values, and reading them back.

Slot ``s`` of a table is ``block_id * block_size + offset``. Keys and values are ``[T, H, D]``.
No class here synchronises: calls are made on the worker's thread, on its current stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from inferscale.vllm.messages import LoadJob


class Writer(Protocol):
    def write(
        self, layer: int, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor
    ) -> None: ...


class Reader(Protocol):
    pairs: list[tuple[torch.Tensor, torch.Tensor]]
    """Of each layer, keys and values as views ``[blocks, block, H, D]`` of its cache."""

    def read(self, layer: int, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]: ...


def split_slots(table: Sequence[int], first_block: int, begin: int, end: int, block_size: int) -> np.ndarray:
    """Slots of tokens ``[begin, end)``, int64; ``table[0]`` is the id of the prompt's block ``first_block``."""
    blocks = np.asarray(table, dtype=np.int64)[:, None] * block_size
    slots = (blocks + np.arange(block_size, dtype=np.int64)).reshape(-1)
    return slots[begin - first_block * block_size : end - first_block * block_size]


def place_jobs(jobs: list[LoadJob], block_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Which of all tokens of the jobs' items are wanted, and the slots they go to."""
    rows, slots, offset = [], [], 0
    for job in jobs:
        first = job.items()[0].begin
        rows.append(np.arange(offset + job.begin - first, offset + job.end - first))
        slots.append(split_slots(job.block_ids, job.first_block, job.begin, job.end, block_size))
        offset += len(job.tokens)
    return np.concatenate(rows), np.concatenate(slots)


class EngineWriter:
    """Writes through the engine's own cache writer, which knows its layout and quantisation."""

    def __init__(self, layers: list[Any], caches: list[torch.Tensor]) -> None:
        """Raises AttributeError when a layer's backend has no ``do_kv_cache_update``."""
        self._layers = layers
        self._caches = caches
        for layer in layers:
            layer.impl.do_kv_cache_update  # noqa: B018 - there or not

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
        module, cache = self._layers[layer], self._caches[layer]
        module.impl.do_kv_cache_update(
            module, key.to(cache.dtype).contiguous(), value.to(cache.dtype).contiguous(), cache, slots
        )


class CpuReader:
    """Reads the CPU backend's blocks as x86 without AMX has them.

    A block of one head holds its keys as ``[D][block]``, then its values as ``[block][D]``, under
    the shape ``(blocks, H, block, 2 D)``.
    """

    def __init__(self, caches: list[torch.Tensor]) -> None:
        """Raises ValueError for another shape."""
        self.pairs = []
        for cache in caches:
            if cache.dim() != 4 or cache.shape[3] % 2 or not _dense_blocks(cache):
                raise ValueError(f"CPU cache of shape {tuple(cache.shape)} {cache.stride()}")
            blocks, heads, size, width = cache.shape
            parts = cache.view(blocks, heads, 2, size * (width // 2))
            keys = parts[:, :, 0].unflatten(-1, (width // 2, size)).permute(0, 3, 1, 2)
            values = parts[:, :, 1].unflatten(-1, (size, width // 2)).permute(0, 2, 1, 3)
            self.pairs.append((keys, values))

    def read(self, layer: int, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return _read(self.pairs[layer], slots)


def _read(pair: tuple[torch.Tensor, torch.Tensor], slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    keys, values = pair
    size = keys.shape[1]
    return keys[slots // size, slots % size], values[slots // size, slots % size]


def _dense_blocks(cache: torch.Tensor) -> bool:
    """Whether each block is one dense run: only then do the last two dimensions say nothing."""
    _, heads, size, width = cache.shape
    return cache.stride()[1:] == (size * width, width, 1) and cache.stride(0) >= heads * size * width


class StridedLayout:
    """Reads and writes caches in which a token's row of a head is contiguous, by strides alone.

    Three families of shapes (the order in memory is free):
    ``(2, B, block, H, D)`` - ``(B, 2, block, H, D)`` - ``(B, H, block, 2 D)``, K before V.
    """

    def __init__(self, caches: list[torch.Tensor], num_blocks: int) -> None:
        """``num_blocks``: the scheduler's; a tensor may be split into smaller kernel blocks.

        Raises ValueError for a shape of none of the families.
        """
        self.pairs = [_strided_pair(cache, num_blocks) for cache in caches]

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
        keys, values = self.pairs[layer]
        size = keys.shape[1]
        keys[slots // size, slots % size] = key.to(keys.dtype)
        values[slots // size, slots % size] = value.to(values.dtype)

    def read(self, layer: int, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return _read(self.pairs[layer], slots)


def _strided_pair(cache: torch.Tensor, num_blocks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Views ``[blocks, block, H, D]`` of keys and values."""
    if cache.dim() == 5 and cache.shape[0] == 2 and cache.shape[1] % num_blocks == 0:
        keys, values = cache[0], cache[1]
    elif cache.dim() == 5 and cache.shape[1] == 2 and cache.shape[0] % num_blocks == 0:
        keys, values = cache[:, 0], cache[:, 1]
    elif cache.dim() == 4 and cache.shape[3] % 2 == 0 and cache.shape[0] % num_blocks == 0:
        half = cache.shape[3] // 2
        keys, values = cache[..., :half].transpose(1, 2), cache[..., half:].transpose(1, 2)
    else:
        raise ValueError(f"KV cache of shape {tuple(cache.shape)} is of no known layout")
    if keys.stride(3) != 1 or values.stride(3) != 1:
        raise ValueError(f"KV cache with strides {cache.stride()}: a head's row is not contiguous")
    return keys, values


_CODECS = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32"}


def describe(caches: list[torch.Tensor], num_blocks: int) -> dict[str, Any]:
    """The caches as the core's CacheLayout: addresses of the layers, strides in bytes, slots as rows.

    Raises ValueError for a shape of no known family, for layers that differ, and for element types
    that records do not have.
    """
    pairs = [_strided_pair(cache, num_blocks) for cache in caches]
    dtype = caches[0].dtype
    if dtype not in _CODECS:
        raise ValueError(f"KV cache of {dtype}")
    if any(_geometry(pair) != _geometry(pairs[0]) for pair in pairs):
        raise ValueError("the layers' KV caches have different shapes or strides")
    keys, values = pairs[0]
    blocks, size, heads, dim = keys.shape
    return {
        "dtype": _CODECS[dtype],
        "device": f"cuda:{caches[0].device.index or 0}",
        "n_kv_heads": heads,
        "head_dim": dim,
        "k": [key.data_ptr() for key, _ in pairs],
        "v": [value.data_ptr() for _, value in pairs],
        "k_strides": _byte_strides(keys),
        "v_strides": _byte_strides(values),
        "rows_per_block": size,
        "n_rows": blocks * size,
    }


def _geometry(pair: tuple[torch.Tensor, torch.Tensor]) -> tuple[Any, ...]:
    keys, values = pair
    return keys.shape, keys.stride(), values.shape, values.stride(), keys.dtype, keys.device


def _byte_strides(rows: torch.Tensor) -> tuple[int, int, int]:
    """(block, row, head) of a view ``[blocks, block, H, D]``."""
    return tuple(rows.stride(axis) * rows.element_size() for axis in range(3))
