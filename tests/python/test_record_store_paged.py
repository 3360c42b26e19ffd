"""Records through pages that a device reads, with plain memory as the device: the engine's cache is addresses and strides."""
import gc

import numpy as np
import pytest

from inferscale import RetryError, _core
from test_record_store import (DIM, HEADS, LAYERS, TOKENS, ids, item, key, meta, model, open_store,  # noqa: F401
                               rotated, rows)

BLOCK, BLOCKS = 4, 8
DEVICE = {"device": "plain", "gpu_budget": 1 << 16, "pinned_budget": 1 << 16}


class Cache:
    """What an engine keeps: for each layer [block, K or V, token, head, element], as vLLM lays it out."""

    def __init__(self, dtype=np.float32):
        self.data = [np.zeros((BLOCKS, 2, BLOCK, HEADS, DIM), dtype) for _ in range(LAYERS)]

    def bind(self, store, max_tokens=64, **changes):
        layer = self.data[0]
        block, _, row, head, _ = layer.strides
        addresses = [[layer[:, side].ctypes.data for layer in self.data] for side in (0, 1)]
        strides = (row, head, 0, block)
        store.bind_cache(**({"dtype": {4: "f32", 2: "f16"}[layer.itemsize], "k": addresses[0], "v": addresses[1],
                             "k_strides": strides, "v_strides": strides, "rows_per_block": BLOCK,
                             "n_rows": BLOCKS * BLOCK, "max_tokens": max_tokens} | changes))

    def put(self, slots, keys, values):
        for layer, (k, v) in enumerate(zip(keys, values)):
            self.data[layer][slots // BLOCK, 0, slots % BLOCK] = k
            self.data[layer][slots // BLOCK, 1, slots % BLOCK] = v

    def get(self, slots):
        return (np.stack([layer[slots // BLOCK, side, slots % BLOCK] for layer in self.data]) for side in (0, 1))


@pytest.fixture
def store_and_cache(open_store):  # noqa: F811
    store, cache = open_store(**DEVICE), Cache()
    cache.bind(store)
    return store, cache


def captured(store, cache, *seeds, first=7):
    """Records of these seeds, captured in one batch from scattered rows."""
    slots, runs = [], []
    for number, seed in enumerate(seeds):
        keys, values = rows(seed)
        slots.append(np.random.default_rng(seed).permutation(BLOCK * BLOCKS)[:TOKENS])
        cache.put(slots[-1], rotated(keys, first, "none", "halves"), values)
        runs.append((meta(ids(seed)), ids(seed), first))
        if number:
            assert not set(slots[-1]) & set(slots[0]), "choose other seeds"
    pending = store.capture_paged(runs, np.concatenate(slots), 0)
    assert pending.ready()
    return pending


def test_round_trip(store_and_cache):
    store, cache = store_and_cache
    pending = captured(store, cache, 1)
    assert not store.contains(key(ids(1)))
    assert store.finish_capture(pending) == [key(ids(1))]
    assert store.finish_capture(pending) == []
    keys, values = rows(1)
    for position, dtype in [(7, np.int32), (0, np.int64), (333, np.int32)]:
        slots = np.array([31, 0, 9, 12, 5], dtype)
        load = store.prepare([item(ids(1), position)])
        store.compose_paged(load, slots, 0)
        k, v = cache.get(slots)
        np.testing.assert_allclose(k, rotated(keys, position, "none", "halves"), atol=2e-5)
        np.testing.assert_array_equal(v, values.astype(np.float32))
    store.compose_paged(load, slots.tolist(), 0)


def test_several_loads_in_one_call(store_and_cache):
    store, cache = store_and_cache
    for seed in (1, 2, 3):
        assert store.finish_capture(captured(store, cache, seed)) == [key(ids(seed))]
    loads = [store.prepare([item(ids(1), 0), item(ids(2), 5)]), store.prepare([item(ids(3), 9)])]
    slots = np.random.default_rng(0).permutation(BLOCK * BLOCKS)[:3 * TOKENS]
    store.compose_paged(loads, slots, 0)
    del loads
    gc.collect()
    for number, (seed, position) in enumerate([(1, 0), (2, 5), (3, 9)]):
        keys, values = rows(seed)
        k, v = cache.get(slots[number * TOKENS:(number + 1) * TOKENS])
        np.testing.assert_allclose(k, rotated(keys, position, "none", "halves"), atol=2e-5)
        np.testing.assert_array_equal(v, values.astype(np.float32))
    tiers = {tier["name"]: tier for tier in store.stats()["tiers"]}
    assert list(tiers) == ["gpu", "pinned", "host", "disk"]
    assert tiers["gpu"]["records"] == 3 and tiers["gpu"]["budget_bytes"] <= DEVICE["gpu_budget"]
    assert store.stats()["leases_active"] == 0
    assert store.erase([key(ids(1))]) == {"gpu": 1, "pinned": 0, "host": 1, "disk": 1, "leased": 0}


def test_what_does_not_fit_is_refused(store_and_cache, open_store):  # noqa: F811
    store, cache = store_and_cache
    store.finish_capture(captured(store, cache, 1))
    load = store.prepare([item(ids(1), 0)])
    for wrong in ([1, 2], [1, 2, 3, 4, BLOCK * BLOCKS], np.array([1, 2, 3, 4, -1]), [1, 2, 3, 4, 1 << 32]):
        with pytest.raises(ValueError):
            store.compose_paged(load, wrong, 0)
    with pytest.raises(TypeError):
        store.compose_paged(load, np.zeros(TOKENS), 0)
    with pytest.raises(TypeError):
        store.compose_paged([load, 1], np.arange(TOKENS), 0)
    with pytest.raises(ValueError):
        store.capture_paged([(meta(ids(1)), ids(1))], np.arange(TOKENS), 0)
    with pytest.raises(ValueError):
        store.capture_paged([(meta(ids(1)) | {"bogus": 1}, ids(1), 0)], np.arange(TOKENS), 0)
    for wrong in ({"k": [1]}, {"k": [0] * LAYERS}, {"dtype": "f64"}, {"n_rows": 3},
                  {"k_strides": (0, 0, 0, 0)}):
        with pytest.raises(ValueError):
            cache.bind(store, **wrong)
    store.compose_paged(load, np.arange(TOKENS), 0)
    cache.bind(store, max_tokens=TOKENS - 1)
    with pytest.raises(ValueError):
        store.compose_paged(load, np.arange(TOKENS), 0)


def test_devices(open_store, tmp_path):  # noqa: F811
    for wrong in ("tpu", "cuda", "cuda:", "cuda:-1", "cuda:1x"):
        with pytest.raises(ValueError):
            open_store(directory=tmp_path / "a", **DEVICE | {"device": wrong})
    with pytest.raises((NotImplementedError, RetryError)):  # a build without CUDA, or no such device
        open_store(directory=tmp_path / "b", **DEVICE | {"device": "cuda:99"})
    with pytest.raises(ValueError):
        open_store(directory=tmp_path / "c", device="plain", gpu_budget=10)
    store = open_store(directory=tmp_path / "d")
    with pytest.raises(ValueError):
        Cache().bind(store)
    with pytest.raises(ValueError):
        store.capture_paged([], [], 0)


def test_slot_rows():
    blocks = [(np.array([7, 2, 9], np.int32), 3, 6), ([1], 0, 4), (np.array([5, 6]), 8, 0)]
    got = _core.slot_rows(blocks, BLOCK)
    assert got.dtype == np.int32
    expected = [ids[token // BLOCK] * BLOCK + token % BLOCK for ids, first, count in blocks
                for token in range(first, first + count)]
    assert got.tolist() == expected
    assert _core.slot_rows([], BLOCK).tolist() == []
    for wrong in ([([1], 0, 5)], [([1], 4, 1)], [([-1], 0, 1)], [([1], 0)], [([1 << 31], 0, 1)]):
        with pytest.raises((ValueError, TypeError)):
            _core.slot_rows(wrong, BLOCK)
    with pytest.raises(ValueError):
        _core.slot_rows([], 0)
