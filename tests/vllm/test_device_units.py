"""What the connector tells a device, and what it makes of the answers, without a device or an engine."""

from __future__ import annotations

import pickle
import threading

import numpy as np
import pytest
import torch
from inferscale import _core
from inferscale.vllm import layout, probe, settings
from inferscale.vllm.device_path import DevicePath, in_parts, load_items, load_rows
from inferscale.vllm.model import Refused
from inferscale.vllm.messages import CaptureJob, LoadItem, LoadJob, WorkerAcks

BLOCK, KEYS = 4, ["%032x" % n for n in range(1, 5)]
BLOCKS, HEADS, DIM = 5, 3, 8


def item(number, begin, count):
    return LoadItem(KEYS[number], "ab" * 16, None, np.arange(count, dtype=np.int32), begin)


def job(begin, end, blocks, items, name="q"):
    return LoadJob(name, begin, end, begin // BLOCK, blocks, items)


# -- what is loaded ---------------------------------------------------------------------------------


def test_records_are_placed_from_where_the_prefix_cache_ends():
    """Tokens 4 to 10 are wanted of records that stand at 2 to 5, 6 to 8 and 9 to 11."""
    items = load_items([job(4, 11, [7, 9], [item(0, 2, 4), item(1, 6, 3), item(2, 9, 3)])])
    assert [(key, position, first, count) for key, _, _, _, position, first, count in items] == [
        (KEYS[0], 2, 2, 2), (KEYS[1], 6, 0, 3), (KEYS[2], 9, 0, 2)
    ]


def test_rows_are_the_slots_of_all_jobs_in_order():
    jobs = [job(4, 11, [7, 9], [item(0, 4, 7)]), job(1, 3, [2], [item(1, 1, 2)])]
    rows = load_rows(jobs, BLOCK)
    assert rows.dtype == np.uint32
    assert rows.tolist() == [28, 29, 30, 31, 36, 37, 38, 9, 10]
    assert len(rows) == sum(entry[-1] for entry in load_items(jobs))


# -- how the cache is described ---------------------------------------------------------------------


def families():
    packed = torch.arange(BLOCKS * BLOCK * HEADS * 2 * DIM, dtype=torch.int32).to(torch.bfloat16)
    return {
        "packed, NHD": packed.view(BLOCKS, BLOCK, HEADS, 2 * DIM).transpose(1, 2),
        "packed, HND": packed.view(BLOCKS, HEADS, BLOCK, 2 * DIM),
        "two first": packed.view(2, BLOCKS, BLOCK, HEADS, DIM),
        "two second": packed.view(BLOCKS, 2, BLOCK, HEADS, DIM),
        "kernel blocks": packed.view(2 * BLOCKS, HEADS, BLOCK // 2, 2 * DIM),
    }


@pytest.mark.parametrize("name", sorted(families()))
def test_described_addresses_are_those_of_the_elements(name):
    cache = families()[name]
    told = layout.describe([cache, cache], BLOCKS)
    assert told["dtype"] == "bf16" and told["n_rows"] == BLOCKS * BLOCK and len(told["k"]) == 2
    reader = layout.StridedLayout([cache], BLOCKS)
    storage = cache.untyped_storage()
    bits = torch.frombuffer(bytearray(bytes(storage)), dtype=torch.bfloat16)
    slots = torch.tensor([0, 6, 2 * BLOCK + 3, BLOCKS * BLOCK - 1])
    for part, base, read in zip(("k_strides", "v_strides"), ("k", "v"), reader.read(0, slots)):
        block, row, head = told[part]
        start = told[base][0] - storage.data_ptr()
        for slot, rows in zip(slots.tolist(), read):
            per = told["rows_per_block"]
            for h in range(HEADS):
                at = (start + slot // per * block + slot % per * row + h * head) // 2
                assert torch.equal(bits[at : at + DIM], rows[h])


def test_layers_that_differ_are_not_described():
    one, other = torch.zeros(BLOCKS, HEADS, BLOCK, 2 * DIM), torch.zeros(BLOCKS, HEADS, 2 * BLOCK, 2 * DIM)
    with pytest.raises(ValueError, match="different shapes"):
        layout.describe([one, other], BLOCKS)
    with pytest.raises(ValueError, match="int32"):
        layout.describe([one.int()], BLOCKS)


# -- captures ---------------------------------------------------------------------------------------


class Batch:
    """Captures whose bytes arrive when the test says so."""

    def __init__(self, runs):
        self.runs, self.arrived, self.stored = runs, threading.Event(), []

    def wait(self):
        assert self.arrived.wait(20)

    def first_layer_keys(self, number):
        return bytes(4 * len(self.runs[number][1]) * HEADS * DIM)

    def store(self, number):
        if self.runs[number][0]["key"] == KEYS[3]:
            raise MemoryError("full")
        self.stored.append(number)


class Device:
    """As a RecordStore with a device."""

    def __init__(self):
        self.batches, self.loads = [], []

    def load(self, items, tokens, rows, stream):
        self.loads.append((items, tokens, rows, stream))

    def begin_capture(self, runs, stream):
        if not runs[0][0]["key"]:
            raise RuntimeError("the device failed")
        if sum(not batch.stored for batch in self.batches) == 2:
            raise MemoryError("all buffers are in use")
        self.batches.append(Batch(runs))
        return self.batches[-1]


class Records:
    """As RankRecords, with one key that was erased meanwhile."""

    def __init__(self):
        self.store = Device()

    def keep(self, meta, fence, store):
        if meta["key"] == KEYS[2]:
            return "capture_erased"
        store()
        return None

    def evicted(self):
        return [KEYS[1]]


class Repeated:
    def __init__(self):
        self.answer = True

    def agree_plain(self, tokens, keys):
        return self.answer


@pytest.fixture
def path():
    made = DevicePath(Records(), BLOCK, Repeated(), 0, 8, lambda: 77)
    yield made
    for batch in made._store.batches:
        batch.arrived.set()
    made.close()


def captures(*keys):
    tokens = np.arange(3, dtype=np.int32)
    return [CaptureJob("q", key, 5, tokens, 1, [6, 2], {"key": key}, 0) for key in keys]


def test_a_step_does_not_wait_for_its_captures(path):
    acks = WorkerAcks()
    path.save(captures(KEYS[0], KEYS[2], KEYS[3]), acks)  # returns although nothing has arrived
    batch, rest = path._store.batches
    assert not acks.captured and not acks.empty()
    assert [len(part.runs) for part in (batch, rest)] == [2, 1], "8 tokens at a time"
    assert batch.runs[0][3].tolist() == [25, 26, 27] and batch.runs[0][2] == 5
    for arrived in (batch.arrived, rest.arrived):
        threading.Timer(0.05, arrived.set).start()
    told = pickle.loads(pickle.dumps(acks))  # what goes to another process waits
    assert told.captured == [(0, KEYS[0])]
    assert told.refused == [(0, KEYS[2], "capture_erased"), (0, KEYS[3], "capture_store_full")]
    assert (0, KEYS[1]) in told.lost and batch.stored == [0] and not told.later
    assert acks.settle().captured == told.captured, "settled once"


def test_a_step_waits_when_all_buffers_are_on_their_way(path):
    first, second = WorkerAcks(), WorkerAcks()
    path.save(captures(*[KEYS[0]] * 4), first)
    threading.Timer(0.05, path._store.batches[0].arrived.set).start()
    path.save(captures(KEYS[0]), second)
    for batch in path._store.batches:
        batch.arrived.set()
    assert len(first.settle().captured) == 4 and len(second.settle().captured) == 1


def test_jobs_are_cut_into_parts_in_order():
    parts = [[entry for entry in part] for part in in_parts([5, 3, 1, 9, 2, 2], lambda job: job, 8, 2)]
    assert parts == [[5, 3], [1], [9], [2, 2]]


def test_captures_of_all_ranks_are_joined_when_they_are_known(path):
    mine, other = WorkerAcks(), WorkerAcks(captured=[(1, KEYS[0])])
    path.save(captures(KEYS[0]), mine)
    path._store.batches[0].arrived.set()
    assert sorted(other.aggregate(mine).captured) == [(0, KEYS[0]), (1, KEYS[0])]


def test_keys_that_do_not_rotate_as_said_are_not_stored(path):
    acks = WorkerAcks()
    path._repeated.answer = False
    path.save(captures(KEYS[0]), acks)
    path._store.batches[0].arrived.set()
    assert acks.settle().refused == [(0, KEYS[0], "capture_rotation")]
    assert not path._store.batches[0].stored


def test_a_capture_that_cannot_begin_is_refused_at_once(path):
    acks = WorkerAcks()
    path.save(captures(""), acks)
    assert acks.refused == [(0, "", "capture_failed")] and not acks.later


def test_loads_go_to_the_engines_stream(path):
    path.load([job(4, 8, [7], [item(0, 4, 4)])])
    items, tokens, rows, stream = path._store.loads[0]
    assert tokens.tolist() == [0, 1, 2, 3]
    assert stream == 77 and rows.tolist() == [28, 29, 30, 31] and items[0][0] == KEYS[0]


# -- the check at start -----------------------------------------------------------------------------

LAYERS, POSITIONS = 3, 64
SPEC = {
    "architecture": "llama", "trained_positions": POSITIONS, "vocab_size": 1000, "fingerprint": "ab" * 16,
    "shape": {"n_layers": LAYERS, "n_kv_heads": HEADS, "head_dim_k": DIM, "head_dim_v": DIM},
    "rope": {"pairing": "halves", "freq_base": 10000.0, "rotary_dim": DIM, "scaling": "none"},
}


class Rotating:
    """An engine's adapter."""

    def __init__(self, base=10000.0):
        self.frequencies = base ** (-torch.arange(DIM // 2) / (DIM // 2))

    def rotate(self, module, positions, key):
        angle = positions[:, None, None] * self.frequencies
        one, two = key[..., : DIM // 2], key[..., DIM // 2 :]
        return torch.cat(
            [one * angle.cos() - two * angle.sin(), two * angle.cos() + one * angle.sin()], -1
        )


class Careless(layout.StridedLayout):
    """Writes a row too many, each time something else."""

    calls = 0

    def write(self, layer, key, value, slots):
        super().write(layer, key, value, slots)
        self.calls += 1
        if layer == 1:
            super().write(layer, torch.full_like(key[:1], self.calls), value[:1], slots[:1] * 0)


def check(dtype, codec, adapter, made=layout.StridedLayout):
    tensors = [torch.zeros(BLOCKS, BLOCK, HEADS, 2 * DIM, dtype=dtype).transpose(1, 2) for _ in range(LAYERS)]
    both = made(tensors, BLOCKS)
    caches = layout.describe(tensors, BLOCKS) | {"device": "plain"}
    probe.check_device(
        adapter, None, _core.ModelSpec.from_dict(SPEC), codec, caches, tensors, both, both, BLOCKS, BLOCK,
        POSITIONS, (0, 1), lambda: 0,
    )
    assert all(not tensor.float().abs().sum() for tensor in tensors)


@pytest.mark.parametrize("codec", ["f16", "bf16", "f32", "q8", "fp8_e4m3"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_an_engine_that_does_as_we_do_passes(dtype, codec):
    if (dtype, codec) in ((torch.float32, "f16"), (torch.float32, "bf16"), (torch.float16, "bf16")):
        pytest.skip("records of less precision than the cache")
    check(dtype, codec, Rotating())


def test_an_engine_that_rotates_otherwise_is_refused():
    with pytest.raises(Refused, match="composed keys differ"):
        check(torch.bfloat16, "bf16", Rotating(500.0))


def test_an_engine_that_writes_elsewhere_too_is_refused():
    with pytest.raises(Refused, match="outside the blocks"):
        check(torch.bfloat16, "bf16", Rotating(), Careless)


# -- settings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "budget"), [("2GiB", 2 << 30), (4096, 4096), (0, 0), (0.25, 0.25)]
)
def test_budgets_are_sizes_or_fractions_of_what_is_free(tmp_path, given, budget):
    made = settings.load_settings({"data_dir": str(tmp_path), "gpu_budget": given})
    assert made.gpu_budget == budget
    assert settings.budget_bytes(made.gpu_budget, 1000) == (250 if given == 0.25 else budget)


@pytest.mark.parametrize("given", [1.0, 0.0, -0.5, float("nan"), "half", True])
def test_other_budgets_are_refused(tmp_path, given):
    with pytest.raises(ValueError, match="gpu_budget"):
        settings.load_settings({"data_dir": str(tmp_path), "gpu_budget": given})
