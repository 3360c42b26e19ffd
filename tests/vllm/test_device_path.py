"""The path for caches on a device, end to end through vLLM: plain memory stands in for the device, and the CPU engine's
cache for the one there. What the CUDA kernels do is tested where there is a GPU."""

from __future__ import annotations

import json
import threading

import pytest
from harness import BLOCK, FACTS, HEADER, QUESTION, Client, Engine, capture, difference, encode_fact, wait_until

EXACT = 1e-3  # as in test_injection
ROOM = 400  # tokens of captures under way


def describe_cpu(caches):
    """The CPU backend's blocks of x86 without AMX: keys by column."""
    blocks, heads, size, width = caches[0].shape
    dim, element = width // 2, caches[0].element_size()
    block, head = (caches[0].stride(axis) * element for axis in (0, 1))
    return {
        "dtype": "f32", "device": "plain", "n_kv_heads": heads, "head_dim": dim,
        "k": [cache.data_ptr() for cache in caches],
        "v": [cache.data_ptr() + size * dim * element for cache in caches],
        "k_strides": (block, element, head, size * element), "v_strides": (block, dim * element, head),
        "rows_per_block": size, "n_rows": blocks * size,
    }


@pytest.fixture(scope="module")
def engine(engines, tmp_path_factory) -> Engine:
    from inferscale.vllm.captures import CaptureRoom
    from inferscale.vllm.device_path import DevicePath
    from inferscale.vllm.worker import WorkerSide

    caches = {}
    start = WorkerSide.start

    def watched(self, adapter, reason, given):
        caches.update(given)
        start(self, adapter, reason, given)

    WorkerSide.start = watched
    try:
        made = engines.get(tmp_path_factory.mktemp("data"))
    finally:
        WorkerSide.start = start
    worker = made.worker
    ordered = [caches[name] for name in sorted(caches, key=lambda name: int(name.split(".")[2]))]
    worker._records.store.attach_device(
        describe_cpu(ordered), gpu_budget=16 << 20, pinned_budget=64 << 20, max_load_tokens=1 << 16,
        max_capture_tokens=1024,
    )
    worker._path = DevicePath(
        worker._records, BLOCK, worker._path._repeated, 0, 1024, lambda: 0, worker._outbox
    )
    made.side._room = CaptureRoom(ROOM)
    made.caches = ordered
    return made


@pytest.fixture(scope="module")
def client(engine):
    return Client.of(engine)


@pytest.fixture(scope="module")
def prompt(engine):
    return engine.ids(HEADER + "".join(FACTS) + QUESTION)


@pytest.mark.parametrize("count", [1, 31, 32, 65, -1])
def test_e1_same_prompt_gives_the_same_log_probabilities(engine, client, prompt, count):
    end = count if count > 0 else len(prompt) + count
    plain = engine.one(prompt)
    wanted = client.range(prompt, 0, end)
    told = capture(engine, client, prompt, [wanted], client_salt=f"e1-{count}")
    answer = engine.one(prompt, client.request(inject=[wanted["key"]], client_salt=f"e1-{count}"))
    assert answer.injected == end and answer.cached == end, told.reply
    assert answer.tokens == plain.tokens and difference(answer, plain) <= EXACT


def test_facts_in_another_order_and_from_the_middle_of_a_block(engine, client):
    """The first request fills the prefix cache up to a block's edge, the second loads from there on."""
    header = engine.ids(HEADER)
    facts = [engine.ids(fact) for fact in FACTS]
    keys = [encode_fact(engine, client, header, fact) for fact in facts]
    header_range = client.range(header, 0, len(header))
    capture(engine, client, header + facts[0], [header_range])
    order = [3, 0, 5]
    middle = [t for i in order for t in facts[i]]
    inject = [header_range["key"], *(keys[i] for i in order)]
    answers = []
    for question in (QUESTION, "\nWho plays the cello?" + QUESTION):
        ids = header + middle + engine.ids(question)
        answers.append(engine.one(ids, client.request(inject=inject, client_salt="order")))
    first, second = answers
    assert first.injected == len(header) + len(middle) and second.fallbacks == {}
    assert 0 < second.injected < first.injected and second.cached == first.injected


def test_eight_requests_of_one_step_equal_each_alone(engine, client):
    header = engine.ids(HEADER)
    facts = [engine.ids(fact) for fact in FACTS]
    keys = [encode_fact(engine, client, header, fact) for fact in facts]
    requests = []
    for number in range(8):
        order = [(number + i) % len(facts) for i in range(number % 3 + 1)]
        ids = header + [t for i in order for t in facts[i]] + engine.ids(QUESTION)
        head = client.range(header, 0, len(header))["key"]
        inject = [head, *(keys[i] for i in order)]
        requests.append((ids, lambda salt, inject=inject: client.request(inject=inject, client_salt=salt)))
    alone = [engine.one(ids, ask(f"alone-{n}")) for n, (ids, ask) in enumerate(requests)]
    together = engine.generate([(ids, ask("together")) for ids, ask in requests])
    for one, other in zip(alone, together):
        assert one.tokens == other.tokens and difference(one, other) <= EXACT


def test_an_erased_record_is_gone_from_every_tier(engine, client, prompt):
    wanted = client.range(prompt, 0, 40)
    capture(engine, client, prompt, [wanted], client_salt="erase")
    engine.one(prompt, client.request(inject=[wanted["key"]], client_salt="erase"))
    receipt = engine.control.post(
        "/v1/erase",
        {"tenant": "acme", "user": "alice", "epoch": client.epoch + 1, "keys": [wanted["key"]]},
    )
    client.epoch += 1
    assert receipt["erased"]["gpu"] + receipt["erased"]["pinned"] >= 1
    assert receipt["records"] == 1 and receipt["erased"]["host"] == 1
    answer = engine.one(prompt, client.request(inject=[wanted["key"]], client_salt="erase"))
    assert answer.injected == 0 and answer.fallbacks == {"record_missing": 1}


# -- captures that are on their way when their step is over -----------------------------------------


@pytest.fixture
def held(engine, monkeypatch):
    """Nothing that is captured arrives until this is set."""
    gate = threading.Event()
    late = engine.worker._path._late
    finish = late._finish

    def waits(jobs, batch):
        assert gate.wait(60)
        return finish(jobs, batch)

    monkeypatch.setattr(late, "_finish", waits)
    yield gate
    gate.set()
    wait_until(lambda: not engine.side._capturing and engine.side._room._taken == 0)


def send(engine, client, prompt, *ranges, salt, **sampling):
    """A request with captures, to its end; nothing waits for the captures. Returns the answer."""
    request = client.request("encode", context="header", capture=list(ranges), client_salt=salt)
    return engine.one(prompt, request, max_tokens=1, **sampling)


def ready(engine, client, key):
    body = {"tenant": client.scope["tenant"], "user": client.scope["user"], "keys": [key]}
    return engine.control.post("/v1/ready", body)["ready"] == [True]


def trace_of(engine, answer):
    return engine.control.get(f"/v1/trace?request={answer.reply['request']}")


def test_a_step_ends_before_its_capture_and_an_idle_engine_tells_of_it(engine, client, prompt, held):
    wanted = client.range(prompt, 0, 41)
    answer = send(engine, client, prompt, wanted, salt="late")
    assert answer.finish == "length" and answer.reply["captured"] == []
    assert not ready(engine, client, wanted["key"]) and trace_of(engine, answer)["captured"] == []
    held.set()
    wait_until(lambda: ready(engine, client, wanted["key"]))  # without a step of the engine
    wait_until(lambda: trace_of(engine, answer)["captured"] == [wanted["key"]])
    injected = engine.one(prompt, client.request(inject=[wanted["key"]], client_salt="late-2"))
    assert injected.injected == 41


def test_blocks_may_be_overwritten_while_a_capture_is_under_way(engine, client, prompt, held):
    """Freed, and filled with other rows: the record has those of its step."""
    wanted = client.range(prompt, 0, 90)
    send(engine, client, prompt, wanted, salt="blocks")
    assert engine.llm.reset_prefix_cache(), "every block is free"
    for cache in engine.caches:
        cache.uniform_(-1, 1)
    held.set()
    wait_until(lambda: ready(engine, client, wanted["key"]))
    plain = engine.one(prompt)
    injected = engine.one(prompt, client.request(inject=[wanted["key"]], client_salt="blocks-2"))
    assert injected.injected == 90
    assert injected.tokens == plain.tokens and difference(injected, plain) <= EXACT


def test_a_request_that_is_aborted_behind_its_capture_keeps_it(engine, client, prompt, held):
    from vllm import SamplingParams

    wanted = client.range(prompt, 0, 43)
    request = client.request("encode", context="header", capture=[wanted], client_salt="abort")
    sampling = SamplingParams(
        temperature=0.0, max_tokens=40, ignore_eos=True,
        extra_args={"kv_transfer_params": {"inferscale": request["params"]}},
    )
    inner = engine.llm.llm_engine
    inner.add_request("aborted", {"prompt_token_ids": prompt, "cache_salt": request["salt"]}, sampling)
    for _ in range(2):
        inner.step()
    inner.abort_request(["aborted"])
    while inner.has_unfinished_requests():
        inner.step()
    assert engine.llm.reset_prefix_cache()
    held.set()
    wait_until(lambda: ready(engine, client, wanted["key"]))
    plain = engine.one(prompt)
    injected = engine.one(prompt, client.request(inject=[wanted["key"]], client_salt="abort-2"))
    assert injected.injected == 43 and injected.tokens == plain.tokens


@pytest.mark.parametrize("what", ["all", "keys"])
def test_an_erasure_reaches_captures_under_way_and_waits_for_them(engine, prompt, held, what):
    client = Client.of(engine, {"tenant": "acme", "user": f"late-{what}", "agent": "", "run": ""})
    wanted = client.range(prompt, 0, 47)
    answer = send(engine, client, prompt, wanted, salt="erased")
    receipts, known = [], set(engine.worker._records._erased)
    body = {"tenant": "acme", "user": client.scope["user"], "epoch": 2}
    body |= {"all": True} if what == "all" else {"keys": [wanted["key"]]}
    erasing = threading.Thread(target=lambda: receipts.append(engine.control.post("/v1/erase", body)))
    erasing.start()
    wait_until(lambda: set(engine.worker._records._erased) - known)
    assert not receipts, "its bytes are still in the staging memory"
    held.set()
    erasing.join(20)
    assert receipts[0]["ranks"] == 1
    wait_until(lambda: not engine.side._capturing)
    assert not ready(engine, client, wanted["key"])
    assert not engine.worker._records.store.contains(wanted["key"])
    fallbacks = {entry["reason"]: entry["count"] for entry in trace_of(engine, answer)["fallbacks"]}
    assert fallbacks == {"capture_erased": 1}
    # The same facts encoded once more are there, whatever is told of the capture before.
    client.epoch = 2
    again = send(engine, client, prompt, wanted, salt="erased")
    wait_until(lambda: ready(engine, client, wanted["key"]))
    assert trace_of(engine, again)["captured"] == [wanted["key"]]


def test_encoding_waits_for_room_and_others_do_not(engine, client, prompt, held):
    from vllm import SamplingParams

    inner = engine.llm.llm_engine
    ranges = [client.range(prompt, first, first + 60, "header", "%032x" % (first + 1)) for first in range(8)]
    for number, wanted in enumerate(ranges):
        request = client.request("encode", context="header", capture=[wanted], client_salt=f"room-{number}")
        sampling = SamplingParams(
            temperature=0.0, max_tokens=1,
            extra_args={"kv_transfer_params": {"inferscale": request["params"]}},
        )
        inner.add_request(f"room-{number}", {"prompt_token_ids": prompt, "cache_salt": request["salt"]}, sampling)
    inner.add_request("other", {"prompt_token_ids": prompt}, SamplingParams(temperature=0.0, max_tokens=3))
    done = set()
    while "other" not in done:
        done |= {output.request_id for output in inner.step() if output.finished}
    for _ in range(3):
        done |= {output.request_id for output in inner.step() if output.finished}
    assert len(done) == 1 + ROOM // 60 and engine.side._room._taken == ROOM // 60 * 60
    held.set()
    while inner.has_unfinished_requests():
        inner.step()
    for wanted in ranges:
        wait_until(lambda wanted=wanted: ready(engine, client, wanted["key"]))


def test_captures_that_find_no_room_in_time_are_given_up(engine, client, prompt, held, monkeypatch):
    from inferscale.vllm import scheduler

    monkeypatch.setattr(scheduler, "_ROOM_S", 0.1)
    first = client.range(prompt, 0, len(prompt) - 1)
    engine.side._room.take(ROOM)
    try:
        answer = send(engine, client, prompt, first, salt="busy")
    finally:
        engine.side._room.give_back(ROOM)
    assert answer.finish == "length" and answer.fallbacks == {"capture_busy": 1}


def test_preempted_and_aborted_requests_give_their_room_back(engine, client, prompt, held):
    from vllm import SamplingParams

    wanted = client.range(prompt, 0, 50)
    request = client.request("encode", context="header", capture=[wanted], client_salt="room-back")
    sampling = SamplingParams(
        temperature=0.0, max_tokens=4, extra_args={"kv_transfer_params": {"inferscale": request["params"]}}
    )
    inner = engine.llm.llm_engine
    before = engine.side._room._taken
    inner.add_request("back", {"prompt_token_ids": prompt, "cache_salt": request["salt"]}, sampling)
    inner.abort_request(["back"])
    while inner.has_unfinished_requests():
        inner.step()
    assert engine.side._room._taken == before


def test_the_tiers_are_in_the_statistics(engine):
    ranks = engine.control.get("/v1/stats")["ranks"]
    names = [tier["name"] for tier in ranks[0]["tiers"]]
    assert names[:2] == ["gpu", "pinned"], json.dumps(ranks)[:500]
