"""Ten turns with new facts each: a turn prefills its own question only, and the answers are those of the
same conversation computed in one piece."""

from __future__ import annotations

import pytest
from harness import BLOCK, Client, capture, difference

TURNS = 10
EXACT = 2e-3  # ten turns of rounding instead of one

START = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
OPEN = "<|im_start|>user\nNew memories:\n"
CLOSE = "<|im_end|>\n<|im_start|>assistant\n"
PLACES = ["Velden", "Graz", "Lisbon", "Oslo", "Turin", "Gent", "Riga", "Brno", "Nantes", "York"]


@pytest.fixture(scope="module")
def client(engine):
    return Client.of(engine, {"tenant": "acme", "user": "conversation", "agent": "", "run": ""})


def test_ten_turns(engine, client):
    ids = engine.ids
    context = ids(START + OPEN)  # everything before the next turn's facts
    parked: list[str] = []
    opening = client.range(context, 0, len(context))
    capture(engine, client, context + ids("- x\n"), [opening], client_salt="piece", purpose="text")
    parked = [opening["key"]]
    for turn in range(TURNS):
        facts = [
            ids(f"- In year {turn + 1} Anna lived in {PLACES[turn]}.\n"),
            ids(f"- Her house there had the number {turn * 7 + 3}.\n"),
        ]
        question = ids(f"\nWhere did Anna live in year {turn + 1}?" + CLOSE)
        prompt = context + facts[0] + facts[1] + question
        middle, end = len(context) + len(facts[0]), len(prompt) - len(question)
        # In one piece: everything is prefilled as text, and the facts' rows are stored on the way.
        ranges = [
            client.range(prompt, len(context), middle, "turns", "%032x" % (2 * turn)),
            client.range(prompt, middle, end, "turns", "%032x" % (2 * turn + 1)),
        ]
        engine.llm.reset_prefix_cache() if turn == 0 else None
        piece = engine.one(prompt, client.request("encode", capture=ranges, context="turns:9",
                                                  client_salt=f"piece-{turn}"), max_tokens=10)
        assert piece.reply["local_hit"] == 0
        # Turn by turn: what was parked, then the new facts, from records; the rest is in the cache.
        request = client.request(inject=[*parked, *(entry["key"] for entry in ranges)])
        answer = engine.one(prompt, request, max_tokens=10)
        prefilled = len(prompt) - answer.reply["local_hit"] - answer.injected
        assert prefilled == len(question), (str(answer.reply), len(context), parked)
        assert answer.reply["local_hit"] + answer.injected == end
        if turn > 0:
            assert answer.reply["local_hit"] == len(context) // BLOCK * BLOCK
        assert answer.tokens == piece.tokens and difference(answer, piece) <= EXACT
        # Parking, off the critical path: up to where the next turn's facts will stand.
        context = prompt + answer.tokens + ids("<|im_end|>\n" + OPEN)
        edge = len(context) // BLOCK * BLOCK
        rest = client.range(context, edge, len(context), "turns", "%032x" % (1000 + turn))
        ranges = [rest] if edge < len(context) else []
        parking = engine.one(context, client.request(capture=ranges), max_tokens=1)
        assert parking.reply["local_hit"] >= len(prompt) // BLOCK * BLOCK
        parked = [entry["key"] for entry in ranges]
    assert len(context) > 600 and engine.connector.faults.counts() == {}
