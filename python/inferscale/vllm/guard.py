"""No exception leaves a hook that vLLM calls: one that left ``start_load_kv`` would end the server."""

from __future__ import annotations

import functools
import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

logger = logging.getLogger("vllm.inferscale")


class Faults:
    """Counts exceptions by hook and kind, and logs the first of each. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def note(self, where: str, error: BaseException) -> None:
        kind = f"{where}: {type(error).__name__}"
        with self._lock:
            self._counts[kind] += 1
            first = self._counts[kind] == 1
        if first:
            logger.error("InferScale: %s: %s (logged once)", kind, error, exc_info=error)

    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)


def guarded(default: Callable[[], Any] = lambda: None) -> Callable:
    """Makes a method of an object with ``faults`` return ``default()`` instead of raising."""

    def wrap(method: Callable) -> Callable:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return method(self, *args, **kwargs)
            except Exception as error:
                self.faults.note(method.__name__, error)
                return default()

        return call

    return wrap
