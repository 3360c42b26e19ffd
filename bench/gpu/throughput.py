"""Closed-loop users: each sends its next request when the last has been answered."""

from __future__ import annotations

import cProfile
import pstats
import random
import time
from pathlib import Path
from typing import Any

from memory import Memory
from rig import FACT, Rig, reply, summary


class Users:
    """``n`` users, each with ``k`` facts of its own out of the memory, and namespaces of their own.

    A request asks about all of a user's facts, in an order of its own (``warm``: always the same), with
    a new question. Everything that a request needs is done in the loop that is timed: the prompt, and
    for ``inject`` the parameters with their signature.
    """

    def __init__(self, rig: Rig, memory: Memory, n: int, k: int, tokens: int) -> None:
        self.rig, self.memory, self.tokens = rig, memory, tokens
        draw = random.Random(n)
        order = list(range(len(memory.facts)))
        draw.shuffle(order)
        self.facts = []
        for user in range(n):
            own = [order[(user * k + i) % len(order)] for i in range(k)]
            self.facts.append(own)
        self.distinct = len({fact for own in self.facts for fact in own})

    def send(self, arm: str, user: int) -> str:
        memory, rig = self.memory, self.rig
        picked = list(self.facts[user])
        question = memory.question()
        if arm == "none":
            return rig.add(memory.header + question, f"plain-{user}", rig.sampling(self.tokens))
        if arm != "warm":
            memory.draw.shuffle(picked)
        ids = memory.prompt(picked, question)
        if arm in ("text", "warm"):
            return rig.add(ids, f"{arm}-{user}", rig.sampling(self.tokens))
        request = memory.inject(picked, f"user-{user}")
        return rig.add(ids, request["salt"], rig.sampling(self.tokens, request["params"]))

    def run(self, arm: str, warm_up: float, seconds: float, encoding: int = 0) -> dict[str, Any]:
        """Requests and tokens per second of the requests that ended in the time measured.

        ``encoding``: so many requests that encode new facts are under way all the time."""
        rig = self.rig
        owner, begun_at, encoded = {}, {}, 0
        encoders = {self._encode() for _ in range(encoding)}
        for user in range(len(self.facts)):
            name = self.send(arm, user)
            owner[name], begun_at[name] = user, time.perf_counter()
        start = time.perf_counter()
        done, latencies, injected, wanted, steps = 0, [], 0, 0, 0
        measuring = False
        while True:
            now = time.perf_counter()
            if not measuring and now - start > warm_up:
                measuring, start_measured = True, now
            if measuring and now - start_measured > seconds:
                break
            steps += measuring
            for output in rig.engine.step():
                if not output.finished:
                    continue
                name = output.request_id
                if name in encoders:
                    encoders.remove(name)
                    encoders.add(self._encode())
                    encoded += measuring
                    continue
                user = owner.pop(name)
                took = 1e3 * (time.perf_counter() - begun_at.pop(name))
                if measuring:
                    done += 1
                    latencies.append(took)
                    told = reply(output)
                    injected += told.get("injected", 0)
                    wanted += 1
                name = self.send(arm, user)
                owner[name], begun_at[name] = user, time.perf_counter()
        elapsed = time.perf_counter() - start_measured
        rig.engine.abort_request([*owner, *encoders])
        rig.drain()
        return {
            "users": len(self.facts), "requests": done, "seconds": round(elapsed, 3),
            "requests_per_s": round(done / elapsed, 3), "tokens_per_s": round(done * self.tokens / elapsed, 1),
            "latency_ms": summary(latencies) if latencies else None,
            "step_ms": round(1e3 * elapsed / max(1, steps), 3),
            "injected_tokens_per_request": round(injected / max(1, wanted), 1),
            "distinct_facts": self.distinct, "encoded_per_s": round(encoded / elapsed, 1),
        }

    def poisson(self, arm: str, rate: float, seconds: float, draw: random.Random) -> dict[str, Any]:
        """Requests of random users that arrive at ``rate`` a second, whether earlier ones are answered or not.

        Latencies are from the arrival, not from when the engine took the request in."""
        rig = self.rig
        begun_at: dict[str, float] = {}
        latencies, late_ms, arrived = [], [], 0
        start = time.perf_counter()
        due, end = start + draw.expovariate(rate), start + seconds
        while (now := time.perf_counter()) < end:
            while due <= now:
                name = self.send(arm, draw.randrange(len(self.facts)))
                begun_at[name], arrived = due, arrived + 1
                late_ms.append(1e3 * (now - due))
                due += draw.expovariate(rate)
            if not rig.engine.has_unfinished_requests():
                time.sleep(max(0.0, min(due, end) - time.perf_counter()))
                continue
            for output in rig.engine.step():
                if output.finished:
                    latencies.append(1e3 * (time.perf_counter() - begun_at.pop(output.request_id)))
        waiting = len(begun_at)
        rig.engine.abort_request(list(begun_at))
        rig.drain()
        return {
            "rate": rate, "arrived": arrived, "answered": len(latencies), "waiting_at_end": waiting,
            "answered_per_s": round(len(latencies) / seconds, 3), "latency_ms": summary(latencies) if latencies else None,
            "sent_late_ms": summary(late_ms) if late_ms else None,
            # More wait than arrive in the time that an answer takes: the queue grows.
            "saturated": bool(latencies) and waiting > 2 + 1.5 * rate * sorted(latencies)[len(latencies) // 2] / 1e3
            or len(latencies) < 0.7 * arrived,
        }

    def _encode(self) -> str:
        return self.memory.send(self.rig.tokens(self.memory.draw, FACT), "beside")[0]


ARMS = ("none", "text", "inject", "warm")


def closed_loop(
    rig: Rig, memory: Memory, users: list[int], k: int, tokens: int, seconds: float, warm_up: float, until: float,
    arms: tuple[str, ...] = ARMS,
) -> dict[str, Any]:
    """Every arm at every number of users, the arms in random order, until the clock says ``until``."""
    found: dict[str, Any] = {}
    for n in users:
        group = Users(rig, memory, n, k, tokens)
        for arm in random.Random(n).sample(arms, len(arms)):
            if time.perf_counter() + seconds + warm_up > until:
                found.setdefault("not_run", []).append(f"{arm}@{n}")
                continue
            extra = 2.0 + 0.06 * n if arm == "warm" else 0.0  # every user's first request fills its cache
            found[f"{arm}@{n}"] = group.run(arm, warm_up + extra, seconds)
            print("throughput", n, arm, found[f"{arm}@{n}"]["requests_per_s"], flush=True)
    return found


def open_loop(
    rig: Rig, memory: Memory, rates: list[float], n: int, k: int, tokens: int, seconds: float, until: float
) -> dict[str, Any]:
    """Every arm at growing rates of Poisson arrivals, until it is saturated or the clock says ``until``."""
    found: dict[str, Any] = {}
    group = Users(rig, memory, n, k, tokens)
    for arm in ARMS:
        group.run(arm, 0.0, 2.0 + 0.06 * n if arm == "warm" else 1.0)  # every user's first request fills its cache
        for rate in rates:
            if time.perf_counter() + seconds > until:
                found.setdefault("not_run", []).append(f"{arm}@{rate}")
                continue
            found[f"{arm}@{rate}"] = cell = group.poisson(arm, rate, seconds, random.Random(int(rate)))
            print("arrivals", rate, arm, cell["answered_per_s"], "saturated" if cell["saturated"] else "", flush=True)
            if cell["saturated"]:
                break
    return found


def encoding_beside(rig: Rig, memory: Memory, n: int, k: int, seconds: float, rounds: int) -> dict[str, Any]:
    """What encoding in the background costs users who are served: with 0, 1 and 4 facts under way."""
    group = Users(rig, memory, n, k, 50)
    found: dict[str, Any] = {}
    for number in range(rounds):
        for encoding in random.Random(number).sample([0, 1, 4], 3):
            found[f"{encoding} encoding, round {number}"] = group.run("inject", 1.0, seconds, encoding)
    return found


def profiled(rig: Rig, memory: Memory, n: int, k: int, seconds: float) -> dict[str, Any]:
    """Which functions of this process an injected request costs more time in than one whose prompt is cached:
    microseconds a request in the function itself, the largest differences first."""
    group, own = Users(rig, memory, n, k, 50), {}
    for arm in ("warm", "inject"):
        group.run(arm, 0.0, 2.0)
        watch = cProfile.Profile()
        done = watch.runcall(group.run, arm, 0.0, seconds)["requests"]
        own[arm] = {
            f"{Path(place[0]).name}:{place[1]} {place[2]}": 1e6 * found[2] / max(1, done)
            for place, found in pstats.Stats(watch).stats.items()
        }
    more = {name: us - own["warm"].get(name, 0.0) for name, us in own["inject"].items()}
    names = sorted(more, key=lambda name: -abs(more[name]))[:60]
    return {name: {arm: round(own[arm].get(name, 0.0), 1) for arm in own} for name in names}
