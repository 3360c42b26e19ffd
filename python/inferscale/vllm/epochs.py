"""What the scheduler side must remember over a restart: epochs, scopes, erasures under way."""

from __future__ import annotations

import json
import sqlite3
import threading
from pathlib import Path
from typing import Any

from inferscale import _core

Owner = tuple[str, str]  # tenant, user

_SCHEMA = """
CREATE TABLE IF NOT EXISTS epochs(
  tenant TEXT NOT NULL, user TEXT NOT NULL, epoch INTEGER NOT NULL, erase TEXT, receipt TEXT,
  PRIMARY KEY(tenant, user));
CREATE TABLE IF NOT EXISTS scopes(
  hash TEXT PRIMARY KEY, tenant TEXT NOT NULL, user TEXT NOT NULL, agent TEXT NOT NULL,
  run TEXT NOT NULL);
"""


class EpochTable:
    """The epoch of each (tenant, user), every scope whose records may exist, and per owner the
    erasure that is not yet acknowledged. In ``scheduler.db`` of the data directory; what a method
    has changed is on disk when it returns. Thread-safe. Raises sqlite3.Error."""

    def __init__(self, directory: Path) -> None:
        self._lock = threading.Lock()
        self._db = sqlite3.connect(
            directory / "scheduler.db", check_same_thread=False, isolation_level=None
        )
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.executescript(_SCHEMA)
        self._epochs: dict[Owner, int] = {
            (row[0], row[1]): row[2]
            for row in self._db.execute("SELECT tenant, user, epoch FROM epochs")
        }
        self._scopes: dict[str, dict[str, str]] = {
            row[0]: dict(zip(("tenant", "user", "agent", "run"), row[1:]))
            for row in self._db.execute("SELECT hash, tenant, user, agent, run FROM scopes")
        }

    def epoch(self, owner: Owner) -> int | None:
        """The current epoch; None for an owner that was never seen."""
        with self._lock:
            return self._epochs.get(owner)

    def start(self, owner: Owner, epoch: int) -> int:
        """Gives an owner that was never seen its first epoch; returns the one that now holds."""
        with self._lock:
            if owner not in self._epochs:
                self._db.execute(
                    "INSERT INTO epochs(tenant, user, epoch) VALUES(?, ?, ?)", (*owner, epoch)
                )
                self._epochs[owner] = epoch
            return self._epochs[owner]

    def learn_scope(self, scope: dict[str, str]) -> tuple[str, bool]:
        """Remembers a scope before a record of it can exist. Returns its hash, and if it is new."""
        digest = _core.scope_hash(scope)
        with self._lock:
            if digest in self._scopes:
                return digest, False
            self._db.execute(
                "INSERT INTO scopes(hash, tenant, user, agent, run) VALUES(?, ?, ?, ?, ?)",
                (digest, scope["tenant"], scope["user"], scope["agent"], scope["run"]),
            )
            self._scopes[digest] = dict(scope)
            return digest, True

    def scopes(self, owner: Owner | None = None) -> dict[str, dict[str, str]]:
        """Known scopes by hash, of one owner or of all."""
        with self._lock:
            return {
                digest: dict(scope)
                for digest, scope in self._scopes.items()
                if owner is None or (scope["tenant"], scope["user"]) == owner
            }

    def begin_erase(self, owner: Owner, epoch: int, request: dict[str, Any]) -> None:
        """Raises the epoch and writes down what is to be erased, in one transaction."""
        with self._lock:
            self._db.execute(
                "INSERT INTO epochs(tenant, user, epoch, erase) VALUES(?, ?, ?, ?) "
                "ON CONFLICT(tenant, user) DO UPDATE SET epoch=excluded.epoch, "
                "erase=excluded.erase, receipt=NULL",
                (*owner, epoch, json.dumps(request, sort_keys=True)),
            )
            self._epochs[owner] = epoch

    def end_erase(self, owner: Owner, epoch: int, receipt: dict[str, Any]) -> None:
        """All ranks have erased. The receipt stays, for a client that has lost its answer."""
        with self._lock:
            self._db.execute(
                "UPDATE epochs SET receipt=? WHERE tenant=? AND user=? AND epoch=?",
                (json.dumps(receipt), *owner, epoch),
            )

    def erasure(self, owner: Owner) -> tuple[int, dict[str, Any], dict[str, Any] | None] | None:
        """The last erasure of an owner: epoch, request, and the receipt once it is acknowledged."""
        with self._lock:
            row = self._db.execute(
                "SELECT epoch, erase, receipt FROM epochs WHERE tenant=? AND user=?", owner
            ).fetchone()
        if row is None or row[1] is None:
            return None
        return row[0], json.loads(row[1]), json.loads(row[2]) if row[2] else None

    def unfinished(self) -> list[tuple[Owner, int, dict[str, Any]]]:
        """Erasures that a crash or a silent rank has left open."""
        with self._lock:
            rows = self._db.execute(
                "SELECT tenant, user, epoch, erase FROM epochs "
                "WHERE erase IS NOT NULL AND receipt IS NULL"
            ).fetchall()
        return [((row[0], row[1]), row[2], json.loads(row[3])) for row in rows]

    def close(self) -> None:
        with self._lock:
            self._db.close()
