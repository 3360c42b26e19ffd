"""Records of earlier runs: read before they are injected, and text until then."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from harness import FACTS, HEADER, QUESTION, Client, capture, difference
from inferscale.vllm import operations, verification
from inferscale.vllm.rank_channel import RankError
from inferscale.vllm.records import RecordBook, RecordInfo
from inferscale.vllm.store import RankRecords
from test_restart import Restarts, flip, token_bytes

EXACT = 1e-3
KEYS = ["%032x" % n for n in range(1, 7)]
TOKENS = 3  # of each record here
SCOPE = "ab" * 16


def info():
    return RecordInfo(SCOPE, "header", "00" * 16, np.arange(TOKENS, dtype=np.int32))


@pytest.fixture
def book():
    book = RecordBook(2)
    for key in KEYS:
        for rank in (0, 1):
            book.found(rank, key, info())
    return book


class Ranks:
    """Two ranks that remember what they were asked to read, and find some of it damaged."""

    def __init__(self, damaged=(), silent=0):
        self.read, self.damaged, self.silent = [], set(damaged), silent
        self.called = threading.Event()

    def __len__(self):
        return 2

    def close(self):
        pass

    def check(self, rank, keys):
        if self.silent:
            self.silent -= 1
            raise RankError("silent")
        self.read.append((rank, keys))
        self.called.set()
        damaged = [key for key in keys if key in self.damaged and rank == 1]
        return {"sound": [key for key in keys if key not in damaged], "corrupt": damaged}


@pytest.fixture
def verify(book):
    started, counted = [], {}

    def start(ranks, rate, token_bytes=1):
        count = lambda name, number: counted.update({name: counted.get(name, 0) + number})
        started.append(verification.Verification(book, ranks, token_bytes, rate, count))
        started[-1].start()
        return started[-1], counted

    yield start
    for each in started:
        each.close()


def test_a_record_is_ready_when_every_rank_has_read_it(book):
    assert not book.ready(KEYS[0]) and KEYS[0] in book.unverified_keys()
    book.sound(0, KEYS[0])
    assert not book.ready(KEYS[0]) and KEYS[0] in book.unverified_keys()
    book.sound(1, KEYS[0])
    assert book.ready(KEYS[0]) and book.unverified_keys(KEYS[:2]) == [KEYS[1]] and book.count() == 1


def test_what_was_erased_while_it_was_read_does_not_come_back(book):
    assert book.erase([KEYS[0]], set()) == [KEYS[0]], "an erasure counts what nobody has read yet"
    book.sound(0, KEYS[0])
    book.sound(1, KEYS[0])
    assert not book.ready(KEYS[0])
    assert sorted(book.erase([], {SCOPE})) == KEYS[1:]
    assert not book.unsound(0, KEYS[1]) and book.unverified_keys() == []


def test_a_capture_in_this_run_needs_no_reading(book):
    book.expect(KEYS[0], info())
    assert not book.arrived(0, KEYS[0]) and book.arrived(1, KEYS[0])
    assert book.ready(KEYS[0]) and KEYS[0] not in book.unverified_keys()
    assert not book.unsound(0, KEYS[0]) and book.ready(KEYS[0]), "the damaged one was replaced"


def test_a_record_that_one_rank_finds_damaged_is_ready_nowhere(book, verify):
    ranks = Ranks(damaged=[KEYS[2]])
    reader, counted = verify(ranks, rate=1 << 30)
    reader.wait()
    assert [book.ready(key) for key in KEYS] == [key != KEYS[2] for key in KEYS]
    assert counted == {"damaged_records": 1} and book.unverified_keys() == []


def test_who_waits_is_told_when_everything_is_counted(book, verify):
    reader, counted = verify(Ranks(damaged=[KEYS[2]]), rate=0)
    real, counts, may_count = reader._count, threading.Event(), threading.Event()
    reader._count = lambda *a: (counts.set(), may_count.wait(60), real(*a))
    reader.hurry([KEYS[2]])
    assert counts.wait(60)
    assert book.unverified_keys([KEYS[2]]) == [] and not reader._told([KEYS[2]]) and not reader._told(None)
    may_count.set()
    reader.wait([KEYS[2]])
    assert counted == {"damaged_records": 1}


def test_without_a_rate_only_what_is_asked_for_is_read(book, verify):
    ranks = Ranks()
    reader, _ = verify(ranks, rate=0)
    reader.wait([KEYS[4], KEYS[1], "ff" * 16])
    assert ranks.read == [(0, [KEYS[4], KEYS[1]]), (1, [KEYS[4], KEYS[1]])]
    assert book.unverified_keys() == [KEYS[0], KEYS[2], KEYS[3], KEYS[5]]


def test_what_is_asked_for_does_not_wait_for_the_rate(book, verify, monkeypatch):
    monkeypatch.setattr(verification, "_BATCH_BYTES", 1)
    ranks = Ranks()
    reader, _ = verify(ranks, rate=1, token_bytes=1 << 30)  # a record would take centuries
    assert ranks.called.wait(60)
    reader.wait(KEYS[3:])
    assert all(book.ready(key) for key in KEYS[3:])
    read = [keys for rank, keys in ranks.read if rank == 0]
    assert sorted(read) == [[KEYS[0]], [KEYS[3]], [KEYS[4]], [KEYS[5]]], "a batch is bounded, and the rest waits"
    reader.close()  # in the midst of its pause
    assert not reader._thread.is_alive()


def test_a_silent_rank_is_asked_again(book, verify, monkeypatch):
    monkeypatch.setattr(verification, "_SILENT_SECONDS", 0.0)
    reader, counted = verify(Ranks(silent=3), rate=1 << 30)
    reader.wait()
    assert all(book.ready(key) for key in KEYS) and counted == {}


def test_who_waits_is_let_go_at_the_end(book, verify, monkeypatch):
    monkeypatch.setattr(verification, "_SILENT_SECONDS", 1e6)
    reader, _ = verify(Ranks(silent=10), rate=1 << 30)
    waiting = threading.Thread(target=reader.wait)
    waiting.start()
    reader.close()
    waiting.join(60)
    assert not waiting.is_alive() and len(book.unverified_keys()) == len(KEYS)


@pytest.fixture(scope="module")
def restarts(engines, tmp_path_factory):
    return Restarts(engines, tmp_path_factory.mktemp("data"))


def test_a_record_that_is_damaged_between_two_runs_is_text_from_the_first_request_on(restarts, monkeypatch):
    engine = restarts.start()
    prompt = engine.ids(HEADER + "".join(FACTS) + QUESTION)
    client = Client.of(engine)
    plain = engine.one(prompt)
    context = client.range(prompt, 0, 64)
    facts = [client.range(prompt, 64 + 20 * n, 84 + 20 * n, "header", "33" * 16) for n in range(2)]
    capture(engine, client, prompt, [context, *facts], client_salt="first run")
    named = {"tenant": "acme", "user": "alice", "keys": [context["key"], facts[0]["key"]]}
    restarts.stop()
    flip(restarts.data_dir, token_bytes(prompt[64:84]))

    def ask(*ranges):
        salt = {"client_salt": f"second run {next(client.names)}"}
        answer = engine.one(prompt, client.request(inject=[r["key"] for r in ranges], **salt))
        assert answer.finish != "error" and answer.tokens == plain.tokens and difference(answer, plain) <= EXACT
        return answer

    # Nothing can be read at first: everything is text, and ready is answered all the same.
    may_read, real = threading.Event(), RankRecords.check
    monkeypatch.setattr(RankRecords, "check", lambda *a: may_read.wait(120) and real(*a))
    monkeypatch.setattr(operations, "READY_SECONDS", 0.01)
    try:
        engine = restarts.start(verify_rate=0)
        answer = ask(context, facts[0])
        assert answer.injected == 0 and answer.fallbacks == {"record_unverified": 2}
        assert engine.control.post("/v1/ready", named)["ready"] == [False, False]
        stats = engine.control.get("/v1/stats")
        assert stats["records"] == 0 and stats["unverified"] == 3
        assert stats["counters"]["fallback:record_unverified"] == 2
    finally:
        may_read.set()

    # Read because they were asked for: one is sound, one damaged; the third waits until somebody asks.
    monkeypatch.setattr(operations, "READY_SECONDS", 120)
    assert engine.control.post("/v1/ready", named)["ready"] == [True, False]
    stats = engine.control.get("/v1/stats")
    assert stats["records"] == 1 and stats["unverified"] == 1 and stats["counters"]["damaged_records"] == 1
    assert engine.worker._records.store.contains(facts[0]["key"]) is False, "a damaged one is dropped"
    answer = ask(context, facts[0])
    assert answer.injected == 64 and answer.fallbacks == {"record_missing": 1}
    verdict = engine.control.post("/v1/verify", {})
    assert verdict["ranks"] == [{"records": 2, "corrupt": [], "foreign": 0}]
    assert engine.control.get("/v1/stats")["unverified"] == 0
    assert engine.control.post("/v1/ready", named | {"keys": [facts[1]["key"]]})["ready"] == [True]
    assert engine.control.get("/v1/stats")["counters"].get("failed_loads", 0) == 0

    # The damaged one is encoded again, and injected with the others.
    capture(engine, client, prompt, [facts[0]], client_salt="again")
    assert ask(context, *facts).injected == 104
