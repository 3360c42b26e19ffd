"""Records through Python: what is captured at one position and composed at another is what plain numpy makes of it."""
import math
import threading

import numpy as np
import pytest

import inferscale
from inferscale import _core

SECRET = b"s" * 32
LAYERS, HEADS, DIM, TOKENS = 3, 2, 16, 5
SCOPE = {"tenant": "acme", "user": "zoe"}
SCOPE_HASH = _core.scope_hash(SCOPE)
CONTEXT = _core.context_id("window", [1, 2], [])
POSITIONS = 512
ROPES = {
    "none": {"scaling": "none"},
    "linear": {"scaling": "linear", "scaling_factor": 4.0},
    "llama3": {"scaling": "llama3", "freq_factors": [1.0, 1.0, 1.5, 3.0, 8.0, 8.0]},
    "yarn": {"scaling": "yarn", "scaling_factor": 8.0, "original_context": 64, "yarn_attn_factor": 1.1},
}


def model(rope="none", pairing="halves", **changes):
    spec = {"architecture": "llama", "trained_positions": POSITIONS, "vocab_size": 1000, "fingerprint": "ab" * 16,
            "shape": {"n_layers": LAYERS, "n_kv_heads": HEADS, "head_dim_k": DIM, "head_dim_v": DIM},
            "rope": {"pairing": pairing, "freq_base": 10000.0, "rotary_dim": 12, **ROPES[rope]}}
    return _core.ModelSpec.from_dict(spec | changes)


def frequencies(rope, pairs=6, base=10000.0):
    """Angle for each position, and the factor on cosine and sine."""
    angle = base ** (-np.arange(pairs) / pairs)
    scale = 1.0
    if rope == "linear":
        angle = angle / 4
    elif rope == "llama3":
        angle = angle / np.array(ROPES["llama3"]["freq_factors"])
    elif rope == "yarn":
        low, high = (2 * pairs * math.log(64 / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (32, 1))
        low, high = max(0, math.floor(low)), min(2 * pairs - 1, math.ceil(high))
        own = 1 - np.clip((np.arange(pairs) - low) / max(0.001, high - low), 0, 1)
        angle = angle * ((1 - own) / 8 + own)
        scale = 1.1 * (1 + 0.1 * math.log(8))
    return angle, scale


def rotated(keys, first, rope, pairing):
    """[layers, tokens, heads, dim] in float64."""
    angle, scale = frequencies(rope)
    turn = (first + np.arange(keys.shape[1]))[:, None] * angle
    cos, sin = (scale * f(turn)[None, :, None, :] for f in (np.cos, np.sin))
    pairs = len(angle)
    one, two = (slice(0, pairs), slice(pairs, 2 * pairs)) if pairing == "halves" else \
        (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2))
    out = keys.copy()
    out[..., one] = keys[..., one] * cos - keys[..., two] * sin
    out[..., two] = keys[..., one] * sin + keys[..., two] * cos
    return out


def rows(seed, tokens=TOKENS):
    draw = np.random.default_rng(seed)
    return (draw.standard_normal((LAYERS, tokens, HEADS, DIM)) for _ in range(2))


def key(tokens):
    return _core.record_key(SECRET, SCOPE, "ab" * 16, CONTEXT, "window", tokens)


def meta(tokens):
    return {"key": key(tokens), "scope_hash": SCOPE_HASH, "context_id": CONTEXT, "context_kind": "window",
            "context_tokens": 2}


def ids(seed, tokens=TOKENS):
    return (np.arange(tokens) + 100 * seed).astype(np.int32)


def item(tokens, first, **changes):
    parts = {"key": key(tokens), "scope": SCOPE_HASH, "context": CONTEXT, "ids": tokens, "position": first} | changes
    return tuple(parts.values())


def empty(tokens=TOKENS, dtype=np.float32):
    return tuple(np.zeros((LAYERS, tokens, HEADS, DIM), dtype) for _ in range(2))


@pytest.fixture
def open_store(tmp_path):
    opened = []

    def open_one(spec=None, codec="f32", directory=tmp_path, shard=(0, 1), **budgets):
        budgets = {"host_budget": 1 << 24, "disk_budget": 1 << 26} | budgets
        store = _core.RecordStore(directory, spec=spec or model(), codec=codec, shard_index=shard[0],
                                  shard_count=shard[1], max_positions=POSITIONS, **budgets)
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        store.close()


@pytest.mark.parametrize("pairing", ["halves", "adjacent"])
@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("codec, dtype, tolerance", [
    ("f32", np.float32, 2e-5), ("f16", np.float32, 1e-2), ("f32", np.float16, 1e-2), ("f16", np.float16, 2e-2)])
def test_round_trip(open_store, pairing, rope, codec, dtype, tolerance):
    store = open_store(model(rope, pairing), codec)
    keys, values = rows(1)
    tokens = ids(1)
    at_7 = rotated(keys, 7, rope, pairing).astype(dtype)
    assert store.capture(meta(tokens), tokens, 7, at_7, values.astype(dtype)) == key(tokens)
    for first in (7, 0, 333):
        k, v = empty(dtype=dtype)
        store.compose([item(tokens, first)], k, v)
        np.testing.assert_allclose(k.astype(float), rotated(keys, first, rope, pairing), atol=tolerance)
        np.testing.assert_allclose(v.astype(float), values, atol=tolerance)


@pytest.mark.parametrize("known", [True, False])
def test_a_key_bias_is_no_part_of_records(open_store, known):
    bias = 200.0 * (np.arange(LAYERS * HEADS * DIM) % 5 == 0)
    spec = model(key_bias=list(bias)) if known else model()
    store = open_store(spec, "q8")
    keys, values = rows(1)
    tokens = ids(1)
    biased = keys + bias.reshape(LAYERS, 1, HEADS, DIM)
    at_7 = rotated(biased, 7, "none", "halves").astype(np.float32)
    store.capture(meta(tokens), tokens, 7, at_7, values.astype(np.float32))
    k, v = empty()
    store.compose([item(tokens, 333)], k, v)
    error = np.abs(k - rotated(biased, 333, "none", "halves")).max()
    assert error < 0.05 if known else error > 0.5  # a step is a 127th of the largest


@pytest.mark.parametrize("bias", [[0.0] * 5, [float("nan")] * LAYERS * HEADS * DIM, "200", [None], 3])
def test_a_key_bias_of_another_shape_is_refused(bias):
    with pytest.raises((ValueError, TypeError), match="key_bias"):
        model(key_bias=bias)


@pytest.mark.parametrize("rope", ROPES)
def test_rope_table(rope):
    cos, sin = _core.rope_table(model(rope), POSITIONS)
    angle, scale = frequencies(rope)
    turn = np.arange(POSITIONS)[:, None] * angle
    assert cos.dtype == sin.dtype == np.float32 and not cos.flags.writeable
    # yarn's corrected range is computed in float, as ggml does.
    np.testing.assert_allclose(cos, scale * np.cos(turn), atol=1e-6)
    np.testing.assert_allclose(sin, scale * np.sin(turn), atol=1e-6)


def test_several_loads_and_any_strides(open_store):
    store = open_store()
    one, two = ids(1), ids(2, 3)
    content = {}
    for tokens in (one, two):
        keys, values = rows(int(tokens[0]), len(tokens))
        content[len(tokens)] = values.astype(np.float32)
        store.capture(meta(tokens), tokens, 0, keys.astype(np.float32), content[len(tokens)])
    loads = [store.prepare([item(one, 10), item(two, 15)]), store.prepare([item(two, 3)])]
    assert [load.tokens for load in loads] == [8, 3]
    both = np.full((LAYERS, HEADS, 11, 2 * DIM), 9, np.float32)  # heads before tokens, K and V side by side
    k, v = (both[..., half].transpose(0, 2, 1, 3) for half in (slice(0, DIM), slice(DIM, None)))
    store.compose(loads, k, v)
    np.testing.assert_array_equal(v, np.concatenate([content[5], content[3], content[3]], axis=1))
    plain_k, plain_v = empty(8)
    store.compose([item(one, 10), item(two, 15)], plain_k, plain_v)
    np.testing.assert_array_equal(k[:, :8], plain_k)
    padded = np.full((LAYERS, TOKENS, HEADS, DIM + 1), 9, np.float32)
    store.compose(store.prepare([item(one, 10)]), padded[..., :DIM], empty()[1])
    assert (padded[..., DIM] == 9).all()


def test_a_request_that_does_not_match_gets_nothing(open_store):
    store = open_store()
    tokens = ids(1)
    k, v = (a.astype(np.float32) for a in rows(1))
    store.capture(meta(tokens), tokens, 0, k, v)
    other = tokens.copy()
    other[2] += 1
    for wrong, error in [
            ({"key": "00" * 16}, KeyError), ({"scope": _core.scope_hash("system")}, PermissionError),
            ({"context": "00" * 16}, ValueError), ({"ids": other}, ValueError), ({"ids": tokens[:4]}, ValueError),
            ({"position": POSITIONS - 4}, ValueError)]:
        out = empty()
        with pytest.raises(error) as raised:
            store.compose([item(tokens, 0, **wrong)], *out)
        assert raised.value.key == wrong.get("key", key(tokens))
        assert not out[0].any() and not out[1].any()
    store.compose([item(tokens, 0, context=None)], *empty())
    assert open_store(directory="").records() == []


class Lent:
    """An array that says by DLPack that it is of another type, or on another device."""

    def __init__(self, array, code=2, device=1):
        self.array, self.code, self.device = array, code, device

    def __dlpack_device__(self):
        return self.device, 0

    def __dlpack__(self, **_):
        import ctypes
        shape = (ctypes.c_int64 * 4)(*self.array.shape)
        strides = (ctypes.c_int64 * 4)(*(s // self.array.itemsize for s in self.array.strides))

        class Tensor(ctypes.Structure):  # DLManagedTensor
            _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32), ("number", ctypes.c_int32),
                        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                        ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                        ("offset", ctypes.c_uint64), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]

        self.kept = shape, strides, Tensor(
            self.array.ctypes.data, self.device, 0, 4, self.code, 8 * self.array.itemsize, 1, ctypes.addressof(shape),
            ctypes.addressof(strides), 0, None, None)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.kept[2]), b"dltensor", None)


def test_arrays_that_do_not_fit(open_store):
    store = open_store()
    tokens = ids(1)
    k, v = (a.astype(np.float32) for a in rows(1))
    store.capture(meta(tokens), tokens, 0, k, v)
    store.compose([item(tokens, 0)], Lent(k), Lent(v))
    half = k.astype(np.float16)
    read_only = k.copy()
    read_only.flags.writeable = False
    for wrong_k, wrong_v, error in [
            (k[:2], v[:2], ValueError), (k[:, :4], v[:, :4], ValueError), (k[:, :, :1], v[:, :, :1], ValueError),
            (k[..., :8], v, ValueError), (k[0], v[0], ValueError), (k, v[:, :4], ValueError), (k, half, ValueError),
            (k[:, ::-1], v, ValueError),
            (k.astype(np.float64), v.astype(np.float64), TypeError), (k.astype(np.int32), v, TypeError),
            (k.tolist(), v, TypeError), (read_only, v, TypeError),
            (Lent(k, device=2), Lent(v, device=2), NotImplementedError)]:
        with pytest.raises(error):
            store.compose([item(tokens, 0)], wrong_k, wrong_v)
    with pytest.raises(ValueError):
        store.capture(meta(tokens), tokens[:4], 0, k, v)
    with pytest.raises(ValueError, match="bogus"):
        store.capture(meta(tokens) | {"bogus": 1}, tokens, 0, k, v)
    store.capture(meta(tokens), tokens, 0, read_only, v)


def bf16(array):
    """Values that bfloat16 has, as its bits in uint16 and as float32."""
    bits = (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return bits, (bits.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("codec, tolerance", [("bf16", 4e-2), ("f32", 1e-6), ("f16", 4e-3)])
def test_bfloat16_by_dlpack(open_store, codec, tolerance):
    store = open_store(codec=codec)
    tokens = ids(1)
    (k_bits, k), (v_bits, v) = (bf16(a) for a in rows(1))
    store.capture(meta(tokens), tokens, 0, Lent(k_bits.view(np.float16), code=4), Lent(v_bits.view(np.float16), code=4))
    out_k, out_v = empty()
    store.compose([item(tokens, 0)], out_k, out_v)
    np.testing.assert_allclose(out_k, k, atol=tolerance)
    np.testing.assert_array_equal(out_k[:, 0], k[:, 0])  # at position 0 nothing turns
    np.testing.assert_array_equal(out_v, v)
    back = [np.zeros_like(k_bits).view(np.float16) for _ in range(2)]
    store.compose([item(tokens, 0)], Lent(back[0], code=4), Lent(back[1], code=4))
    np.testing.assert_array_equal(back[1].view(np.uint16), v_bits)


def engine_cache(dtype=np.float32, blocks=4, size=8):
    """As vLLM's CPU build keeps them: of a block and head keys [dim][token], then values [token][dim]."""
    memory = np.zeros((LAYERS, blocks, HEADS, 2, size * DIM), dtype)
    k = memory[:, :, :, 0].reshape(LAYERS, blocks, HEADS, DIM, size, copy=False).transpose(0, 1, 4, 2, 3)
    v = memory[:, :, :, 1].reshape(LAYERS, blocks, HEADS, size, DIM, copy=False).transpose(0, 1, 3, 2, 4)
    return memory, k, v, _core.EngineCache(list(zip(k, v)))


def test_an_engines_cache_in_place(open_store):
    store = open_store()
    one, two = ids(1), ids(2, 9)
    content = {}
    for tokens in (one, two):
        content[len(tokens)] = [a.astype(np.float32) for a in rows(int(tokens[0]), len(tokens))]
        store.capture(meta(tokens), tokens, 0, *content[len(tokens)])
    load = store.prepare([item(one, 20), item(two, 25)])
    memory, k, v, cache = engine_cache()
    slots = np.array([9, 10, 11, 31, 0, 1, 2, 3, 4, 5], np.uint32)
    store.place([(load, 22, slots)], cache)
    plain_k, plain_v = empty(14)
    store.compose(load, plain_k, plain_v)
    flat_k, flat_v = (a.reshape(LAYERS, 32, HEADS, DIM) for a in (k, v))
    np.testing.assert_array_equal(flat_k[:, slots], plain_k[:, 2:12])
    np.testing.assert_array_equal(flat_v[:, slots], plain_v[:, 2:12])
    others = np.setdiff1d(np.arange(32), slots)
    assert not flat_k[:, others].any() and not flat_v[:, others].any()
    third = ids(3, 10)
    assert store.capture_rows(meta(third), third, 22, cache, slots) == key(third)
    again = empty(10)
    store.compose([item(third, 22)], *again)
    np.testing.assert_allclose(again[0], plain_k[:, 2:12], atol=1e-5)
    np.testing.assert_array_equal(again[1], plain_v[:, 2:12])


def test_an_engines_cache_refuses_what_does_not_fit(open_store):
    store = open_store()
    tokens = ids(1)
    store.capture(meta(tokens), tokens, 0, *(a.astype(np.float32) for a in rows(1)))
    load = store.prepare([item(tokens, 20)])
    memory, k, v, cache = engine_cache()
    good = np.arange(5, dtype=np.uint32)
    for wrong, error in [
            ((load, 19, good), ValueError), ((load, 21, good), ValueError), ((load, 20, good + 30), ValueError),
            ((load, 20, good.astype(np.int64)), TypeError), ((load, 20), TypeError), (([], 20, good), TypeError),
            ((load, -1, good), ValueError)]:
        with pytest.raises(error):
            store.place([(load, 20, good), wrong], cache)
        assert not memory.any()
    with pytest.raises(ValueError):
        store.capture_rows(meta(ids(2)), ids(2), 0, cache, good[:3])
    with pytest.raises(ValueError):
        store.place([(load, 20, good)], _core.EngineCache([(k[0], v[0])]))
    with pytest.raises(ValueError):
        _core.EngineCache([(k[0], v[0][:, :4])])
    with pytest.raises(TypeError):
        _core.EngineCache([(k[0], v[0].astype(np.int32))])
    store.place([(load, 20, good)], cache)
    assert memory.any()


def test_a_restart_lists_the_records(open_store):
    store = open_store()
    expected = []
    for seed in (1, 2, 3):
        tokens = ids(seed)
        store.capture(meta(tokens), tokens, 0, *(a.astype(np.float32) for a in rows(seed)))
        expected.append((key(tokens), SCOPE_HASH, "window", CONTEXT, tokens.tolist()))
    with pytest.raises(inferscale.ConflictError):
        open_store()
    store.flush()
    store.close()
    with pytest.raises(inferscale.RetryError):
        store.records()
    found = open_store().records()
    assert sorted((*record[:4], record[4].tolist()) for record in found) == sorted(expected)
    assert all(record[4].dtype == np.int32 for record in found)


def test_damage_on_disk_is_told_and_dropped(open_store, tmp_path):
    store = open_store()
    tokens = ids(1)
    store.capture(meta(tokens), tokens, 0, *(a.astype(np.float32) for a in rows(1)))
    store.close()
    (segment,) = (p for p in tmp_path.rglob("*") if p.is_file() and p.stat().st_size > 2000)
    content = bytearray(segment.read_bytes())
    content[1500] ^= 1
    segment.write_bytes(content)
    store = open_store()
    out = empty()
    with pytest.raises(inferscale.CorruptionError) as raised:
        store.compose([item(tokens, 0)], *out)
    assert raised.value.key == key(tokens)
    assert not out[0].any() and not store.contains(key(tokens))
    store.close()
    store = open_store()
    assert store.records() == []


def test_verify_counts(open_store, tmp_path):
    store = open_store()
    for seed in (1, 2):
        store.capture(meta(ids(seed)), ids(seed), 0, *(a.astype(np.float32) for a in rows(seed)))
    assert store.verify() == {"records": 2, "corrupt": [], "foreign": 0}
    assert store.check([key(ids(2)), "ff" * 16]) == {"sound": [key(ids(2))], "corrupt": []}
    store.close()
    other = open_store(model(fingerprint="cd" * 16))
    assert other.verify() == {"records": 0, "corrupt": [], "foreign": 2}
    assert other.check([key(ids(1))]) == {"sound": [], "corrupt": []}
    stats = other.stats()
    assert [tier["name"] for tier in stats["tiers"]] == ["host", "disk"]
    assert stats["tiers"][1]["records"] == 2 and stats["unreadable"] == 0


@pytest.mark.parametrize("by_scope", [False, True])
def test_erased_bytes_are_gone_from_the_files(open_store, tmp_path, by_scope):
    store = open_store()
    tokens = ids(1)
    k, v = (a.astype(np.float32) for a in rows(1))
    store.capture(meta(tokens), tokens, 0, k, v)
    store.flush()
    needle = v[0, 0].tobytes()
    holds = lambda: any(needle in p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
    assert holds()
    load = store.prepare([item(tokens, 0)])
    counts = store.erase_scope(SCOPE_HASH) if by_scope else store.erase([key(tokens)])
    assert counts == {"gpu": 0, "pinned": 0, "host": 1, "disk": 1, "leased": 1}
    assert not holds()
    assert not store.contains(key(tokens))
    with pytest.raises(KeyError):
        store.prepare([item(tokens, 0)])
    out = empty()
    store.compose(load, *out)  # a lease keeps its record
    np.testing.assert_array_equal(out[1], v)


def test_shards(open_store, tmp_path):
    for index in (0, 1):
        store = open_store(directory=tmp_path / str(index), shard=(index, 2))
        tokens = ids(1)
        k, v = (a.astype(np.float32)[:, :, index : index + 1] for a in rows(1))
        store.capture(meta(tokens), tokens, 0, k, v)
        out = tuple(a[:, :, :1] for a in empty())
        store.compose([item(tokens, 0)], *out)
        np.testing.assert_array_equal(out[1], v)
    with pytest.raises(ValueError, match="shard"):
        open_store(directory=tmp_path / "3", shard=(0, 3))


def test_threads(open_store):
    store = open_store(host_budget=1 << 18)
    content = {seed: [a.astype(np.float32) for a in rows(seed)] for seed in range(8)}
    failures = []

    def work(number):
        try:
            for turn in range(60):
                seed = (number + turn) % 8
                tokens = ids(seed)
                if turn % 3 == number % 3:
                    store.capture(meta(tokens), tokens, 0, *content[seed])
                elif turn % 10 == 9:
                    store.erase([key(tokens)])
                out = empty()
                try:
                    store.compose([item(tokens, 0)], *out)
                except KeyError:
                    continue
                np.testing.assert_array_equal(out[1], content[seed][1])
        except Exception as error:  # a failed thread fails the test
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert store.stats()["leases_active"] == 0


def test_model_specs_are_checked():
    for change in ({"fingerprint": "x"}, {"shape": {}}, {"extra": 1}, {"pairing": "thirds"}, {"shape": {"n_layers": 1}}):
        with pytest.raises(ValueError):
            model(**change)
    for change in ({"shape": 5}, {"vocab_size": 1.5}, {"fingerprint": 5}):
        with pytest.raises(TypeError):
            model(**change)
    assert model().fingerprint == "ab" * 16
    assert model("yarn").rope_bytes != model("linear").rope_bytes


def test_model_files(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    files = [str(tmp_path / "b"), tmp_path / "a"]
    whole = _core.hf_fingerprint(files, b"rope")
    assert whole == _core.hf_fingerprint(files[::-1], b"rope", cache_directory=tmp_path / "cache")
    assert whole != _core.hf_fingerprint(files, b"other")
    with pytest.raises(KeyError):
        _core.hf_fingerprint([tmp_path / "gone"], b"")


def test_types_are_declared():
    stubs = (inferscale.__path__[0] + "/_core.pyi")
    text = open(stubs).read()
    for name in ("class RecordStore", "class SchedulerIndex", "class ModelSpec", "def parse_params(json: str, secret: bytes) "
                 "-> RequestParams", "class CorruptionError"):
        assert name in text
    compile(text, stubs, "exec")
