"""A rank's records, and what the rank channel asks of them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from inferscale import _core

_MAX_TOMBSTONES = 65536


class RankRecords:
    """A RecordStore, and a memory of erasures, so that a capture planned before one cannot bring
    back what it erased. Thread-safe."""

    def __init__(self, store: "_core.RecordStore") -> None:
        self._store = store
        self._lock = threading.Lock()  # between a capture and an erasure
        self._erased: OrderedDict[str, int] = OrderedDict()  # key or scope hash -> fence
        self._known: set[str] = set()
        self._evictions = 0  # of all tiers, when it was last looked
        self._listing: list[dict[str, Any]] = []

    @property
    def store(self) -> "_core.RecordStore":
        return self._store

    def capture(
        self, meta: dict[str, Any], fence: int, tokens: np.ndarray, begin: int,
        keys: Any, values: Any,
    ) -> str | None:
        """Stores a record; the text says why it did not. Raises what the core raises."""
        return self.keep(meta, fence, lambda: self._store.capture(meta, tokens, begin, keys, values))

    def keep(self, meta: dict[str, Any], fence: int, store: Callable[[], Any]) -> str | None:
        """Calls ``store``, which stores the record of ``meta``, unless it was erased since ``fence``.

        The text says why it was not stored. Raises what ``store`` raises.
        """
        with self._lock:
            if self._erased_since(meta, fence):
                return "capture_erased"
            store()
            self._known.add(meta["key"])
        return None

    def capture_rows(
        self, meta: dict[str, Any], fence: int, tokens: np.ndarray, begin: int,
        cache: "_core.EngineCache", slots: np.ndarray,
    ) -> str | None:
        """As ``capture``, from the engine's own cache."""
        return self.keep(meta, fence, lambda: self._store.capture_rows(meta, tokens, begin, cache, slots))

    def _erased_since(self, meta: dict[str, Any], fence: int) -> bool:
        return any(self._erased.get(name, -1) > fence for name in (meta["key"], meta["scope_hash"]))

    def evicted(self) -> list[str]:
        """Records that were here and no longer are; each is told once."""
        with self._lock:
            evictions = sum(tier["evictions"] for tier in self._store.stats()["tiers"])
            if evictions == self._evictions:
                return []
            self._evictions = evictions
            gone = [key for key in self._known if not self._store.contains(key)]
            self._known.difference_update(gone)
        return gone

    def list_records(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        offset, limit = int(message["offset"]), int(message["limit"])
        with self._lock:
            if offset == 0:
                self._listing = [
                    {
                        "key": key, "scope": scope, "kind": kind, "context_id": context,
                        "tokens": np.asarray(tokens).tolist(),
                    }
                    for key, scope, kind, context, tokens in self._store.records()
                ]
                self._known.update(entry["key"] for entry in self._listing)
            page = self._listing[offset : offset + limit]
            if not page:
                self._listing = []
            return page

    def erase(self, message: dict[str, Any]) -> dict[str, int]:
        """Erases by key and by scope, durably; counts by tier."""
        keys, scopes, fence = message["keys"], message["scopes"], int(message["fence"])
        total = {"gpu": 0, "pinned": 0, "host": 0, "disk": 0, "leased": 0}
        with self._lock:
            for name in (*keys, *scopes):
                self._erased[name] = max(fence, self._erased.pop(name, -1))
            while len(self._erased) > _MAX_TOMBSTONES:
                self._erased.popitem(last=False)
            counts = [self._store.erase(keys)] if keys else []
            counts += [self._store.erase_scope(scope) for scope in scopes]
            self._store.flush()
            self._known.difference_update(keys)
        for count in counts:
            for tier in total:
                total[tier] += int(count[tier])
        return total

    def check(self, message: dict[str, Any]) -> dict[str, list[str]]:
        """Reads records: which are ``sound``, and which were damaged (``corrupt``) and are dropped."""
        return dict(self._store.check(message["keys"]))

    def verify(self, _: dict[str, Any]) -> dict[str, Any]:
        return dict(self._store.verify())

    def stats(self, _: dict[str, Any]) -> dict[str, Any]:
        return dict(self._store.stats())

    def close(self) -> None:
        with self._lock:
            self._store.close()
