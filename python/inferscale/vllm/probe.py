"""Start-up checks: injection is on only when the engine's cache and rotation were seen to be what
this package takes them for."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch

from inferscale import _core
from inferscale.vllm.layout import Reader, Writer, split_slots
from inferscale.vllm.model import Refused

# The engine's process may have other defaults.
_PLAIN: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}
_PROBE_TOKENS = 5
_SHIFT = 3  # positions between capture and composition
_CODECS = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
# What rounding may take from a key, beside the largest: both rows of a pair were rounded once.
_ROUNDING = {torch.float32: 2.0**-8, torch.float16: 2.0**-6, torch.bfloat16: 2.0**-4}


def check_rope(adapter: ModuleType, spec: Any, rope: dict[str, Any], max_positions: int) -> Any:
    """The model's rotary embedding. Raises Refused unless its own tables are those of the RopeSpec.

    vLLM computes angles in fp32, so that they are off by up to 2^-23 of the position.
    """
    modules = adapter.rope_modules()
    if len(modules) != 1:
        raise Refused(f"the model has {len(modules)} rotary embeddings; supported is one")
    module = modules[0]
    if bool(module.is_neox_style) != (rope["pairing"] == "halves"):
        raise Refused("the model's rotary pairs are not those of its family")
    theirs = adapter.rope_table(module).numpy()
    positions = min(max_positions, theirs.shape[0])
    if positions < max_positions:
        raise Refused(f"the model's rotary table ends at position {positions}, not {max_positions}")
    cos, sin = _core.rope_table(spec, positions)
    ours = np.concatenate([np.asarray(cos), np.asarray(sin)], axis=1)
    if ours.shape != theirs[:positions].shape:
        raise Refused(f"the model rotates {theirs.shape[1]} elements of a head, not {ours.shape[1]}")
    bound = 1e-6 + 2.0**-22 * np.arange(positions, dtype=np.float64)[:, None]
    excess = np.abs(ours.astype(np.float64) - theirs[:positions]) / bound
    if excess.max() > 1.0:
        position = int(np.argmax(excess.max(axis=1)))
        raise Refused(f"the model's rotary table is not that of its configuration at {position}")
    return module


def check_cache(
    writer: Writer, reader: Reader, caches: list[torch.Tensor], num_blocks: int, block_size: int,
    heads: int, head_dim: int,
) -> None:
    """Writes a random pattern to the last block, reads it back in every layer, and zeroes it.

    Raises Refused when a layer does not give it back. The engine has not served anything yet.
    """
    block = num_blocks - 1
    slots = torch.from_numpy(split_slots([block], 0, 0, block_size, block_size)).to(caches[0].device)
    generator = torch.Generator("cpu").manual_seed(1)
    shape = (block_size, heads, head_dim)
    zeros = torch.zeros(shape, dtype=caches[0].dtype, device=caches[0].device)
    for layer, cache in enumerate(caches):
        key = torch.randn(shape, generator=generator, **_PLAIN).to(cache)
        value = torch.randn(shape, generator=generator, **_PLAIN).to(cache)
        writer.write(layer, zeros, zeros, slots)  # whatever the engine left there
        before = _digest(cache)
        writer.write(layer, key, value, slots)
        read_key, read_value = reader.read(layer, slots)
        same = torch.equal(read_key, key) and torch.equal(read_value, value)
        writer.write(layer, zeros, zeros, slots)
        restored = _digest(cache) == before
        if not same:
            raise Refused(f"layer {layer}: what was written to the KV cache was not read back")
        if not restored:
            raise Refused(f"layer {layer}: the KV cache changed outside the block written to")


def _digest(cache: torch.Tensor) -> int:
    """A sum over the bits of all elements, without a copy of the cache."""
    bits = {2: torch.int16, 4: torch.int32}[cache.element_size()]
    return int(cache.view(bits).sum(dtype=torch.int64).item())


def check_rotation(adapter: ModuleType, module: Any, spec: Any, shape: dict[str, int], positions: int) -> None:
    """Keys that the engine rotated, captured and composed elsewhere, are what it rotates to there.

    Uses a small store of its own in a temporary directory. Raises Refused.
    """
    layers, heads, dim = shape["n_layers"], shape["n_kv_heads"], shape["head_dim_k"]
    first = max(1, min(positions - _PROBE_TOKENS - _SHIFT - 1, 1000))
    generator = torch.Generator("cpu").manual_seed(2)
    plain = torch.randn((_PROBE_TOKENS, heads, dim), generator=generator, **_PLAIN)
    there = torch.arange(first, first + _PROBE_TOKENS, device="cpu")
    rotated = adapter.rotate(module, there, plain)
    expected = adapter.rotate(module, there + _SHIFT, plain)
    keys = rotated.expand(layers, *rotated.shape).contiguous().numpy()
    values = plain.expand(layers, *plain.shape).contiguous().numpy()
    tokens = np.arange(_PROBE_TOKENS, dtype=np.int32)
    out_keys, out_values = np.zeros_like(keys), np.zeros_like(values)
    with tempfile.TemporaryDirectory(prefix="inferscale-probe-") as directory:
        store = _core.RecordStore(directory, 64 << 20, 64 << 20, spec, "f32", 0, 1, positions)
        try:
            scope = _core.scope_hash({"tenant": "", "user": "", "agent": "", "run": ""})
            meta = {
                "key": "00" * 16, "scope_hash": scope, "context_id": "00" * 16,
                "context_kind": "alone", "context_tokens": 0,
            }
            store.capture(meta, tokens, first, keys, values)
            item = (meta["key"], scope, None, tokens, first + _SHIFT)
            store.compose([item], out_keys, out_values)
        finally:
            store.close()
    error = np.abs(out_keys - expected.numpy()[None]).max()
    if error > 1e-3:  # the engine's own fp32 angles are off by more than ours
        raise Refused(f"composed keys differ from the engine's own by {error:.1e}")
    if not np.array_equal(out_values, values):
        raise Refused("composed values differ from those captured")


# How far a codec itself may be off, as a part of the largest element: a whole step of its grid, since
# the errors of two elements meet in a turned one.
_STEP = {"q8": 1 / 127, "fp8_e4m3": 1 / 14, "q4": 1 / 127}  # q4 lies in pages of q8
_TOLERANCE = {torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9, torch.float32: 1e-3}


def check_device(
    adapter: ModuleType, module: Any, spec: Any, codec: str, caches: dict[str, Any],
    tensors: list[torch.Tensor], writer: Writer, reader: Reader, num_blocks: int, block_size: int,
    positions: int, shard: tuple[int, int], stream: Callable[[], int],
) -> None:
    """Keys that the engine rotated and wrote, captured by our kernel, are what they were before; and
    records that our kernel composes are read back as the engine would have rotated them there.

    In every layer, in the last two blocks, which are zeroed afterwards. It also loads the kernels.
    ``caches``: as ``layout.describe`` has them; ``shard``: the rank's number and the ranks;
    ``stream``: the address of the stream that the engine uses now. Raises Refused.
    """
    layers, heads, dim = len(tensors), caches["n_kv_heads"], caches["head_dim"]
    count = min(_PROBE_TOKENS, block_size)
    first = max(1, min(positions - count - 2 * _SHIFT - 1, 1000))
    generator = torch.Generator("cpu").manual_seed(3)
    plain = torch.randn((count, layers * heads, dim), generator=generator, **_PLAIN)
    there = torch.arange(first, first + count, device="cpu")
    source = split_slots([num_blocks - 1], 0, 0, count, block_size)
    target = split_slots([num_blocks - 2], 0, 0, count, block_size)
    zeros = torch.zeros_like(plain)
    for slots in (source, target):
        _write_layers(writer, tensors, slots, zeros, zeros)
    before = [_digest(tensor) for tensor in tensors]
    _write_layers(writer, tensors, source, adapter.rotate(module, there, plain), plain)
    with tempfile.TemporaryDirectory(prefix="inferscale-probe-") as directory:
        store = _core.RecordStore(directory, 256 << 20, 256 << 20, spec, codec, *shard, positions)
        try:
            store.attach_device(
                caches, gpu_budget=64 << 20, pinned_budget=64 << 20, max_load_tokens=count,
                max_capture_tokens=count,
            )
            key, scope, context, tokens = _captured_item(store, source, count, first, stream())
            for shift in (_SHIFT, 2 * _SHIFT):
                begin = first + shift
                plan = _core.load_plan([(key, scope, context, begin, begin + count)])
                store.load([(plan, tokens)], target.astype(np.uint32), stream())
                expected = adapter.rotate(module, there + shift, plain)
                _compare_layers(reader, tensors, target, expected, plain, _STEP.get(codec, 0.0))
        finally:
            store.close()
    for slots in (source, target):
        _write_layers(writer, tensors, slots, zeros, zeros)
    if [_digest(tensor) for tensor in tensors] != before:
        raise Refused("the KV cache changed outside the blocks written to")


def _captured_item(
    store: Any, slots: np.ndarray, count: int, first: int, stream: int
) -> tuple[Any, ...]:
    """The record of the rows, stored, as an item of a load up to its position."""
    tokens = np.arange(count, dtype=np.int32)
    scope = _core.scope_hash({"tenant": "", "user": "", "agent": "", "run": ""})
    meta = {
        "key": "00" * 16, "scope_hash": scope, "context_id": "00" * 16, "context_kind": "alone",
        "context_tokens": 0,
    }
    batch = store.begin_capture([(meta, tokens, first, slots.astype(np.uint32))], stream)
    batch.wait()
    batch.store(0)
    return (meta["key"], scope, None, tokens)


def _write_layers(
    writer: Writer, tensors: list[torch.Tensor], slots: np.ndarray, keys: torch.Tensor, values: torch.Tensor
) -> None:
    """``keys`` and ``values``: [T, layers * H, D]."""
    where = torch.from_numpy(slots).to(tensors[0].device)
    key, value = keys.chunk(len(tensors), dim=1), values.chunk(len(tensors), dim=1)
    for layer, tensor in enumerate(tensors):
        writer.write(layer, key[layer].to(tensor), value[layer].to(tensor), where)


def _compare_layers(
    reader: Reader, tensors: list[torch.Tensor], slots: np.ndarray, keys: torch.Tensor, values: torch.Tensor,
    step: float,
) -> None:
    where = torch.from_numpy(slots).to(tensors[0].device)
    largest = keys.abs().max().item()
    bound = _TOLERANCE[tensors[0].dtype] * largest
    quantised = step * max(largest, values.abs().max().item())
    key, value = keys.chunk(len(tensors), dim=1), values.chunk(len(tensors), dim=1)
    for layer, tensor in enumerate(tensors):
        read_key, read_value = (rows.float().cpu() for rows in reader.read(layer, where))
        error = (read_key - key[layer]).abs().max().item()
        if not error <= bound + quantised:  # NaN too
            raise Refused(f"layer {layer}: composed keys differ from the engine's own by {error:.1e}")
        error = (read_value - value[layer].to(tensor.dtype).float()).abs().max().item()
        if not error <= bound / 8 + quantised:  # of another codec than the cache at most
            raise Refused(f"layer {layer}: composed values differ from the engine's own by {error:.1e}")
def check_in_place(
    cache: Any, writer: Writer, reader: Reader, caches: list[torch.Tensor], num_blocks: int,
    block_size: int, spec: Any, ranks: int, positions: int,
) -> None:
    """The core fills a block to the very bytes that the engine's writer makes of the same rows, and
    captures what that wrote. ``check_cache`` has passed. Raises Refused; leaves the cache zeroed."""
    if num_blocks < 3 or caches[0].device.type != "cpu" or caches[0].dim() != 4:
        raise Refused("nothing is known of how it lies in memory")
    count = min(block_size, positions - 1)
    slots = torch.randperm(block_size, generator=torch.Generator().manual_seed(3))[:count]
    ours, theirs = (num_blocks - 1) * block_size + slots, (num_blocks - 2) * block_size + slots

    def clear() -> None:
        for layer, (keys, values) in enumerate(reader.pairs):
            zeros = [torch.zeros_like(rows[0, :1]).expand(count, -1, -1) for rows in (keys, values)]
            for rows in (ours, theirs):
                writer.write(layer, *zeros, rows)

    clear()  # whatever the engine left there
    before = [_digest(tensor) for tensor in caches]
    store = _core.RecordStore("", 1 << 30, 0, spec, _CODECS[caches[0].dtype], 0, ranks, positions)
    try:
        wrong = _compare(store, cache, writer, reader, caches, ours, theirs)
    finally:
        store.close()
        clear()
    if wrong:
        raise Refused(wrong)
    if [_digest(tensor) for tensor in caches] != before:
        raise Refused("the KV cache changed outside the rows written to")


def _compare(
    store: Any, cache: Any, writer: Writer, reader: Reader, caches: list[torch.Tensor],
    ours: torch.Tensor, theirs: torch.Tensor,
) -> str:
    """What is wrong with rows that the core writes and reads; empty when nothing is."""
    count, first = len(ours), 1
    generator = torch.Generator().manual_seed(4)
    rows = [torch.stack([side[0, :1].expand(count, -1, -1) for side in sides]) for sides in zip(*reader.pairs)]
    keys, values = (torch.randn(row.shape, generator=generator).to(row.dtype) for row in rows)
    tokens = np.arange(count, dtype=np.int32)
    load = _captured(store, 1, lambda meta: store.capture(meta, tokens, 0, keys, values), tokens, first)
    store.place([(load, first, ours.numpy().astype(np.uint32))], cache)
    composed = [torch.empty_like(keys), torch.empty_like(values)]
    store.compose(load, *composed)
    size = reader.pairs[0][0].shape[1]
    for layer, tensor in enumerate(caches):
        key, value = reader.read(layer, ours)
        if not torch.equal(key, composed[0][layer]) or not torch.equal(value, values[layer]):
            return f"layer {layer}: rows are not where the core writes them"
        writer.write(layer, key, value, theirs)
        if not torch.equal(tensor[int(ours[0]) // size], tensor[int(theirs[0]) // size]):
            return f"layer {layer}: the engine writes the same rows otherwise"
    read = [torch.stack(side) for side in zip(*(reader.read(layer, theirs) for layer in range(len(caches))))]
    by_rows = _captured(store, 2, lambda meta: store.capture(meta, tokens, first, *read), tokens, first)
    slots = theirs.numpy().astype(np.uint32)
    in_place = _captured(
        store, 3, lambda meta: store.capture_rows(meta, tokens, first, cache, slots), tokens, first
    )
    again = [torch.empty_like(keys), torch.empty_like(values)]
    store.compose(by_rows, *composed)
    store.compose(in_place, *again)
    same = all(torch.equal(a, b) for a, b in zip(composed, again))
    return "" if same else "the core does not read what the engine writes"


def _captured(store: Any, number: int, capture: Any, tokens: np.ndarray, first: int) -> Any:
    """Has a record captured, and prepares it for the position ``first``."""
    scope = _core.scope_hash({"tenant": "", "user": "", "agent": "", "run": ""})
    key = f"{number:032x}"
    capture({
        "key": key, "scope_hash": scope, "context_id": "00" * 16, "context_kind": "alone", "context_tokens": 0,
    })
    return store.prepare([(key, scope, None, tokens, first)])


class RepeatedTokens:
    """What no start-up check can see: that the model itself rotates as its rotary module would. In
    the first layer a token's key depends on nothing but the token and its position, so that the
    un-rotated keys of one token at two positions must agree. Looks at every capture."""

    def __init__(self, spec: Any, positions: int) -> None:
        self._cos, self._sin = (np.asarray(table) for table in _core.rope_table(spec, positions))

    def agree(self, tokens: np.ndarray, begin: int, rows: torch.Tensor) -> bool:
        """``rows``: keys [T, H, D] of the first layer, as in the cache. True when no token stands twice."""
        again, before = _repeated(tokens)
        if len(again) == 0:
            return True
        keys = rows.float().numpy()
        plain = self._unrotate(keys[again], begin + again)
        expected = self._unrotate(keys[before], begin + before)
        return _alike(plain, expected, _ROUNDING[rows.dtype])

    def agree_plain(self, tokens: np.ndarray, keys: np.ndarray) -> bool:
        """As ``agree``, of keys [T, ...] without their positions, of a cache in half precision: the
        engine's own tables are in that precision then."""
        again, before = _repeated(tokens)
        return len(again) == 0 or _alike(keys[again], keys[before], 2.0**-4)

    def _unrotate(self, keys: np.ndarray, positions: np.ndarray) -> np.ndarray:
        cos, sin = self._cos[positions][:, None], self._sin[positions][:, None]
        half = cos.shape[-1]
        x, y = keys[..., :half], keys[..., half : 2 * half]
        scale = cos * cos + sin * sin
        return np.concatenate([(x * cos + y * sin) / scale, (y * cos - x * sin) / scale], axis=-1)


def _repeated(tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Up to 16 places where a token stands again, and where it stood first."""
    _, first, inverse = np.unique(tokens, return_index=True, return_inverse=True)
    again = np.flatnonzero(first[inverse] != np.arange(len(tokens)))[-16:]
    return again, first[inverse[again]]


def _alike(one: np.ndarray, other: np.ndarray, bound: float) -> bool:
    return bool(np.abs(one - other).max() <= bound * np.abs(other).max())
