"""Injected rows give the engine's own answers, and its own keys, up to the noise of its precision."""

from __future__ import annotations

import random
from typing import Any


import torch
from harness import Client

from inferscale.vllm.layout import split_slots
from memory import Memory, _await
from rig import Rig, reply


def _logprobs(output: Any) -> list[dict[int, float]]:
    return [{token: entry.logprob for token, entry in step.items()} for step in output.outputs[0].logprobs]


def _difference(one: Any, other: Any) -> dict[str, Any]:
    """Of the first token's log-probabilities that both list, and how many greedy tokens agree."""
    mine, theirs = _logprobs(one)[0], _logprobs(other)[0]
    shared = set(mine) & set(theirs)
    a, b = one.outputs[0].token_ids, other.outputs[0].token_ids
    same = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), len(a))
    return {
        "shared_top": len(shared), "max_logprob_difference": round(max((abs(mine[t] - theirs[t]) for t in shared), default=9.9), 4),
        "equal_tokens": same, "of": len(a),
    }


def gate_e1(rig: Rig, client: Client, length: int, counts: list[int]) -> dict[str, Any]:
    """The first rows of a prompt captured and injected under the same prompt. Beside it the engine's own
    noise: the same prompt again, its rows from the prefix cache; and, as what a wrong row would do, the
    answer to a prompt with other tokens there."""
    ids = rig.tokens(random.Random(7), length)
    ask = rig.sampling(8, logprobs=5)
    plain, _ = rig.one(ids, "e1-plain", ask)
    cached, _ = rig.one(ids, "e1-plain", ask)
    other, _ = rig.one(rig.tokens(random.Random(8), length - 30) + ids[-30:], "e1-other", ask)
    found = {"prefix cache hit": _difference(cached, plain), "other tokens": _difference(other, plain)}
    for count in counts:
        wanted = client.range(ids, 0, count)
        request = client.request("encode", context="header", capture=[wanted], client_salt=f"e1-{count}")
        rig.one(ids, request["salt"], rig.sampling(1, request["params"]))
        missing = _await(rig, [wanted["key"]], 20.0)
        request = client.request(inject=[wanted["key"]], client_salt=f"e1-{count}")
        answer, _ = rig.one(ids, request["salt"], rig.sampling(8, request["params"], logprobs=5))
        found[f"inject {count} of {length}"] = _difference(answer, plain) | {
            "injected": reply(answer).get("injected", 0), "missing": len(missing),
            "fallbacks": reply(answer).get("fallbacks", []),
        }
    return found


def gate_e2(rig: Rig, memory: Memory, count: int) -> dict[str, Any]:
    """First-layer rows of facts at new places: ours against the engine's own prefill."""
    picked = memory.pick(count)
    ids = memory.prompt(picked, memory.question())
    end = len(ids) - 30
    request = memory.inject(picked, "e2")
    rows = {
        "text": _first_layer(rig, ids, end, "e2-text", None),
        "inject": _first_layer(rig, ids, end, request["salt"], request["params"]),
    }
    key, value = rows["inject"]
    own_key, own_value = rows["text"]
    scale = own_key.abs().max().item()
    return {
        "rows": end, "key_max_error": (key - own_key).abs().max().item(), "key_max": scale,
        "key_mean_error": (key - own_key).abs().mean().item(), "key_mean": own_key.abs().mean().item(),
        "equal_values": round(float((value == own_value).float().mean()), 6),
        "value_max_error": (value - own_value).abs().max().item(), "value_max": own_value.abs().max().item(),
    }


def _first_layer(rig: Rig, ids: list[int], end: int, salt: str, params: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of tokens 0 to end - 1 in the first layer, as the cache has them afterwards."""
    tables: list[list[int]] = []
    pool = rig.scheduler.kv_cache_manager
    allocate = pool.allocate_slots

    def spy(request: Any, *arguments: Any, **named: Any) -> Any:
        blocks = allocate(request, *arguments, **named)
        tables.append(list(pool.get_block_ids(request.request_id)[0]))
        return blocks

    pool.allocate_slots = spy
    try:
        rig.one(ids, salt, rig.sampling(1, params))
    finally:
        del pool.allocate_slots
    size = int(rig.worker._block_size)
    slots = split_slots(tables[0], 0, 0, end, size)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    key, value = rig.worker._reader.read(0, torch.from_numpy(slots).to(device))
    return key.float().cpu().clone(), value.float().cpu().clone()


def gate_e5(rig: Rig, memory: Memory, stranger: dict[str, str]) -> dict[str, Any]:
    """What is not the record's is text: other tokens, another owner, a key nobody has."""
    picked = memory.pick(4)
    ids = memory.prompt(picked, memory.question())
    changed = list(ids)
    changed[len(memory.header) + 3] = (changed[len(memory.header) + 3] + 1) % 1000 + 100
    cases = {
        "right": (ids, memory.inject(picked, "e5-a")),
        "wrong tokens": (changed, memory.inject(picked, "e5-b")),
        "unknown key": (
            ids,
            memory.client.request(inject=[memory.header_key, "ab" * 16], client_salt="e5-c"),
        ),
        "other owner": (
            ids,
            memory.client.request(
                scope=stranger, inject=[memory.keys[n] for n in picked], client_salt="e5-d"
            ),
        ),
    }
    found = {}
    for name, (prompt, request) in cases.items():
        output, _ = rig.one(prompt, request["salt"], rig.sampling(1, request["params"]))
        told = reply(output)
        found[name] = {"injected": told.get("injected"), "fallbacks": told.get("fallbacks")}
    return found



