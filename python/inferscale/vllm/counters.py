"""Numbers by name, since the start and since they were last taken."""

from __future__ import annotations

import threading
from collections import Counter


class Counters:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._new: Counter[str] = Counter()
        self._totals: Counter[str] = Counter()

    def count(self, name: str, number: int = 1) -> None:
        with self._lock:
            self._new[name] += number
            self._totals[name] += number

    def take(self) -> dict[str, int]:
        """What was counted since the last call."""
        with self._lock:
            counters, self._new = self._new, Counter()
        return dict(counters)

    def totals(self) -> dict[str, int]:
        """What was counted since the start."""
        with self._lock:
            return dict(self._totals)
