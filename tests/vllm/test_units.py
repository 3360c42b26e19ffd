"""Parts that need no engine: settings, versions, layouts, the rank channel, erasing, statistics."""

from __future__ import annotations

import os
import pickle
import socket
import stat
import threading

import numpy as np
import pytest
import torch

from inferscale import _core
from inferscale.vllm import erasure, layout, messages, model, probe, rank_channel, settings, stats, versions
from inferscale.vllm.epochs import EpochTable
from inferscale.vllm.records import RecordBook, RecordInfo
from inferscale.vllm.trace import Trace, TraceRing
from inferscale.vllm.tracking import InjectedBlocks

ALICE = {"tenant": "acme", "user": "alice", "agent": "", "run": ""}
OWNER = ("acme", "alice")


# -- settings ---------------------------------------------------------------------------------------


def test_settings_make_a_secret_that_nobody_else_reads(tmp_path):
    first = settings.load_settings({"data_dir": str(tmp_path / "a" / "vllm")})
    again = settings.load_settings({"data_dir": str(tmp_path / "a" / "vllm")})
    assert first == again and len(first.secret) == 32
    assert stat.S_IMODE((tmp_path / "a" / "vllm" / "secret").stat().st_mode) == 0o600


def test_settings_use_the_secret_of_the_data_directory_around(tmp_path):
    (tmp_path / "secret").write_bytes(b"s" * 32)
    os.chmod(tmp_path / "secret", 0o600)
    assert settings.load_settings({"data_dir": str(tmp_path / "vllm")}).secret == b"s" * 32


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"require_signature": False}, "require_signature"),
        ({"store_codec": "q7"}, "store_codec"),
        ({"host_budget": "1 GB"}, "host_budget"),
        ({"host_budget": -1}, "host_budget"),
        ({"disk_budget": True}, "disk_budget"),
        ({"control_port": 70000}, "control_port"),
        ({"control_host": "0.0.0.0"}, "control_host"),
        ({"data_dir": 3}, "data_dir"),
    ],
)
def test_settings_that_are_not_known_are_refused(tmp_path, extra, named):
    with pytest.raises(ValueError, match=named):
        settings.load_settings({"data_dir": str(tmp_path)} | extra)


@pytest.mark.parametrize(("mode", "content"), [(0o644, b"s" * 32), (0o600, b"s" * 31)])
def test_a_secret_that_others_read_or_of_another_size_is_refused(tmp_path, mode, content):
    (tmp_path / "mine").write_bytes(content)
    os.chmod(tmp_path / "mine", mode)
    with pytest.raises(ValueError, match="secret file"):
        settings.load_settings({"data_dir": str(tmp_path / "d"), "secret_file": str(tmp_path / "mine")})


# -- versions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "adapter"),
    [("0.26.0", "v0_26"), ("0.26.1+cpu", "v0_26"), ("0.32.0", "v0_32"), ("0.25.9", None),
     ("0.27.0", None), ("0.33.0", None), ("1.26.0", None), ("dev", None)],
)
def test_versions(version, adapter):
    assert versions.adapter_name(version) == adapter


# -- layouts ----------------------------------------------------------------------------------------

BLOCKS, SIZE, HEADS, DIM = 5, 4, 3, 8


def caches():
    """name -> an empty cache of each family, in the memory orders NHD and HND."""
    nhd = torch.zeros(BLOCKS, SIZE, HEADS, 2 * DIM).transpose(1, 2)
    return {
        "two first": torch.zeros(2, BLOCKS, SIZE, HEADS, DIM),
        "two second": torch.zeros(BLOCKS, 2, SIZE, HEADS, DIM),
        "two second, HND": torch.zeros(BLOCKS, 2, HEADS, SIZE, DIM).transpose(2, 3),
        "packed, NHD": nhd,
        "packed, HND": torch.zeros(BLOCKS, HEADS, SIZE, 2 * DIM),
        "packed, in a larger buffer": torch.zeros(BLOCKS, 3, HEADS, SIZE, 2 * DIM)[:, 1],
        "kernel blocks": torch.zeros(2 * BLOCKS, HEADS, SIZE // 2, 2 * DIM),
    }


@pytest.mark.parametrize("name", sorted(caches()))
def test_strided_layout_gives_back_what_it_wrote_and_touches_nothing_else(name):
    cache = caches()[name]
    both = layout.StridedLayout([cache], BLOCKS)
    slots = torch.from_numpy(layout.split_slots([3, 1], 0, 1, 7, SIZE))
    assert slots.tolist() == [13, 14, 15, 4, 5, 6]
    key, value = torch.randn(6, HEADS, DIM), torch.randn(6, HEADS, DIM)
    both.write(0, key, value, slots)
    read_key, read_value = both.read(0, slots)
    assert torch.equal(read_key, key) and torch.equal(read_value, value)
    assert torch.isclose(cache.double().sum(), key.double().sum() + value.double().sum())


def test_strided_layout_puts_keys_where_the_packed_family_has_them():
    cache = caches()["packed, NHD"]
    layout.StridedLayout([cache], BLOCKS).write(
        0, torch.full((1, HEADS, DIM), 2.0), torch.full((1, HEADS, DIM), 3.0), torch.tensor([2 * SIZE + 1])
    )
    assert (cache[2, :, 1, :DIM] == 2).all() and (cache[2, :, 1, DIM:] == 3).all()


@pytest.mark.parametrize("shape", [(BLOCKS, 576), (3, BLOCKS, SIZE, HEADS, DIM), (BLOCKS + 1, HEADS, SIZE, DIM)])
def test_strided_layout_refuses_other_shapes(shape):
    with pytest.raises(ValueError, match="KV cache"):
        layout.StridedLayout([torch.zeros(shape)], BLOCKS)


def test_cpu_reader_reads_keys_by_column_and_values_by_row():
    cache = torch.arange(2.0 * HEADS * SIZE * 2 * DIM).view(2, HEADS, SIZE, 2 * DIM)
    key, value = layout.CpuReader([cache]).read(0, torch.tensor([SIZE + 2]))
    base = (1 * HEADS + 1) * 2 * SIZE * DIM  # block 1, head 1
    assert key[0, 1].tolist() == [base + d * SIZE + 2 for d in range(DIM)]
    assert value[0, 1].tolist() == [base + SIZE * DIM + 2 * DIM + d for d in range(DIM)]


def test_cpu_reader_refuses_a_cache_with_gaps():
    with pytest.raises(ValueError, match="CPU cache"):
        layout.CpuReader([caches()["packed, NHD"]])


# -- the core in the engine's cache ------------------------------------------------------------------


class ByPairs:
    """Writes as the reader reads."""

    def __init__(self, reader):
        self.pairs = reader.pairs

    def write(self, layer, key, value, slots):
        for rows, new in zip(self.pairs[layer], (key, value)):
            rows[slots // SIZE, slots % SIZE] = new


class Otherwise(ByPairs):
    """An engine that keeps the second half of each head's values first: its readers know, we do not."""

    def write(self, layer, key, value, slots):
        super().write(layer, key, value.roll(1, -1), slots)


def in_place(writer, dtype, num_blocks=BLOCKS, changed=None):
    caches = [torch.zeros(BLOCKS, HEADS, SIZE, 2 * DIM, dtype=dtype) for _ in range(2)]
    reader = layout.CpuReader(caches)
    pairs = reader.pairs if changed is None else [changed(*pair) for pair in reader.pairs]
    cache = _core.EngineCache(pairs)
    probe.check_in_place(
        cache, writer(reader), reader, caches, num_blocks, SIZE, spec(10000.0, layers=2), 1, 512
    )
    return caches


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_core_writes_what_the_engine_writes(dtype):
    assert all(not cache.any() for cache in in_place(ByPairs, dtype))


@pytest.mark.parametrize(("case", "reason"), [
    ({"writer": Otherwise}, "writes the same rows otherwise"),
    ({"writer": ByPairs, "changed": lambda k, v: (v.transpose(1, 1), k.transpose(1, 1))}, "not where the core writes"),
    ({"writer": ByPairs, "num_blocks": 2}, "nothing is known"),
])
def test_an_engine_that_keeps_rows_otherwise_is_left_to_its_own_writer(case, reason):
    with pytest.raises(model.Refused, match=reason):
        in_place(dtype=torch.float32, **case)


def test_layers_must_lie_alike():
    one, other = (layout.CpuReader([torch.zeros(BLOCKS, HEADS, size, 2 * DIM)]).pairs[0] for size in (SIZE, 2 * SIZE))
    with pytest.raises(ValueError, match="alike in every layer"):
        _core.EngineCache([one, other])
    with pytest.raises(ValueError):
        _core.EngineCache([])


# -- repeated tokens --------------------------------------------------------------------------------


def spec(base, layers=1):
    return _core.ModelSpec.from_dict({
        "architecture": "llama", "trained_positions": 512, "vocab_size": 10, "fingerprint": "00" * 16,
        "shape": {"n_layers": layers, "n_kv_heads": HEADS, "head_dim_k": DIM, "head_dim_v": DIM},
        "rope": {"pairing": "halves", "scaling": "none", "freq_base": base, "rotary_dim": DIM},
    })


@pytest.mark.parametrize(("base", "same"), [(10000.0, True), (9000.0, False)])
def test_keys_of_a_repeated_token_tell_a_wrong_rope(base, same):
    from inferscale.vllm.probe import RepeatedTokens

    tokens = np.array([3, 4, 3, 5, 3], np.int32)
    plain = np.random.default_rng(1).normal(size=(10, HEADS, DIM)).astype(np.float32)[tokens]
    cos, sin = (np.asarray(t)[200:205, None] for t in _core.rope_table(spec(10000.0), 512))
    x, y = plain[..., : DIM // 2], plain[..., DIM // 2 :]
    keys = torch.from_numpy(np.concatenate([x * cos - y * sin, y * cos + x * sin], -1))
    check = RepeatedTokens(spec(base), 512)
    assert check.agree(tokens, 200, keys) is same
    for dtype in (torch.float16, torch.bfloat16):
        assert RepeatedTokens(spec(10000.0), 512).agree(tokens, 200, keys.to(dtype))
        assert not RepeatedTokens(spec(100.0), 512).agree(tokens, 200, keys.to(dtype))
    assert check.agree(np.arange(5, dtype=np.int32), 200, keys), "nothing is repeated"


# -- injected blocks --------------------------------------------------------------------------------


def test_injected_blocks_know_up_to_which_row():
    blocks = InjectedBlocks(1024)
    hashes = ["a", "b", "c"]
    blocks.note(hashes, 4, 0, 6)
    assert blocks.touches(hashes, 4, 0, 4) and blocks.touches(hashes, 4, 5, 8)
    assert not blocks.touches(hashes, 4, 6, 12)
    assert not blocks.touches(["x", "y", "z"], 4, 0, 12)
    blocks.note(["p", "q"], 4, 0, 11)  # its third block is not full: nobody can find it
    assert blocks.touches(["p", "q"], 4, 7, 8)


def test_injected_blocks_forget_the_oldest():
    blocks = InjectedBlocks(1024)
    blocks.note(["old", "idle"], 4, 0, 8)
    for number in range(10 * 1024):
        blocks.note([number], 4, 0, 4)
        assert blocks.touches(["old"], 4, 0, 4), "in use all the time"
        assert len(blocks) <= 2 * 1025
    assert not blocks.touches(["idle"], 4, 0, 4) and not blocks.touches([0], 4, 0, 4)
    assert all(blocks.touches([number], 4, 0, 4) for number in range(9 * 1024, 10 * 1024))


def test_injected_blocks_keep_the_rows_of_a_block_that_is_noted_again():
    blocks = InjectedBlocks(1024)
    blocks.note(["a", "b"], 4, 0, 7)
    for number in range(1025):  # "b" is of the older ones now
        blocks.note([number], 4, 0, 4)
    blocks.note(["a", "b"], 4, 4, 6)
    assert blocks.touches(["a", "b"], 4, 6, 8)


# -- the rank channel -------------------------------------------------------------------------------


@pytest.fixture
def channel(tmp_path):
    path = rank_channel.socket_path(tmp_path, 0)

    def fail(message):
        raise KeyError("no such thing")

    server = rank_channel.RankServer(path, "token", {"echo": lambda m: m["value"], "fail": fail})
    yield path, server
    server.close()


def test_rank_channel(channel):
    path, _ = channel
    client = rank_channel.RankClient(path, "token")
    assert client.call("echo", value=[1, "ä"]) == [1, "ä"]
    with pytest.raises(rank_channel.RankError, match="no such thing"):
        client.call("fail")
    with pytest.raises(rank_channel.RankError):
        client.call("unknown")
    assert client.call("echo", value=2) == 2, "an error answer does not break the connection"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_rank_channel_wants_its_token(channel):
    with pytest.raises(rank_channel.RankError, match="closed"):
        rank_channel.RankClient(channel[0], "other").call("echo", value=1)


@pytest.mark.parametrize("first", [b"\n", b"[]\n", b'{"token": 3}\n', b"{" * 5000])
def test_rank_channel_hangs_up_on_nonsense(channel, first):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(channel[0]))
        connection.sendall(first)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(100) == b""


def test_rank_channel_connects_anew(tmp_path):
    path = rank_channel.socket_path(tmp_path, 1)
    client = rank_channel.RankClient(path, "token")
    with pytest.raises(rank_channel.RankError):
        client.call("echo", value=1)
    server = rank_channel.RankServer(path, "token", {"echo": lambda m: m["value"]})
    assert client.call("echo", value=1) == 1
    server.close()


# -- erasing ----------------------------------------------------------------------------------------


class FakeRanks:
    """Two ranks that remember what they were told to erase."""

    def __init__(self):
        self.calls, self.silent = [], False

    def __len__(self):
        return 2

    def erase(self, keys, scopes, fence):
        if self.silent:
            raise rank_channel.RankError("silent")
        self.calls.append((keys, scopes, fence))
        return {"gpu": 0, "host": len(keys), "disk": len(keys), "leased": 0}


@pytest.fixture
def parts(tmp_path):
    epochs, book, ranks = EpochTable(tmp_path), RecordBook(2), FakeRanks()
    return epochs, book, ranks, erasure.Eraser(epochs, book, ranks)


def put(epochs, book, key, scope=ALICE, kind="header"):
    digest, _ = epochs.learn_scope(scope)
    book.learn_scope(scope)
    info = RecordInfo(digest, kind, "00" * 16, np.arange(3, dtype=np.int32))
    book.expect(key, info)
    assert not book.arrived(0, key) and not book.ready(key), "ready on one rank is not ready"
    assert book.arrived(1, key) and book.ready(key)
    return digest


KEYS = ["%032x" % n for n in range(1, 6)]


def test_erase_by_key(parts):
    epochs, book, ranks, eraser = parts
    epochs.start(OWNER, 3)
    put(epochs, book, KEYS[0])
    put(epochs, book, KEYS[1])
    receipt = eraser.erase(OWNER, 4, {"keys": [KEYS[0]]})
    assert receipt == {
        "epoch": 4, "records": 1, "erased": {"gpu": 0, "host": 1, "disk": 1, "leased": 0}, "ranks": 2
    }
    assert not book.ready(KEYS[0]) and book.ready(KEYS[1]) and epochs.epoch(OWNER) == 4
    assert eraser.erase(OWNER, 4, {"keys": [KEYS[0]]}) == receipt, "a lost answer can be had again"
    assert len(ranks.calls) == 1
    for epoch in (3, 4):
        with pytest.raises(erasure.Conflict):
            eraser.erase(OWNER, epoch, {"keys": [KEYS[1]]})
    assert book.ready(KEYS[1])


def test_an_epoch_that_jumps_means_that_everything_goes(parts):
    epochs, book, ranks, eraser = parts
    epochs.start(OWNER, 1)
    digest = put(epochs, book, KEYS[0])
    put(epochs, book, KEYS[1])
    assert eraser.erase(OWNER, 3, {"keys": [KEYS[0]]})["records"] == 2
    assert ranks.calls[-1][1] == [digest] and not book.ready(KEYS[1])


def test_rows_of_conversations_go_with_every_erasure_of_their_owner(parts):
    epochs, book, ranks, eraser = parts
    epochs.start(OWNER, 1)
    put(epochs, book, KEYS[0])
    put(epochs, book, KEYS[1])
    put(epochs, book, KEYS[2], kind="parked")
    put(epochs, book, KEYS[3], ALICE | {"agent": "tutor"}, kind="parked")
    put(epochs, book, KEYS[4], ALICE | {"user": "bob"}, kind="parked")
    assert eraser.erase(OWNER, 2, {"keys": [KEYS[0]]})["records"] == 3
    assert sorted(ranks.calls[-1][0]) == [KEYS[0], KEYS[2], KEYS[3]]
    assert [book.ready(key) for key in KEYS] == [False, True, False, False, True]
    eraser.erase_shared([])
    assert not book.ready(KEYS[4]), "shared facts may have been seen by anybody"


def test_erase_by_scope(parts):
    epochs, book, ranks, eraser = parts
    epochs.start(OWNER, 1)
    put(epochs, book, KEYS[0], ALICE | {"agent": "tutor", "run": "1"})
    put(epochs, book, KEYS[1], ALICE | {"agent": "tutor", "run": "2"})
    put(epochs, book, KEYS[2], ALICE | {"agent": "cook"})
    put(epochs, book, KEYS[3], ALICE | {"user": "bob", "agent": "tutor"})
    assert eraser.erase(OWNER, 2, {"scope": ALICE | {"agent": "tutor"}})["records"] == 2
    assert [book.ready(key) for key in KEYS[:4]] == [False, False, True, True]


def test_a_silent_rank_leaves_the_erasure_open(parts, tmp_path):
    epochs, book, ranks, eraser = parts
    epochs.start(OWNER, 1)
    put(epochs, book, KEYS[0])
    ranks.silent = True
    with pytest.raises(rank_channel.RankError):
        eraser.erase(OWNER, 2, {"keys": [KEYS[0]]})
    assert epochs.epoch(OWNER) == 2 and not book.ready(KEYS[0]), "nothing erased may be served"
    assert epochs.unfinished()
    ranks.silent = False
    epochs.close()
    after_crash = EpochTable(tmp_path)
    erasure.Eraser(after_crash, RecordBook(2), ranks).resume()
    assert ranks.calls[-1][0] == [KEYS[0]] and not after_crash.unfinished()
    assert after_crash.epoch(OWNER) == 2


def test_an_erasure_after_an_open_one_takes_everything(parts):
    epochs, book, ranks, eraser = parts
    epochs.start(OWNER, 1)
    digest = put(epochs, book, KEYS[0])
    ranks.silent = True
    with pytest.raises(rank_channel.RankError):
        eraser.erase(OWNER, 2, {"keys": [KEYS[0]]})
    ranks.silent = False
    eraser.erase(OWNER, 3, {"keys": [KEYS[1]]})
    assert ranks.calls[-1][1] == [digest]


def test_shared_records_are_erased_by_key_and_nobodys_own_with_them(parts):
    epochs, book, ranks, eraser = parts
    put(epochs, book, KEYS[0], {"tenant": "", "user": "", "agent": "", "run": ""})
    put(epochs, book, KEYS[1])
    assert eraser.erase_shared([KEYS[0]])["records"] == 1
    with pytest.raises(ValueError, match="belongs to a user"):
        eraser.erase_shared([KEYS[1]])


def test_a_capture_that_arrives_after_its_erasure_does_not_count(parts):
    epochs, book, ranks, eraser = parts
    epochs.start(OWNER, 1)
    digest, _ = epochs.learn_scope(ALICE)
    book.learn_scope(ALICE)
    book.expect(KEYS[0], RecordInfo(digest, "header", "00" * 16, np.arange(3, dtype=np.int32)))
    assert not book.arrived(0, KEYS[0])
    eraser.erase(OWNER, 2, {"all": True})
    assert not book.arrived(1, KEYS[0]) and not book.ready(KEYS[0])


def test_the_epoch_table_outlives_its_process(tmp_path):
    first = EpochTable(tmp_path)
    assert first.start(OWNER, 7) == 7 and first.start(OWNER, 9) == 7
    digest, new = first.learn_scope(ALICE)
    assert new and not first.learn_scope(ALICE)[1] and digest == _core.scope_hash(ALICE)
    first.close()
    second = EpochTable(tmp_path)
    assert second.epoch(OWNER) == 7 and second.scopes(OWNER) == {digest: ALICE}
    assert second.epoch(("acme", "bob")) is None and second.scopes(("acme", "bob")) == {}


# -- traces and statistics --------------------------------------------------------------------------


def test_trace_ring_keeps_the_last_and_the_first_of_a_group():
    ring = TraceRing(2)
    first, sibling = Trace("a", "inject", 1), Trace("a", "inject", 1)
    ring.add(first)
    ring.add(sibling)
    assert ring.find("a") is first
    first.finished = True
    ring.add(sibling)
    assert ring.find("a") is sibling
    ring.add(Trace("b", "text", 1))
    ring.add(Trace("c", "text", 1))
    assert ring.find("a") is None and ring.find("c") is not None


def test_stats_of_both_roles_add_up():
    one = stats.InferScaleStats.of({"injected_tokens": 5, "fallback:stale_epoch": 1}, [0.001])
    two = stats.InferScaleStats.of({"injected_tokens": 2}, [0.003])
    both = one.aggregate(two)
    assert both.data == {"injected_tokens": 7, "fallback:stale_epoch": 1, "load_seconds": [0.001, 0.003]}
    assert both.reduce()["InferScale mean load (ms)"] == 2.0
    assert stats.InferScaleStats.of({}, []).is_empty()


def test_acks_of_all_ranks_are_joined_and_travel():
    results = [messages.CaptureResult(rank, 1, "a") for rank in (0, 1)]
    one = messages.WorkerAcks(captured=results[:1], lost=[(0, "b")])
    two = messages.WorkerAcks(captured=results[1:], failed_loads=[(1, "r", "x")])
    joined = pickle.loads(pickle.dumps(one.aggregate(two)))
    assert joined.captured == results and joined.lost and joined.failed_loads
    assert messages.WorkerAcks().empty() and not joined.empty()


def test_faults_are_counted_by_kind():
    from inferscale.vllm.guard import Faults, guarded

    class Thing:
        faults = Faults()

        @guarded(lambda: (0, False))
        def hook(self, error):
            raise error

    thing = Thing()
    threads = [threading.Thread(target=thing.hook, args=(ValueError("x"),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert thing.hook(KeyError("y")) == (0, False)
    assert thing.faults.counts() == {"hook: ValueError": 4, "hook: KeyError": 1}


# -- how vLLM finds the connector -------------------------------------------------------------------


def test_the_plugin_registers_once():
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    from inferscale.vllm import InferScaleConnector, plugin

    plugin.register()
    plugin.register()
    found = KVConnectorFactory.get_connector_class_by_name("InferScaleConnector")
    assert found is InferScaleConnector
