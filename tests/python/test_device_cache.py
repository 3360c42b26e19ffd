"""A RecordStore with a device, which is plain memory here: rows go from cache to records and back."""
import numpy as np
import pytest
from inferscale import RetryError, _core
from test_record_store import (CONTEXT, DIM, HEADS, LAYERS, POSITIONS, SCOPE, SCOPE_HASH, SECRET, ids, key, meta,
                               model)

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


def attach(store, cache, tokens=64, budget=1 << 20, **changes):
    store.attach_device(
        cache.describe(**changes), gpu_budget=budget, pinned_budget=budget, max_load_tokens=tokens,
        max_capture_tokens=tokens,
    )


def array(*rows):
    return np.asarray(rows, np.uint32)


def plan(position, *parts, first=0, last=1 << 20, context=CONTEXT):
    """What loads records of these tokens, the first at `position`, as far as they lie in first .. last - 1."""
    index = _core.SchedulerIndex(1)
    index.learn_scope(SCOPE)
    for tokens in parts:
        index.add(0, key(tokens), SCOPE_HASH, "window", tokens, context)
    prompt = np.concatenate([np.full(position, 9999), *parts, [9999]]).astype(np.int32)
    request = {"v": 1, "request": "r", "scope": SCOPE, "epoch": 0, "purpose": "inject",
               "inject": [key(tokens) for tokens in parts]}
    match = index.match(prompt, _core.parse_params(_core.signed_params(request, SECRET), SECRET))
    packed, begin, end = match.plan(first, last)
    return packed, prompt[begin:end]


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
    store.load([plan(7, tokens, first=8)], array(20, 21, 30, 31), 0)
    assert np.abs(cache.rows([20, 21, 30, 31]) - cache.rows([9, 8, 40, 41])).max() < 1e-5
    store.load([plan(8, tokens, context=None)], array(20, 21, 22, 30, 31), 0)
    placed, taken = cache.rows([20, 21, 22, 30, 31]), cache.rows([3, 9, 8, 40, 41])
    assert np.array_equal(placed[..., DIM:], taken[..., DIM:])
    assert np.abs(placed[..., :DIM] - taken[..., :DIM]).max() > 0.1, "keys elsewhere are turned"
    assert [tier["name"] for tier in store.stats()["tiers"]][:2] == ["gpu", "pinned"]
    assert store.device_tokens > 0 and store.token_bytes > 0


def test_a_batch_of_runs_and_a_load_of_several_records(store):
    cache = Cache(4)
    attach(store, cache)
    order = np.random.default_rng(0).permutation(BLOCK * BLOCKS).astype(np.uint32)
    taken = [order[5 * n : 5 * n + 5] for n in range(3)]
    runs = [(meta(ids(n)), ids(n), 7, taken[n]) for n in range(3)]
    batch = store.begin_capture(runs, 0)
    batch.wait()
    assert not store.contains(key(ids(0)))
    for n in range(3):
        batch.store(n)
    batch.release()
    with pytest.raises(ValueError):
        batch.store(0)
    before = [cache.rows(rows) for rows in taken]
    store.load([plan(7, ids(2)), plan(2, ids(0), ids(1))], order[20:35], 0)
    for place, n in enumerate((2, 0, 1)):
        placed = cache.rows(order[20 + 5 * place : 25 + 5 * place])
        assert n == 0 or np.abs(placed - before[n]).max() < 1e-5, "at the position of their capture"
        assert np.array_equal(placed[..., DIM:], before[n][..., DIM:])
    tiers = {tier["name"]: tier for tier in store.stats()["tiers"]}
    assert tiers["gpu"]["records"] == 3 and 0 < tiers["gpu"]["budget_bytes"] <= 1 << 20
    assert store.stats()["leases_active"] == 0
    assert store.erase([key(ids(1))]) == {"gpu": 1, "pinned": 0, "host": 1, "disk": 0, "leased": 0}


def test_what_does_not_fit_is_refused(store):
    attach(store, Cache(1), tokens=6)
    tokens = ids(1)
    keep(store, tokens, 0, np.arange(5, dtype=np.uint32))
    item = plan(7, tokens)
    for rows in ([1, 2], [1, 2, 3, 4, BLOCK * BLOCKS], [1, 2, 3, 4, 5, 6]):
        with pytest.raises(ValueError):
            store.load([item], array(*rows), 0)
    for wrong in ((item[0], tokens[:4]), (item[0][:-1], tokens), (item[0], tokens, 0), ("text", tokens)):
        with pytest.raises(ValueError):
            store.load([wrong], array(1, 2, 3, 4, 5), 0)
    with pytest.raises(ValueError):  # more tokens than the launch may have
        store.load([item, item], np.arange(10, dtype=np.uint32), 0)
    run = (meta(tokens), tokens, 0, np.arange(5, dtype=np.uint32))
    for wrong in ((meta(tokens), tokens, 0), (meta(tokens) | {"bogus": 1}, *run[1:]),
                  (*run[:3], array(1, 2)), (*run[:2], POSITIONS, run[3])):
        with pytest.raises(ValueError):
            store.begin_capture([wrong], 0)
    with pytest.raises(ValueError):
        store.begin_capture([run, run], 0)
    store.load([item], array(1, 2, 3, 4, 5), 0)


@pytest.mark.parametrize("device", ["", "tpu", "cuda", "cuda:", "cuda:-1", "cuda:1x"])
def test_devices_have_names(store, device):
    with pytest.raises(ValueError, match="device"):
        attach(store, Cache(1), device=device)
    attach(store, Cache(1))


def test_a_device_that_is_not_there(store):
    with pytest.raises((NotImplementedError, RetryError)):  # a build without CUDA, or no such device
        attach(store, Cache(1), device="cuda:99")
    with pytest.raises(ValueError, match="budgets"):
        attach(store, Cache(1), budget=10)
    attach(store, Cache(1))


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
        store.load([plan(7, tokens)], array(1, 2, 3, 4, 5), 0)
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
        store.load([plan(7, tokens)], rows, 0)


@pytest.mark.skipif(_core.has_cuda, reason="this build has CUDA")
def test_a_build_without_cuda_says_so(store):
    with pytest.raises(NotImplementedError, match="no CUDA"):
        store.attach_device(
            Cache(1).describe(), gpu_budget=1, pinned_budget=1, max_load_tokens=1, max_capture_tokens=1
        )
