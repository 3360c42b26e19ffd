"""Facts of random tokens, encoded through the engine; and the requests of the arms."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
from harness import Client
from inferscale import _core
from rig import FACT, HEADER, QUESTION, Rig, summary


class Memory:
    """A header and facts of one scope, each with its record."""

    def __init__(self, rig: Rig, client: Client, seed: int = 1) -> None:
        self.rig, self.client = rig, client
        self.draw = random.Random(seed)
        self.header = rig.tokens(self.draw, HEADER)
        self.facts: list[list[int]] = []
        self.keys: list[str] = []
        self.header_key = ""
        self.salts: dict[tuple[str, int], str] = {}

    def encode_header(self, salt: str = "") -> None:
        wanted = self.client.range(self.header, 0, HEADER)
        request = self.client.request("encode", context="header", capture=[wanted], client_salt=salt)
        output, _ = self.rig.one(
            self.header + [5], request["salt"], self.rig.sampling(1, request["params"])
        )
        self.header_key = wanted["key"]
        _await(self.rig, [self.header_key], 20.0)

    def send(self, fact: list[int], salt: str = "") -> tuple[str, str]:
        """A request that encodes a fact behind the header; its name and the record's key."""
        context = _core.context_id("header", np.asarray(self.header, np.int32), [])
        prompt = self.header + fact
        wanted = self.client.range(prompt, HEADER, len(prompt), "header", context)
        request = self.client.request("encode", context="header", capture=[wanted], client_salt=salt)
        name = self.rig.add(prompt, request["salt"], self.rig.sampling(1, request["params"]))
        return name, wanted["key"]

    def encode(self, count: int, seconds: float, batch: int = 256) -> dict[str, Any]:
        """Encodes facts, ``batch`` requests at a time, until there are ``count`` more or time is up.

        The header's rows come from the prefix cache from the second on."""
        rig = self.rig
        begun, refused, made, batches = time.perf_counter(), 0, 0, []
        while made < count and time.perf_counter() - begun < seconds:
            size = min(batch, count - made)
            began = time.perf_counter()
            facts = [rig.tokens(self.draw, FACT) for _ in range(size)]
            keys = [self.send(fact)[1] for fact in facts]
            rig.drain()
            missing = _await(rig, keys, 20.0)
            batches.append(1e3 * (time.perf_counter() - began) / size)
            for fact, key in zip(facts, keys):
                if key not in missing:
                    self.facts.append(fact)
                    self.keys.append(key)
            refused += len(missing)
            made += size
        elapsed = time.perf_counter() - begun
        return {
            "facts": made, "missing": refused, "batch": batch, "seconds": round(elapsed, 3),
            "facts_per_s": round((made - refused) / elapsed, 1), "ms_per_fact_by_batch": summary(batches),
            "bytes_per_token": self.bytes_per_token(),
        }

    def encode_again(self, batch: int) -> None:
        """Captures the header and all facts once more, into the store that the worker uses now."""
        self.encode_header("again")
        for first in range(0, len(self.facts), batch):
            keys = [self.send(fact, "again")[1] for fact in self.facts[first : first + batch]]
            self.rig.drain()
            _await(self.rig, keys, 20.0)

    def bytes_per_token(self) -> int:
        shape = self.rig.shape
        width = shape.get("head_dim", shape["hidden_size"] // shape["num_attention_heads"])
        return 2 * 2 * shape["num_hidden_layers"] * shape["num_key_value_heads"] * width

    def question(self) -> list[int]:
        return self.rig.tokens(self.draw, QUESTION)

    def pick(self, count: int) -> list[int]:
        return self.draw.sample(range(len(self.facts)), count)

    def prompt(self, picked: list[int], question: list[int], again: list[int] = ()) -> list[int]:
        """Header, facts, some facts once more as text, question."""
        ids = list(self.header)
        for number in (*picked, *again):
            ids += self.facts[number]
        return ids + question

    def inject(self, picked: list[int], salt: str, top_j: int = 0) -> dict[str, Any]:
        """Parameters and cache salt of a request. The salt depends on who asks, not on what is injected,
        so that a client makes it once."""
        wanted = {
            "v": 1, "request": f"r{next(self.rig.names)}", "scope": self.client.scope,
            "epoch": self.client.epoch, "purpose": "inject", "top_j": top_j, "context": "",
            "client_salt": salt, "capture": [],
            "inject": [self.header_key, *(self.keys[number] for number in picked)],
        }
        text = _core.signed_params(wanted, self.client.secret)
        if (salt, top_j) not in self.salts:
            parsed = _core.parse_params(text, self.client.secret)
            self.salts[salt, top_j] = _core.cache_salt(parsed, self.client.secret, self.client.fingerprint)
        return {"params": text, "salt": self.salts[salt, top_j]}


def _await(rig: Rig, keys: list[str], seconds: float) -> set[str]:
    """Waits until all keys can be matched; those that still cannot."""
    until = time.perf_counter() + seconds
    missing = {key for key in keys if not rig.side.book.ready(key)}
    while missing and time.perf_counter() < until:
        time.sleep(0.001)
        missing = {key for key in missing if not rig.side.book.ready(key)}
        if missing and not rig.side._capturing:
            break
    return missing



