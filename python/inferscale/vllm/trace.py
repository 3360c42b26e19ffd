"""What became of a request: the reply's and ``/v1/trace``'s object."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Trace:
    """Of one engine request. Written by the scheduler's thread, read by any (fields are replaced,
    not changed in part, except counters, whose reader may see a state in between)."""

    request: str
    purpose: str
    prompt_tokens: int
    local_hit: int = 0  # tokens found in the engine's own prefix cache when it was admitted
    injected: int = 0  # tokens placed from records
    served: tuple[Any, int] | None = None  # _core.Match, and the token before which its records are in use
    fallbacks: Counter[str] = field(default_factory=Counter)
    refused: list[str] = field(default_factory=list)  # keys of a signed request that was served as text
    captured: list[str] = field(default_factory=list)
    failed: str | None = None
    finished: bool = False
    preemptions: int = 0
    admissions: list[dict[str, int]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "request": self.request,
            "purpose": self.purpose,
            "prompt_tokens": self.prompt_tokens,
            "local_hit": self.local_hit,
            "injected": self.injected,
            "segments": self.served[0].spans(self.served[1]) if self.served else [],
            "fallbacks": [
                {"reason": reason, "count": count} for reason, count in list(self.fallbacks.items())
            ],
            "refused": list(self.refused),
            "captured": list(self.captured),
            "failed": self.failed,
            "finished": self.finished,
            "admissions": list(self.admissions),
        }


class TraceRing:
    """The traces of the last requests, by the client's name of each. Thread-safe."""

    def __init__(self, capacity: int = 4096) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._traces: OrderedDict[str, Trace] = OrderedDict()

    def add(self, trace: Trace) -> None:
        """Lists a trace. Of several sequences of one request that run at once, the first stands."""
        with self._lock:
            known = self._traces.get(trace.request)
            if known is not None and not known.finished:
                return
            self._traces[trace.request] = trace
            self._traces.move_to_end(trace.request)
            while len(self._traces) > self._capacity:
                self._traces.popitem(last=False)

    def find(self, request: str) -> Trace | None:
        with self._lock:
            return self._traces.get(request)
