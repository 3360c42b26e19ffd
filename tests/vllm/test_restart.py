"""What outlives an engine: records on disk, epochs, erasures under way. And what does not: anything that
is not what it was."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from harness import FACTS, HEADER, QUESTION, Client, capture, difference

EXACT = 1e-3


class Restarts:
    """One data directory, and engines over it one after the other."""

    def __init__(self, engines, data_dir):
        self.engines, self.data_dir = engines, data_dir

    def start(self, **options):
        return self.engines.get(self.data_dir, num_gpu_blocks_override=64, **options)

    def start_and_verify(self, **options):
        engine = self.start(**options)
        engine.control.post("/v1/verify", {})  # answers when every record has been read
        return engine

    def stop(self):
        self.engines.close()


@pytest.fixture(scope="module")
def restarts(engines, tmp_path_factory):
    return Restarts(engines, tmp_path_factory.mktemp("data"))


def flip(data_dir: Path, needle: bytes) -> None:
    """Flips one bit a little behind the place in the segment files where ``needle`` stands."""
    for path in sorted((data_dir / "rank-0" / "kv").iterdir()):
        data = bytearray(path.read_bytes())
        at = data.find(needle)
        if at >= 0 and at + 20000 < len(data):
            data[at + 20000] ^= 1
            path.write_bytes(data)
            return
    raise AssertionError("the record is in no segment file")


def token_bytes(tokens):
    return b"".join(token.to_bytes(4, "little") for token in tokens[:16])


def test_restart(restarts):
    engine = restarts.start()
    prompt = engine.ids(HEADER + "".join(FACTS) + QUESTION)
    client = Client.of(engine)
    plain = engine.one(prompt)
    context = client.range(prompt, 0, 64)
    fact = client.range(prompt, 64, 120, "header", "33" * 16)
    capture(engine, client, prompt, [context, fact], client_salt="restart")
    stranger = Client.of(engine, {"tenant": "acme", "user": "mallory", "agent": "", "run": ""})
    lost = stranger.range(prompt, 0, 50)
    capture(engine, stranger, prompt, [lost], client_salt="restart")
    open_erase = Client.of(engine, {"tenant": "acme", "user": "olga", "agent": "", "run": ""})
    erased = open_erase.range(prompt, 0, 70)
    capture(engine, open_erase, prompt, [erased], client_salt="restart")
    # A crash between the durable epoch and the ranks:
    engine.side.epochs.begin_erase(
        ("acme", "olga"), 2, {"what": {"keys": [erased["key"]]}, "everything": False}
    )
    # A scope that the scheduler side has forgotten: nobody could ask for its records, or delete them.
    engine.side.epochs._db.execute("DELETE FROM scopes WHERE user = 'mallory'")

    engine = restarts.start_and_verify()
    assert engine.control.get("/v1/stats")["records"] == 2
    assert engine.side.epochs.unfinished() == []
    store = engine.worker._records.store
    assert not store.contains(erased["key"]) and not store.contains(lost["key"])
    request = client.request(inject=[context["key"], fact["key"]], client_salt="after")
    answer = engine.one(prompt, request)
    assert answer.injected == 120, "nothing was encoded again"
    assert answer.tokens == plain.tokens and difference(answer, plain) <= EXACT
    stale = engine.one(prompt, open_erase.request(inject=[erased["key"]]))
    assert stale.fallbacks == {"stale_epoch": 1}

    # A bit flips while the engine runs and only the disk has the record: the load fails, and says so.
    restarts.stop()
    engine = restarts.start_and_verify(host_budget="8MiB")
    flip(restarts.data_dir, token_bytes(prompt[64:120]))
    request = client.request(inject=[context["key"], fact["key"]], client_salt="flipped")
    answer = engine.one(prompt, request)
    assert answer.finish == "error" and answer.tokens == []
    again = engine.one(prompt, client.request(inject=[context["key"], fact["key"]], client_salt="flipped"))
    assert again.injected == 64 and again.fallbacks == {"record_missing": 1}
    assert again.tokens == plain.tokens and difference(again, plain) <= EXACT

    # What the host budget cannot hold at once is not promised.
    engine = restarts.start_and_verify(host_budget="1MiB")
    answer = engine.one(prompt, client.request(inject=[context["key"]], client_salt="budget"))
    assert answer.injected == 0 and answer.fallbacks == {"host_budget": 1}
    assert answer.tokens == plain.tokens

    # A bit flips between two runs: whoever comes first, a request or the reading of records, it is text.
    restarts.stop()
    flip(restarts.data_dir, token_bytes(prompt[:64]))
    engine = restarts.start()
    answer = engine.one(prompt, client.request(inject=[context["key"]], client_salt="last"))
    assert answer.fallbacks in ({"record_unverified": 1}, {"record_missing": 1}) and answer.finish != "error"
    assert answer.tokens == plain.tokens and difference(answer, plain) <= EXACT
    engine.control.post("/v1/verify", {})
    assert engine.control.get("/v1/stats")["counters"]["damaged_records"] == 1
    assert engine.control.get("/v1/stats")["records"] == 0
    assert sqlite3.connect(restarts.data_dir / "scheduler.db").execute("PRAGMA integrity_check")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"transfer": {"kv_load_failure_policy": "recompute"}}, "kv_load_failure_policy"),
    ],
)
def test_refused_configurations_serve_plain_and_can_still_erase(restarts, options, reason):
    engine = restarts.start(**options)
    info = engine.control.get("/v1/info")
    assert info["injection"] is False and reason in info["reason"]
    client = Client.of(engine, {"tenant": "acme", "user": "peggy", "agent": "", "run": ""})
    prompt = engine.ids(HEADER + "".join(FACTS) + QUESTION)
    request = client.request(inject=["ab" * 16], capture=[client.range(prompt, 0, 10)])
    answer = engine.one(prompt, request)
    assert len(answer.tokens) == 8 and answer.reply == {}
    receipt = engine.control.post("/v1/erase", {"tenant": "acme", "user": "peggy", "epoch": 1, "all": True})
    assert receipt["ranks"] == 1


def test_unknown_version(restarts, monkeypatch):
    from inferscale.vllm import connector

    monkeypatch.setattr(connector, "vllm_version", "0.99.0")
    engine = restarts.start()
    info = engine.control.get("/v1/info")
    assert info["injection"] is False and "0.99.0" in info["reason"]
    assert len(engine.one(engine.ids("Hello")).tokens) == 8


def test_a_cache_that_is_not_read_back_is_refused(restarts, monkeypatch):
    """The start-up probe: a reader that swaps two rows."""
    from inferscale.vllm import layout

    real = layout.CpuReader.read
    monkeypatch.setattr(layout.CpuReader, "read", lambda self, layer, slots: real(self, layer, slots.flip(0)))
    engine = restarts.start()
    info = engine.control.get("/v1/info")
    assert info["injection"] is False and "was not read back" in info["reason"]


def test_another_rope_is_refused(restarts, monkeypatch):
    """E5: a base that is not the model's own."""
    from inferscale.vllm import model

    real = model.rope_dict
    monkeypatch.setattr(model, "rope_dict", lambda *a: real(*a) | {"freq_base": 10000.0})
    engine = restarts.start()
    info = engine.control.get("/v1/info")
    assert info["injection"] is False and "rotary table" in info["reason"]
