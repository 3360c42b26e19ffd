"""Time to the first token of one request at a time: every arm once a round, in random order."""

from __future__ import annotations

import time
from typing import Any

from memory import Memory
from rig import Rig, ratio_interval, reply, summary


class Ttft:
    """Arms at each number of facts:

    none    header and question                        text    header, facts, question: facts in an order of their own
    warm    as text, header and facts in the prefix cache    inject  as text, facts from their records
    inject+8  as inject, the last 8 facts once more as text before the question

    Arms none, text and warm are requests without our parameters. The header is in the prefix cache in
    every arm; the question is new each time. ``paths``: name -> the worker's path, by tier.
    """

    def __init__(self, rig: Rig, memory: Memory, counts: list[int], paths: dict[str, Any]) -> None:
        self.rig, self.memory, self.counts, self.paths = rig, memory, counts, paths
        self.fixed = {count: memory.pick(count) for count in counts}
        self.times: dict[str, list[float]] = {}
        self.wrong: list[str] = []
        self.sign_ms: list[float] = []

    def arms(self) -> list[tuple[str, int]]:
        arms = []
        for count in self.counts:
            arms += [("none", count), ("text", count), ("warm", count)]
            arms += [(f"inject:{tier}", count) for tier in self.paths]
            if count > 8:
                arms += [("inject+8:gpu", count)] if "gpu" in self.paths else []
        return arms

    def _plain(self, ids: list[int], salt: str) -> float:
        return self.rig.one(ids, salt, self.rig.sampling(1))[1]

    def _injected(self, count: int, tier: str, again: int) -> float:
        memory, rig = self.memory, self.rig
        picked = memory.pick(count)
        ids = memory.prompt(picked, memory.question(), picked[-again:] if again else [])
        begun = time.perf_counter()
        request = memory.inject(picked, "ttft", again)
        self.sign_ms.append(1e3 * (time.perf_counter() - begun))
        rig.worker._path = self.paths[tier]
        output, elapsed = rig.one(ids, request["salt"], rig.sampling(1, request["params"]))
        told = reply(output)
        covered = len(memory.header) + 28 * count
        if told.get("injected", 0) + told.get("local_hit", 0) < covered:
            self.wrong.append(f"{tier} {count}: {told}"[:300])
        return elapsed

    def once(self, arm: str, count: int) -> float:
        memory = self.memory
        if arm == "none":
            return self._plain(memory.header + memory.question(), "plain")
        if arm == "text":
            return self._plain(memory.prompt(memory.pick(count), memory.question()), "plain")
        if arm == "warm":
            return self._plain(memory.prompt(self.fixed[count], memory.question()), "warm")
        kind, tier = arm.split(":")
        return self._injected(count, tier, 8 if kind == "inject+8" else 0)

    def run(self, rounds: int, seconds: float, warm_up: int = 3) -> None:
        until = time.perf_counter() + seconds
        for number in range(rounds + warm_up):
            order = self.arms()
            self.memory.draw.shuffle(order)
            elapsed = {arm: self.once(*arm) for arm in order}
            if number >= warm_up:
                for (arm, count), ms in elapsed.items():
                    self.times.setdefault(f"{arm}/{count}", []).append(ms)
            if time.perf_counter() > until:
                break

    def report(self) -> dict[str, Any]:
        table, ratios = {}, {}
        for name, values in self.times.items():
            table[name] = summary(values)
        for name, values in self.times.items():
            arm, count = name.split("/")
            if arm.startswith("inject") or arm == "warm":
                for base in ("none", "warm"):
                    if arm != base:
                        ratios[f"{arm} / {base} @ {count}"] = ratio_interval(values, self.times[f"{base}/{count}"])
                ratios[f"text / {arm} @ {count}"] = ratio_interval(self.times[f"text/{count}"], values)
        return {
            "ms": table, "ratios": ratios, "not_injected": self.wrong[:10], "n_not_injected": len(self.wrong),
            "sign_ms": summary(self.sign_ms) if self.sign_ms else None, "raw": {
                name: [round(value, 3) for value in values] for name, values in self.times.items()
            },
        }


class Stopwatch:
    """Adds up the time that some methods of an object take."""

    def __init__(self, owner: Any, names: list[str]) -> None:
        self.owner, self.names, self.ms = owner, names, dict.fromkeys(names, 0.0)
        for name in names:
            setattr(owner, name, self._timed(name, getattr(owner, name)))

    def _timed(self, name: str, method: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            begun = time.perf_counter()
            try:
                return method(*arguments, **named)
            finally:
                self.ms[name] += 1e3 * (time.perf_counter() - begun)

        return call

    def take(self) -> dict[str, float]:
        taken, self.ms = self.ms, dict.fromkeys(self.names, 0.0)
        return taken

    def stop(self) -> None:
        for name in self.names:
            delattr(self.owner, name)


def breakdown(rig: Rig, memory: Memory, paths: dict[str, Any], count: int, rounds: int) -> dict[str, Any]:
    """Where an injected request's time goes on the CPU; measured apart, since looking costs time too."""
    ttft = Ttft(rig, memory, [count], paths)
    hooks = ["on_new_request", "matched_tokens", "allocated", "build_meta", "finished"]
    found: dict[str, Any] = {}
    for tier in paths:
        side, worker = Stopwatch(rig.side, hooks), Stopwatch(rig.worker, ["load", "save"])
        totals: dict[str, list[float]] = {}
        for _ in range(rounds):
            elapsed = ttft.once(f"inject:{tier}", count)
            for name, ms in {**side.take(), **worker.take(), "request": elapsed}.items():
                totals.setdefault(name, []).append(ms)
        side.stop(), worker.stop()
        found[tier] = {name: summary(values) for name, values in totals.items()}
    return found
