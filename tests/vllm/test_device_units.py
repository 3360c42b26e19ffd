"""What the connector tells a device, and what it makes of the answers, without a device or an engine."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch
from inferscale import _core
from inferscale.vllm import device_path, layout, probe, rank_channel, settings
from inferscale.vllm.captures import CaptureRoom
from inferscale.vllm.device_path import DevicePath, in_parts, load_rows
from inferscale.vllm.late_captures import Outbox
from inferscale.vllm.messages import CaptureJob, CaptureResult, LoadJob, WorkerAcks
from inferscale.vllm.model import Refused
from inferscale.vllm.ranks import Ranks
from inferscale.vllm.records import RecordBook, RecordInfo
from inferscale.vllm.store import RankRecords

BLOCK, KEYS = 4, ["%032x" % n for n in range(1, 5)]
BLOCKS, HEADS, DIM = 5, 3, 8


def job(begin, end, blocks, name="q"):
    return LoadJob(name, begin, end, begin // BLOCK, blocks, b"plan", np.arange(begin, end, dtype=np.int32))


# -- what is loaded ---------------------------------------------------------------------------------


def test_rows_are_the_slots_of_all_jobs_in_order():
    jobs = [job(4, 11, [7, 9]), job(1, 3, [2])]
    rows = load_rows(jobs, BLOCK)
    assert rows.dtype == np.uint32
    assert rows.tolist() == [28, 29, 30, 31, 36, 37, 38, 9, 10]
    assert load_rows(jobs[1:], BLOCK).tolist() == [9, 10] and load_rows(jobs[1:], BLOCK).dtype == np.uint32


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
        self.runs, self.arrived, self.stored, self.released = runs, threading.Event(), [], threading.Event()
        self.error = None

    def wait(self):
        assert self.arrived.wait(20)
        if self.error is not None:
            raise self.error

    def first_layer_keys(self, number):
        return bytes(4 * len(self.runs[number][1]) * HEADS * DIM)

    def store(self, number):
        if self.runs[number][0]["key"] == KEYS[3]:
            raise MemoryError("full")
        self.stored.append(number)

    def release(self):
        self.released.set()


class Device:
    """As a RecordStore with a device that has memory for two captures at a time."""

    def __init__(self):
        self.batches, self.loads, self.present = [], [], []

    def load(self, plans, rows, stream):
        self.loads.append((plans, rows, stream))

    def begin_capture(self, runs, stream):
        if not runs[0][0]["key"]:
            raise RuntimeError("the device failed")
        if sum(not batch.released.is_set() for batch in self.batches) == 2:
            raise MemoryError("all buffers are in use")
        self.batches.append(Batch(runs))
        return self.batches[-1]

    def erase(self, keys):
        self.present += keys
        return dict.fromkeys(("gpu", "pinned", "host", "disk", "leased"), 0)

    def flush(self):
        pass

    def stats(self):
        return {"tiers": []}


class Repeated:
    def __init__(self):
        self.answer = True

    def agree_plain(self, tokens, keys):
        return self.answer


@pytest.fixture
def outbox():
    return Outbox()


@pytest.fixture
def path(outbox):
    records = RankRecords(Device())
    made = DevicePath(records, BLOCK, Repeated(), 0, 8, lambda: 77, outbox)
    made.store = records.store
    made.records, made.batches, made.repeated = records, records.store.batches, made._late._repeated
    yield made
    for batch in made.batches:
        batch.arrived.set()
    made.close()


def captures(*keys, fence=0):
    tokens = np.arange(3, dtype=np.int32)
    return [
        CaptureJob("q", key, 5, tokens, 1, [6, 2], {"key": key, "scope_hash": "ab" * 16}, fence, number)
        for number, key in enumerate(keys)
    ]


def told(outbox, count):
    """Keys and reasons of the next results, once there are so many."""
    found, last = [], 0
    until = time.monotonic() + 20
    while len(found) < count:
        assert time.monotonic() < until
        answer = outbox.take(last, 1.0)
        last = answer["last"]
        found += [(result.key, result.reason) for results, _ in answer["entries"] for result in results]
    return found


def test_a_step_does_not_wait_for_its_captures(path, outbox):
    acks = WorkerAcks()
    path.save(captures(KEYS[0], KEYS[1], KEYS[3]), acks)  # returns although nothing has arrived
    batch, rest = path.batches
    assert acks.empty() and outbox.take(0, 0.0) == {"last": 0, "entries": []}
    assert [len(part.runs) for part in (batch, rest)] == [2, 1], "8 tokens at a time"
    assert batch.runs[0][3].tolist() == [25, 26, 27] and batch.runs[0][2] == 5
    rest.arrived.set()
    assert outbox.take(0, 0.05)["entries"] == [], "one after the other"
    batch.arrived.set()
    assert told(outbox, 3) == [(KEYS[0], None), (KEYS[1], None), (KEYS[3], "capture_store_full")]
    assert batch.stored == [0, 1] and batch.released.is_set()


def test_memory_is_free_before_its_captures_are_told(path, outbox):
    path.save(captures(KEYS[0]), WorkerAcks())
    path.batches[0].arrived.set()
    told(outbox, 1)
    assert path.batches[0].released.is_set()


def test_more_captures_than_memory_wait_for_earlier_ones(path, outbox):
    threads = threading.Timer(0.05, lambda: path.batches[0].arrived.set())
    threads.start()
    acks = WorkerAcks()
    path.save(captures(*[KEYS[0]] * 6), acks)
    for batch in path.batches:
        batch.arrived.set()
    assert len(told(outbox, 6)) == 6 and acks.empty() and len(path.batches) == 3


def test_captures_are_refused_when_the_memory_does_not_become_free(path, outbox, monkeypatch):
    monkeypatch.setattr(device_path, "_PATIENCE_S", 0.05)
    acks = WorkerAcks()
    path.save(captures(*[KEYS[0]] * 4), acks)
    path.save(captures(KEYS[1]), acks)
    assert [(result.key, result.reason) for result in acks.captured] == [(KEYS[1], "capture_busy")]
    assert not path.batches[0].stored


def test_a_capture_under_way_of_an_erased_key_is_not_stored(path, outbox):
    """Erased between the queueing of the capture and the arrival of its bytes."""
    path.save(captures(KEYS[0], KEYS[1]), WorkerAcks())
    path.records.erase({"keys": [KEYS[0]], "scopes": [], "fence": 1})
    path.batches[0].arrived.set()
    assert told(outbox, 2) == [(KEYS[0], "capture_erased"), (KEYS[1], None)]
    assert path.batches[0].stored == [1]


def test_a_capture_under_way_of_an_erased_owner_is_not_stored(path, outbox):
    path.save(captures(KEYS[0]), WorkerAcks())
    path.records._erased["ab" * 16] = 1  # as erase does for a scope
    path.batches[0].arrived.set()
    assert told(outbox, 1) == [(KEYS[0], "capture_erased")] and path.batches[0].stored == []


def test_settling_waits_until_the_bytes_of_earlier_captures_are_gone(path, outbox):
    """An erasure is acknowledged behind it."""
    path.save(captures(KEYS[0]), WorkerAcks())
    with pytest.raises(TimeoutError):
        path.settle(0.02)
    threading.Timer(0.05, path.batches[0].arrived.set).start()
    path.settle(20.0)
    assert path.batches[0].released.is_set()


def test_what_is_under_way_at_the_end_is_stored_whole_or_not_at_all(path, outbox, monkeypatch):
    monkeypatch.setattr(device_path, "_CLOSE_S", 0.1)
    path.save(captures(KEYS[0], KEYS[1]), WorkerAcks())
    path.save(captures(KEYS[2]), WorkerAcks())
    first, second = path.batches
    path.close()  # nothing arrives in time
    first.arrived.set()
    assert told(outbox, 3) == [(key, "capture_failed") for key in KEYS[:3]]
    assert not first.stored and not second.stored and second.released.is_set()


def test_what_arrives_in_time_is_stored_at_the_end(path, outbox):
    path.save(captures(KEYS[0]), WorkerAcks())
    threading.Timer(0.05, path.batches[0].arrived.set).start()
    path.close()
    assert path.batches[0].stored == [0] and told(outbox, 1) == [(KEYS[0], None)]


def test_a_device_that_fails_refuses_its_captures_and_the_next_go_on(path, outbox):
    path.save(captures(KEYS[0]), WorkerAcks())
    path.save(captures(KEYS[1]), WorkerAcks())
    path.batches[0].error = RuntimeError("the device failed")
    for batch in path.batches:
        batch.arrived.set()
    assert told(outbox, 2) == [(KEYS[0], "capture_failed"), (KEYS[1], None)]


def test_an_answer_that_was_lost_is_given_again():
    outbox = Outbox()
    outbox.put([CaptureResult(0, 1, KEYS[0])], [])
    outbox.put([], [KEYS[1]])
    first = outbox.take(0, 0.0)
    assert first == outbox.take(0, 0.0) and first["last"] == 2 and len(first["entries"]) == 2
    assert outbox.take(1, 0.0)["entries"] == [[[], [KEYS[1]]]]
    assert outbox.take(2, 0.0) == {"last": 2, "entries": []}
    outbox.close()
    assert outbox.take(2, 20.0)["entries"] == [], "nobody waits any more"


def test_the_scheduler_is_told_while_the_engine_is_idle(tmp_path):
    """Over the ranks' channel, in order, and again after a lost connection."""
    outbox = Outbox()
    handlers = {"captured": lambda m: outbox.take(m["after"], min(0.05, m["wait_s"]))}
    at = rank_channel.socket_path(tmp_path, 0)
    server = rank_channel.RankServer(at, "token", handlers)
    ranks = Ranks(tmp_path, "token", 1)
    heard, more = [], threading.Semaphore(0)
    ranks.follow(lambda *what: (heard.append(what), more.release()))
    outbox.put([CaptureResult(0, 1, KEYS[0])], [KEYS[1]])
    assert more.acquire(timeout=20)
    server.close()
    server = rank_channel.RankServer(at, "token", handlers)
    outbox.put([CaptureResult(0, 2, KEYS[2], "capture_erased")], [])
    assert more.acquire(timeout=20)
    ranks.close()
    server.close()
    assert heard == [
        (0, [CaptureResult(0, 1, KEYS[0])], [KEYS[1]]),
        (0, [CaptureResult(0, 2, KEYS[2], "capture_erased")], []),
    ]


def test_jobs_are_cut_into_parts_in_order():
    parts = [[entry for entry in part] for part in in_parts([5, 3, 1, 9, 2, 2], lambda job: job, 8, 2)]
    assert parts == [[5, 3], [1], [9], [2, 2]]


def test_keys_that_do_not_rotate_as_said_are_not_stored(path, outbox):
    path.repeated.answer = False
    path.save(captures(KEYS[0]), WorkerAcks())
    path.batches[0].arrived.set()
    assert told(outbox, 1) == [(KEYS[0], "capture_rotation")]
    assert not path.batches[0].stored


def test_a_capture_that_cannot_begin_is_refused_at_once(path):
    acks = WorkerAcks()
    path.save(captures(""), acks)
    assert acks.captured == [CaptureResult(0, 0, "", "capture_failed")]


def test_loads_go_to_the_engines_stream(path):
    path.load([job(4, 8, [7]), job(1, 3, [2])])
    plans, rows, stream = path.store.loads[0]
    assert [(plan, tokens.tolist()) for plan, tokens in plans] == [(b"plan", [4, 5, 6, 7]), (b"plan", [1, 2])]
    assert stream == 77 and rows.tolist() == [28, 29, 30, 31, 9, 10]


# -- what the scheduler makes of it -------------------------------------------------------------------------


def captured_info(digest="ab" * 16):
    return RecordInfo(digest, "header", "00" * 16, np.arange(3, dtype=np.int32))


def test_of_two_captures_of_a_key_the_later_one_counts():
    """What is told late of a capture before an erasure must not be taken for the one behind it."""
    book, key = RecordBook(1), "01" * 16
    book.expect(key, captured_info(), 1)
    book.erase([key], set())
    book.expect(key, captured_info(), 2)
    assert not book.arrived(0, key, 1) and not book.ready(key)
    book.refused(0, key, 1)
    assert book.missing(key, 2)
    assert book.arrived(0, key, 2) and book.ready(key)
    book.refused(0, key, 2)
    assert book.ready(key), "it has been told of already"


def test_an_evicted_copy_does_not_end_the_capture_of_the_next():
    book, key = RecordBook(2), "01" * 16
    book.expect(key, captured_info(), 1)
    book.lost(0, key)
    assert not book.arrived(0, key, 1) and book.arrived(1, key, 1) and book.ready(key)
    book.expect(key, captured_info(), 2)
    assert not book.arrived(0, key, 2)
    book.lost(0, key)  # what has just arrived
    assert not book.arrived(1, key, 2) and not book.ready(key)


def test_room_for_captures():
    room = CaptureRoom(10)
    assert room.fits(50), "alone"
    room.take(4)
    assert room.fits(6) and not room.fits(7)
    room.give_back(4)
    assert room.fits(50)
    free = CaptureRoom(0)
    free.take(1000)
    assert free.fits(1000), "no limit"


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


@pytest.mark.parametrize("codec", ["f16", "bf16", "f32", "q8", "fp8_e4m3", "q4"])
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
