"""What records there are, as the scheduler side knows it."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from inferscale import _core


PARKED = "parked"  # the context kind of rows of a conversation
MAX_PARKED = 64  # of one scope; the oldest go first


@dataclass(frozen=True)
class RecordInfo:
    """Of a record that at least one rank has or is about to have."""

    scope_hash: str
    kind: str  # context kind
    context_id: str
    tokens: np.ndarray = field(repr=False, compare=False)  # int32


@dataclass
class _Pending:
    info: RecordInfo
    number: int  # of the capture
    missing: set[int]  # ranks that have not acknowledged


class RecordBook:
    """The core's index, and beside it what the workers must be told of a record. Thread-safe."""

    def __init__(self, n_ranks: int) -> None:
        self._lock = threading.Lock()
        self._n_ranks = n_ranks
        self._index = _core.SchedulerIndex(n_ranks)
        self._infos: dict[str, RecordInfo] = {}
        self._pending: dict[str, _Pending] = {}
        self._unverified: dict[str, dict[int, RecordInfo]] = {}  # by rank; of _infos
        self._parked: dict[str, str] = {}  # key -> scope hash, oldest first; of _infos and _pending

    def learn_scope(self, scope: dict[str, str]) -> None:
        self._index.learn_scope(scope)

    def found(self, rank: int, key: str, info: RecordInfo) -> None:
        """A rank has a record of an earlier run. It can be matched once it is sound on all ranks."""
        with self._lock:
            self._infos[key] = info
            self._unverified.setdefault(key, {})[rank] = info
            self._note_parked(key, info)

    def sound(self, rank: int, key: str) -> None:
        """A rank has read a record that was ``found`` and it is what it was.

        Nothing happens when it was erased or lost meanwhile.
        """
        with self._lock:
            info = self._drop_unverified(rank, key)
            if info is not None:
                self._index.add(rank, key, info.scope_hash, info.kind, info.tokens, info.context_id)

    def unsound(self, rank: int, key: str) -> bool:
        """A rank could not read a record that was ``found``, or no longer has it: it is unusable.

        False, and nothing happens, when it was erased, lost or captured anew meanwhile.
        """
        with self._lock:
            if rank not in self._unverified.get(key, ()):
                return False
            del self._unverified[key]
            if key not in self._pending:
                self._infos.pop(key, None)
                self._parked.pop(key, None)
            return True

    @property
    def has_unverified(self) -> bool:
        """Whether there is any record of an earlier run that some ranks have not read yet. Costs nothing."""
        return bool(self._unverified)

    def unverified(self, limit: int, keys: Iterable[str] | None = None) -> list[tuple[str, list[int], int]]:
        """Of these keys, or of all, the first of an earlier run that some ranks have not read yet: key,
        ranks, tokens."""
        with self._lock:
            waiting = self._unverified if keys is None else (key for key in keys if key in self._unverified)
            return [
                (key, list(self._unverified[key]), len(self._infos[key].tokens)) for key in islice(waiting, limit)
            ]

    def unverified_keys(self, keys: list[str] | None = None) -> list[str]:
        """Of these keys, or of all, those of records that some ranks have not read yet."""
        with self._lock:
            if keys is None or not self._unverified:
                return list(self._unverified)
            return [key for key in keys if key in self._unverified]

    def _drop_unverified(self, rank: int, key: str) -> RecordInfo | None:
        waiting = self._unverified.get(key)
        info = waiting.pop(rank, None) if waiting is not None else None
        if waiting is not None and not waiting:
            del self._unverified[key]
        return info

    def expect(self, key: str, info: RecordInfo, number: int = 0) -> None:
        """The capture ``number`` of this record is on its way to the ranks; of an earlier one nothing is
        believed any more."""
        with self._lock:
            self._pending[key] = _Pending(info, number, set(range(self._n_ranks)))
            self._note_parked(key, info)
            self._index.expect(key, info.scope_hash)

    def arrived(self, rank: int, key: str, number: int = 0) -> bool:
        """A rank has captured a record. True when it was the last one, and the record counts.

        Nothing happens when it was erased meanwhile: the rank was told to erase it, too.
        """
        with self._lock:
            pending = self._pending.get(key)
            if pending is None or pending.number != number:
                return False
            self._infos[key] = pending.info
            self._drop_unverified(rank, key)  # what it captured in this run needs no reading
            info = pending.info
            self._index.add(rank, key, info.scope_hash, info.kind, info.tokens, info.context_id)
            pending.missing.discard(rank)
            if pending.missing:
                return False
            del self._pending[key]
            return True

    def refused(self, rank: int, key: str, number: int) -> None:
        """A rank could not capture a record."""
        with self._lock:
            pending = self._pending.get(key)
            if pending is None or pending.number != number:
                return
            del self._pending[key]
        self.lost(rank, key)

    def missing(self, key: str, number: int) -> bool:
        """Whether ranks have not answered to this capture yet, and it would still count."""
        with self._lock:
            pending = self._pending.get(key)
            return pending is not None and pending.number == number

    def lost(self, rank: int, key: str) -> None:
        """A rank no longer has a record. A capture of it that the rank has not finished goes on."""
        with self._lock:
            self._index.drop(rank, [key])
            pending = self._pending.get(key)
            if pending is not None and rank in pending.missing:
                return
            self._pending.pop(key, None)
            self._infos.pop(key, None)
            self._unverified.pop(key, None)
            self._parked.pop(key, None)

    def erase(self, keys: list[str], scopes: set[str]) -> list[str]:
        """Erases by key and by scope hash; returns the keys of the records that there were."""
        with self._lock:
            gone = set(keys)
            gone.update(key for key, info in self._infos.items() if info.scope_hash in scopes)
            pending = {
                key
                for key, entry in self._pending.items()
                if key in gone or entry.info.scope_hash in scopes
            }
            present = [key for key in gone if key in self._infos]
            for key in gone | pending:
                self._infos.pop(key, None)
                self._unverified.pop(key, None)
                self._pending.pop(key, None)
                self._parked.pop(key, None)
            if gone or pending:
                self._index.erase(list(gone | pending))
            return present

    def parked(self, scopes: set[str] | None = None) -> list[str]:
        """Keys of parked records, stored or on their way, of these scopes or of all; oldest first."""
        with self._lock:
            return [key for key, scope in self._parked.items() if scopes is None or scope in scopes]

    def _note_parked(self, key: str, info: RecordInfo) -> None:
        if info.kind == PARKED:
            self._parked.setdefault(key, info.scope_hash)

    def match(self, prompt: np.ndarray, params: "_core.RequestParams") -> "_core.Match":
        """The longest leading run of records in a prompt."""
        return self._index.match(prompt, params)

    def info(self, key: str) -> RecordInfo | None:
        with self._lock:
            return self._infos.get(key)

    def infos(self) -> dict[str, RecordInfo]:
        with self._lock:
            return dict(self._infos)

    def ready(self, key: str) -> bool:
        return self._index.contains(key)

    def count(self) -> int:
        return len(self._index)


def read_records(ranks: Any, scopes: dict[str, dict[str, str]], book: RecordBook) -> tuple[list[str], list[str]]:
    """Fills the book with what the ranks have of these scopes (by hash), at a start. Returns keys and scope
    hashes of what nobody can use any more. Raises RankError."""
    for scope in scopes.values():
        book.learn_scope(scope)
    strangers: set[str] = set()
    parked: set[str] = set()
    for rank in range(len(ranks)):
        for record in ranks.records(rank):
            if record["scope"] not in scopes:
                strangers.add(record["scope"])  # nobody could ask for it, or delete it
                continue
            if record["kind"] == PARKED:
                parked.add(record["key"])  # the prefix cache that it goes on from is gone
                continue
            tokens = np.asarray(record["tokens"], dtype=np.int32)
            info = RecordInfo(record["scope"], record["kind"], record["context_id"], tokens)
            book.found(rank, record["key"], info)
    return sorted(parked), sorted(strangers)
