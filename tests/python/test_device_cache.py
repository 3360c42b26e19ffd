"""A RecordStore with a device, which is plain memory here: rows go from cache to records and back."""
import numpy as np
import pytest
from inferscale import _core
from test_record_store import CONTEXT, DIM, HEADS, LAYERS, POSITIONS, SCOPE_HASH, ids, key, meta, model

BLOCK, BLOCKS = 8, 6


class Cache:
    """As vLLM packs it: [layer][block][token][head][K|V]; a slot is a row."""

    def __init__(self, seed=None):
        shape = (LAYERS, BLOCKS, BLOCK, HEADS, 2 * DIM)
        self.data = np.zeros(shape, np.float32)
        if seed is not None:
            self.data = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)

    def describe(self, **changes):
        _, block, row, head, element = self.data.strides
        layers = [layer.ctypes.data for layer in self.data]
        return {
            "dtype": "f32", "device": "plain", "n_kv_heads": HEADS, "head_dim": DIM, "k": layers,
            "v": [address + DIM * element for address in layers], "k_strides": (block, row, head),
            "v_strides": (block, row, head), "rows_per_block": BLOCK, "n_rows": BLOCK * BLOCKS,
        } | changes

    def rows(self, slots):
        return self.data.reshape(LAYERS, BLOCK * BLOCKS, HEADS, 2 * DIM)[:, slots]


@pytest.fixture
def store():
    made = _core.RecordStore("", 1 << 20, 0, model(), "f32", 0, 1, POSITIONS)
    yield made
    made.close()


def attach(store, cache, **changes):
    store.attach_device(
        cache.describe(**changes), gpu_budget=1 << 20, pinned_budget=1 << 20, max_load_tokens=64,
        max_capture_tokens=64,
    )


def array(*rows):
    return np.asarray(rows, np.uint32)


def keep(store, tokens, position, rows):
    batch = store.begin_capture([(meta(tokens), tokens, position, rows)], 0)
    batch.wait()
    batch.store(0)


def test_rows_are_captured_and_placed_elsewhere(store):
    cache = Cache(1)
    attach(store, cache)
    tokens = ids(1)
    keep(store, tokens, 7, array(3, 9, 8, 40, 41))
    assert store.contains(key(tokens))
    store.load([(key(tokens), SCOPE_HASH, CONTEXT, 5, 7, 1, 4)], tokens, array(20, 21, 30, 31), 0)
    assert np.abs(cache.rows([20, 21, 30, 31]) - cache.rows([9, 8, 40, 41])).max() < 1e-5
    store.load([(key(tokens), SCOPE_HASH, None, 5, 8, 0, 5)], tokens, array(20, 21, 22, 30, 31), 0)
    placed, taken = cache.rows([20, 21, 22, 30, 31]), cache.rows([3, 9, 8, 40, 41])
    assert np.array_equal(placed[..., DIM:], taken[..., DIM:])
    assert np.abs(placed[..., :DIM] - taken[..., :DIM]).max() > 0.1, "keys elsewhere are turned"
    assert [tier["name"] for tier in store.stats()["tiers"]][:2] == ["gpu", "pinned"]
    assert store.device_tokens > 0 and store.token_bytes > 0


def test_first_layer_keys_have_no_position(store):
    cache = Cache(2)
    attach(store, cache)
    tokens = ids(2)
    batch = store.begin_capture([(meta(tokens), tokens, 0, np.arange(5, dtype=np.uint32))], 0)
    batch.wait()
    keys = np.frombuffer(batch.first_layer_keys(0), np.float32).reshape(5, HEADS, DIM)
    assert np.abs(keys[0] - cache.rows([0])[0, 0, :, :DIM]).max() < 1e-6, "position 0 turns nothing"
    assert np.abs(keys[4] - cache.rows([4])[0, 0, :, :DIM]).max() > 0.1
    with pytest.raises(ValueError):
        batch.first_layer_keys(1)


def test_erased_records_are_counted_and_gone(store):
    cache = Cache(3)
    attach(store, cache)
    tokens = ids(3)
    keep(store, tokens, 0, np.arange(5, dtype=np.uint32))
    counts = store.erase([key(tokens)])
    assert counts["gpu"] + counts["pinned"] >= 1
    with pytest.raises(KeyError) as caught:
        store.load([(key(tokens), SCOPE_HASH, CONTEXT, 5, 7, 0, 5)], tokens, array(1, 2, 3, 4, 5), 0)
    assert caught.value.key == key(tokens)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"dtype": "q8"}, ValueError),
        ({"k": "here"}, TypeError),
        ({"k": [-1]}, ValueError),
        ({"k_strides": (1, 2)}, ValueError),
        ({"n_kv_heads": HEADS + 1}, ValueError),
        ({"rows_per_block": 7}, ValueError),
        ({"unknown": 1}, ValueError),
    ],
)
def test_caches_are_checked(store, changes, error):
    with pytest.raises(error):
        attach(store, Cache(1), **changes)


def test_a_device_is_needed_and_given_once(store):
    tokens = ids(1)
    with pytest.raises(ValueError, match="no cache"):
        store.begin_capture([(meta(tokens), tokens, 0, array(1, 2, 3, 4, 5))], 0)
    assert store.device_tokens == 0
    attach(store, Cache(1))
    with pytest.raises(ValueError, match="already"):
        attach(store, Cache(1))


@pytest.mark.parametrize("rows", [[1, 2], np.arange(5), np.zeros((5, 1), np.uint32), None])
def test_rows_must_be_one_uint32_array(store, rows):
    attach(store, Cache(1))
    tokens = ids(1)
    keep(store, tokens, 0, np.arange(5, dtype=np.uint32))
    with pytest.raises(TypeError, match="rows"):
        store.load([(key(tokens), SCOPE_HASH, CONTEXT, 5, 7, 0, 5)], tokens, rows, 0)


@pytest.mark.skipif(_core.has_cuda, reason="this build has CUDA")
def test_a_build_without_cuda_says_so(store):
    with pytest.raises(NotImplementedError, match="no CUDA"):
        store.attach_device(
            Cache(1).describe(), gpu_budget=1, pinned_budget=1, max_load_tokens=1, max_capture_tokens=1
        )
