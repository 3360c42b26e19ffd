"""Captured KV, injected again, gives the answers of a plain prefill (gates E1, E2, E5)."""

from __future__ import annotations

import json

import numpy as np
import pytest
from harness import (
    ALICE,
    BLOCK,
    BOB,
    FACTS,
    HEADER,
    NO_CONTEXT,
    QUESTION,
    Client,
    capture,
    difference,
    encode_fact,
    first_layer_rows,
)

# f32 weights, cache and store: the same arithmetic up to the rounding of a rotation and its inverse.
EXACT = 1e-3


@pytest.fixture(scope="module")
def client(engine):
    return Client.of(engine)


@pytest.fixture(scope="module")
def prompt(engine):
    return engine.ids(HEADER + "".join(FACTS) + QUESTION)


@pytest.fixture(scope="module")
def plain(engine, prompt):
    return engine.one(prompt)


def own_salt(client, name, **fields):
    """A request that shares no blocks with another test's."""
    return client.request(client_salt=name, **fields)


def test_injection_is_on(engine):
    info = engine.control.get("/v1/info")
    assert info["injection"] is True and info["reason"] == ""
    assert info["shape"]["n_layers"] == 30 and info["ranks"] == 1 and info["block_size"] == BLOCK


@pytest.mark.parametrize("count", [1, 15, 31, 32, 33, 63, 64, 65, 96, -2, -1, 0])
def test_e1_same_prompt_gives_the_same_log_probabilities(engine, client, prompt, plain, count):
    """Up to, at and beyond block edges, and all but one, all but two and all tokens of the prompt."""
    end = count if count > 0 else len(prompt) + count
    wanted = client.range(prompt, 0, end)
    capture(engine, client, prompt, [wanted], client_salt=f"e1-{count}")
    answer = engine.one(prompt, own_salt(client, f"e1-{count}", inject=[wanted["key"]]))
    assert answer.injected == min(end, len(prompt) - 1)
    assert answer.cached == answer.injected, "the rows came from somewhere else"
    assert answer.tokens == plain.tokens
    assert difference(answer, plain) <= EXACT


def test_e2_first_layer_keys_are_the_engines_own_at_the_new_place(engine, client):
    """The first layer sees only the token and its position, so the composed rows must be the engine's."""
    header = engine.ids(HEADER)
    facts = [engine.ids(fact) for fact in FACTS[:3]]
    keys = [encode_fact(engine, client, header, fact) for fact in facts]
    header_range = client.range(header, 0, len(header))
    capture(engine, client, header + facts[0], [header_range])
    order = [2, 0, 1]
    prompt = header + [t for i in order for t in facts[i]] + engine.ids(QUESTION)
    end = len(prompt) - len(engine.ids(QUESTION))

    def rows(answer_of):
        return first_layer_rows(engine, 0, end, answer_of)

    request = own_salt(client, "e2", inject=[header_range["key"], *(keys[i] for i in order)])
    injected, keys_there, values_there = rows(lambda: engine.one(prompt, request, max_tokens=1))
    text = client.request("text", client_salt="e2")
    plain, keys_plain, values_plain = rows(lambda: engine.one(prompt, text, max_tokens=1))
    assert injected.injected == end and plain.injected == 0
    assert np.abs(keys_there - keys_plain).max() <= 2e-4 * np.abs(keys_plain).max()
    assert np.abs(values_there - values_plain).max() <= 1e-4 * np.abs(values_plain).max()


def test_facts_encoded_apart_answer_as_text_does(engine, client):
    """In another order than any that was encoded; what is answered is in no token outside the facts."""
    header = engine.ids(HEADER)
    facts = [engine.ids(fact) for fact in FACTS]
    keys = [encode_fact(engine, client, header, fact) for fact in facts]
    wanted = client.range(header, 0, len(header))
    capture(engine, client, header + facts[0], [wanted])
    tail = engine.ids(QUESTION + "Anna was born in the small town of")
    order = [3, 1, 0, 4]
    prompt = header + [t for i in order for t in facts[i]] + tail
    request = own_salt(client, "apart", inject=[wanted["key"], *(keys[i] for i in order)])
    answer = engine.one(prompt, request)
    text = engine.one(prompt, client.request("text", client_salt="apart"))
    without = engine.one(header + [t for i in order if i for t in facts[i]] + tail)
    assert answer.injected == len(prompt) - len(tail)
    assert [segment["key"] for segment in answer.reply["segments"]] == request["params"]["inject"]
    said = [engine.tokenizer.decode(a.tokens) for a in (answer, text, without)]
    assert said[0].startswith(" Velden") and said[1].startswith(" Velden"), said
    assert "Velden" not in said[2]


def wrong_requests(client, key):
    """name -> (request, reason that must be counted)."""
    good = client.request(inject=[key])
    unsigned = dict(good["params"])
    del unsigned["signature"]
    other_signature = good["params"] | {"signature": "0" * 64}
    changed = good["params"] | {"top_j": 3}
    return {
        "unsigned": ({"params": unsigned, "salt": good["salt"]}, "not_signed"),
        "wrong signature": ({"params": other_signature, "salt": good["salt"]}, "not_signed"),
        "changed after signing": ({"params": changed, "salt": good["salt"]}, "not_signed"),
        "unknown field": ({"params": good["params"] | {"x": 1}, "salt": None}, "malformed"),
        "no object": ({"params": [1, 2], "salt": None}, "malformed"),
        "no JSON": ({"params": '{"v":1', "salt": None}, "malformed"),
        "no text": ({"params": "\ud800", "salt": None}, "malformed"),
        "stale epoch": (client.request(inject=[key], epoch=0), "stale_epoch"),
        "other user": (client.request(inject=[key], scope=BOB), "wrong_scope"),
        "unknown key": (client.request(inject=["ab" * 16]), "record_missing"),
    }


@pytest.mark.parametrize(
    "name",
    ["unsigned", "wrong signature", "changed after signing", "unknown field", "no object",
     "stale epoch", "other user", "unknown key"],
)
def test_e5_a_wrong_request_is_text(engine, client, prompt, plain, name):
    wanted = client.range(prompt, 0, 100)
    capture(engine, client, prompt, [wanted], client_salt="e5")
    request, reason = wrong_requests(client, wanted["key"])[name]
    before = engine.side.totals().get(f"fallback:{reason}", 0)
    answer = engine.one(prompt, request)
    assert answer.injected == 0 and answer.fallbacks.get(reason, 0) >= 1, answer.reply
    assert engine.side.totals()[f"fallback:{reason}"] > before
    assert answer.tokens == plain.tokens and difference(answer, plain) <= EXACT


def test_e5_other_tokens_are_text(engine, client, prompt):
    wanted = client.range(prompt, 0, 100)
    capture(engine, client, prompt, [wanted], client_salt="e5")
    changed = list(prompt)
    changed[50] = changed[50] + 1
    answer = engine.one(changed, own_salt(client, "e5-tokens", inject=[wanted["key"]]))
    assert answer.injected == 0 and answer.fallbacks == {"wrong_tokens": 1}
    expected = engine.one(changed)
    assert answer.tokens == expected.tokens and difference(answer, expected) <= EXACT


def test_e5_a_range_whose_key_is_not_its_own_is_not_stored(engine, client, prompt):
    wanted = client.range(prompt, 0, 40) | {"key": client.key(prompt[:41], "prefix", NO_CONTEXT)}
    answer = capture(engine, client, prompt, [wanted], client_salt="e5-key")
    assert answer.fallbacks == {"capture_key": 1}
    assert engine.control.post("/v1/ready", {"keys": [wanted["key"]]} | {"tenant": "acme", "user": "alice"})["ready"] == [False]


def test_a_header_that_is_not_there_makes_the_facts_text(engine, client):
    """header_cold: the facts would stand behind tokens that nobody has prefilled."""
    header = engine.ids("<|im_start|>user\nA header that was never seen before. " + HEADER)
    old = engine.ids(HEADER)
    fact = engine.ids(FACTS[0])
    key = encode_fact(engine, client, old, fact)
    prompt = header + fact + engine.ids(QUESTION)
    cold = engine.one(prompt, own_salt(client, "cold", inject=[key]))
    assert cold.injected == 0 and cold.fallbacks == {"header_cold": 1}
    expected = engine.one(prompt)
    assert cold.tokens == expected.tokens and difference(cold, expected) <= EXACT


def test_a_header_from_the_prefix_cache_lets_the_facts_follow(engine, client):
    """The header's blocks come from an earlier request, the facts' from records, behind it."""
    header = engine.ids(HEADER + "Some more words, so that the header ends at the edge of a block. " * 4)
    header = header[: len(header) // BLOCK * BLOCK]
    fact = engine.ids(FACTS[1])
    key = encode_fact(engine, client, engine.ids(HEADER), fact)
    first = header + engine.ids("- Something else.\n") + engine.ids(QUESTION)
    engine.one(first, own_salt(client, "warm", inject=[key]))
    prompt = header + fact + engine.ids(QUESTION)
    answer = engine.one(prompt, own_salt(client, "warm", inject=[key]))
    assert answer.reply["local_hit"] == len(header) and answer.injected == len(fact)


def test_a_repeated_request_finds_its_blocks_and_loads_nothing(engine, client, prompt):
    wanted = client.range(prompt, 0, 100)
    capture(engine, client, prompt, [wanted], client_salt="again")
    request = own_salt(client, "again-inject", inject=[wanted["key"]])
    first = engine.one(prompt, request)
    second = engine.one(prompt, own_salt(client, "again-inject", inject=[wanted["key"]]))
    assert first.injected == 100 and second.injected == 0
    assert second.reply["local_hit"] == len(prompt) // BLOCK * BLOCK
    assert second.tokens == first.tokens and difference(first, second) <= EXACT



def test_metrics_count_what_happened(engine):
    stats = engine.control.get("/v1/stats")
    assert stats["counters"]["injected_tokens"] > 0 and stats["counters"]["captures"] > 0
    assert stats["records"] > 0 and len(stats["ranks"]) == 1
    names = {metric.name for metric in engine.llm.get_metrics()}
    assert "vllm:inferscale_injected_tokens" in names, sorted(names)
    assert "vllm:inferscale_fallbacks" in names


def test_no_hook_raised(engine):
    assert engine.connector.faults.counts() == {}

