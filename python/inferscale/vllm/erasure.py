"""Erasing on the scheduler side: epoch first, then the index, then every rank, then the receipt."""

from __future__ import annotations

import logging
import threading
from typing import Any

from inferscale.vllm.epochs import EpochTable, Owner
from inferscale.vllm.ranks import Ranks
from inferscale.vllm.records import RecordBook

logger = logging.getLogger("vllm.inferscale")


class Conflict(Exception):
    """The epoch of an erasure is not above the known one."""


class Eraser:
    """Serialises erasures. Thread-safe; methods wait for the ranks."""

    def __init__(self, epochs: EpochTable, book: RecordBook, ranks: Ranks) -> None:
        self._epochs, self._book, self._ranks = epochs, book, ranks
        self._lock = threading.Lock()
        self._fence = 0
        self._ahead_lock = threading.Lock()
        self._ahead: set[Owner] = set()  # owners whose missed erasures are being made up for

    def fence(self) -> int:
        """The number of the last erasure begun: what is planned now knows of it."""
        return self._fence

    def erase(self, owner: Owner, epoch: int, what: dict[str, Any]) -> dict[str, Any]:
        """Erases ``{"keys": [...]}``, ``{"scope": {...}}`` or ``{"all": True}`` of an owner.

        Returns the receipt once every rank has erased durably. The same call again returns the same
        receipt, or goes on where it was interrupted. Raises Conflict (epoch not above the known
        one) and RankError (a rank is silent: the epoch is raised and the index empty of it, so that
        nothing erased can be served; call again).
        """
        with self._lock:
            known = self._epochs.epoch(owner)
            last = self._epochs.erasure(owner)
            if known is not None and epoch <= known:
                if last is None or last[0] != epoch or last[1]["what"] != what:
                    raise Conflict(f"the epoch must be above {known}, which is the known one")
                if last[2] is not None:
                    return last[2]
                return self._carry_out(owner, epoch, last[1])
            unfinished = last is not None and last[2] is None
            missed = known is not None and epoch > known + 1
            order = {"what": what, "everything": unfinished or missed}
            self._epochs.begin_erase(owner, epoch, order)
            return self._carry_out(owner, epoch, order)

    def erase_shared(self, keys: list[str]) -> dict[str, Any]:
        """Erases records that belong to no user: headers and primers; and the rows of all
        conversations, which may have seen them. Raises ValueError, RankError."""
        with self._lock:
            users = {digest for digest, scope in self._epochs.scopes().items() if scope["user"]}
            for key in keys:
                info = self._book.info(key)
                if info is not None and info.scope_hash in users:
                    raise ValueError(f"record {key} belongs to a user: give tenant, user and epoch")
            return self._apply([*keys, *self._book.parked()], set(), 0)

    def forget(self, keys: list[str]) -> None:
        """Erases records that nobody was promised. Returns at once; a thread does it."""
        threading.Thread(
            target=self._forget, args=(keys,), name="inferscale-forget", daemon=True
        ).start()

    def catch_up(self, owner: Owner, epoch: int) -> None:
        """A request knows a later epoch: an erasure was missed, so everything of the owner goes.

        Returns at once; a thread does it. Until then the owner's requests are served as text.
        """
        with self._ahead_lock:
            if owner in self._ahead:
                return
            self._ahead.add(owner)
        threading.Thread(
            target=self._catch_up, args=(owner, epoch), name="inferscale-erase", daemon=True
        ).start()

    def catching_up(self, owner: Owner) -> bool:
        return owner in self._ahead

    def resume(self) -> None:
        """At start: carries out what was left open. Raises RankError."""
        with self._lock:
            for owner, epoch, order in self._epochs.unfinished():
                self._carry_out(owner, epoch, order)

    def _forget(self, keys: list[str]) -> None:
        try:
            with self._lock:
                self._apply(keys, set(), 0)
        except Exception as error:  # they are in no index any more; the next start erases them
            logger.warning("InferScale: erasing parked records failed: %s", error)

    def _catch_up(self, owner: Owner, epoch: int) -> None:
        try:
            self.erase(owner, epoch, {"all": True})
        except Conflict:
            pass  # somebody else has raised it meanwhile
        except Exception as error:  # stays text; the next request with that epoch tries again
            logger.error("InferScale: erasing what was missed failed: %s", error)
        finally:
            with self._ahead_lock:
                self._ahead.discard(owner)

    def _carry_out(self, owner: Owner, epoch: int, order: dict[str, Any]) -> dict[str, Any]:
        what = order["what"]
        scopes: set[str] = set()
        if order["everything"] or what.get("all"):
            scopes = set(self._epochs.scopes(owner))
        elif "scope" in what:
            scopes = {
                digest
                for digest, scope in self._epochs.scopes(owner).items()
                if all(what["scope"][name] in ("", scope[name]) for name in ("agent", "run"))
            }
        # Rows of conversations may have seen what is erased, and nobody else knows of them.
        parked = self._book.parked(set(self._epochs.scopes(owner)))
        receipt = self._apply([*what.get("keys", []), *parked], scopes, epoch)
        self._epochs.end_erase(owner, epoch, receipt)
        return receipt

    def _apply(self, keys: list[str], scopes: set[str], epoch: int) -> dict[str, Any]:
        self._fence += 1
        gone = self._book.erase(keys, scopes)
        erased = self._ranks.erase(sorted({*keys, *gone}), sorted(scopes), self._fence)
        return {"epoch": epoch, "records": len(gone), "erased": erased, "ranks": len(self._ranks)}
