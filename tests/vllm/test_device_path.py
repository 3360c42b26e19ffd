"""The path for caches on a device, end to end through vLLM: plain memory stands in for the device, and the CPU engine's
cache for the one there. What the CUDA kernels do is tested where there is a GPU."""

from __future__ import annotations

import json

import pytest
from harness import BLOCK, FACTS, HEADER, QUESTION, Client, Engine, capture, difference, encode_fact

EXACT = 1e-3  # as in test_injection


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
        worker._records, BLOCK, worker._path._repeated, 0, 1024, lambda: 0
    )
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


def test_the_tiers_are_in_the_statistics(engine):
    ranks = engine.control.get("/v1/stats")["ranks"]
    names = [tier["name"] for tier in ranks[0]["tiers"]]
    assert names[:2] == ["gpu", "pinned"], json.dumps(ranks)[:500]
