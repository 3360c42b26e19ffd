"""Reads the records of earlier runs once, before they are injected: a start reads headers and token ids alone."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from inferscale.vllm.ranks import Ranks
from inferscale.vllm.records import RecordBook

logger = logging.getLogger("vllm.inferscale")

READY_SECONDS = 1.0  # how long who asks what is ready waits for what has not been read yet

_BATCH_BYTES = 8 << 20  # of a rank's records in one call, behind which nobody waits long
_BATCH_RECORDS = 1000
_CLOSE_SECONDS = 5.0
_MAX_PAUSE_SECONDS = 3600.0
_SILENT_SECONDS = 1.0  # between two calls to a rank that does not answer


class Verification:
    """A thread that has the ranks read what ``book`` found, in the order in which it was found but what is
    asked for first; no faster than ``rate`` bytes a second of each rank, at 0 only what is asked for. Thread-safe.

    What is sound can be matched from then on; what is damaged the rank has dropped, and ``count`` is told.
    """

    def __init__(
        self, book: RecordBook, ranks: Ranks, token_bytes: int, rate: int, count: Callable[[str, int], None]
    ) -> None:
        """``ranks`` is closed with this. ``token_bytes``: of one token's keys and values on a rank."""
        self._book, self._ranks, self._count = book, ranks, count
        self._token_bytes, self._rate = token_bytes, rate
        self._changed = threading.Condition()
        self._wanted: dict[str, None] = {}  # asked for, in that order
        self._reading: set[str] = set()  # whose outcome is not yet told
        self._stop = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._book.has_unverified:
            self._thread = threading.Thread(target=self._run, name="inferscale-verify", daemon=True)
            self._thread.start()

    def hurry(self, keys: list[str] | None) -> None:
        """These first, or all. Does not wait."""
        waiting = self._book.unverified_keys(keys)
        if waiting:
            with self._changed:
                self._wanted |= dict.fromkeys(waiting)
                self._changed.notify_all()

    def wait(self, keys: list[str] | None = None, timeout: float | None = None) -> None:
        """Waits until these, or all, have been read; at most ``timeout`` seconds, or until ``close``."""
        if self._thread is None or not self._thread.is_alive():
            return
        self.hurry(keys)
        with self._changed:
            self._changed.wait_for(lambda: self._stop or self._told(keys), timeout)

    def _told(self, keys: list[str] | None) -> bool:
        if keys is None:
            return not self._reading and not self._book.has_unverified
        return self._reading.isdisjoint(keys) and not self._book.unverified_keys(keys)

    def close(self) -> None:
        """Ends the thread, behind the batch that is being read."""
        with self._changed:
            self._stop = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)
        self._ranks.close()

    def _run(self) -> None:
        while True:
            batch = self._next()
            if batch is None:
                return
            begun = time.monotonic()
            failed = False
            try:
                self._verify(batch)
            except Exception as error:  # a silent rank, as a rule: until it answers they are text
                logger.warning("InferScale: records were not verified: %s", error)
                failed = True
            with self._changed:
                if not failed:  # what was asked for need not be passed over again at each batch
                    for key in self._reading:
                        self._wanted.pop(key, None)
                self._reading.clear()
                self._changed.notify_all()
            if failed:
                self._pause(_SILENT_SECONDS, and_ask=False)
            elif self._rate:
                size = sum(tokens for _, _, tokens in batch) * self._token_bytes
                self._pause(size / self._rate - (time.monotonic() - begun))

    def _next(self) -> list[tuple[str, list[int], int]] | None:
        """What is read now: some of what is asked for, else of all. None: nothing is left, or it is over."""
        with self._changed:
            while not self._stop and self._book.has_unverified:
                found = self._book.unverified(_BATCH_RECORDS, self._wanted)
                if not found:  # all read, erased or captured meanwhile
                    self._wanted.clear()
                    if self._rate:
                        found = self._book.unverified(_BATCH_RECORDS)
                if found:
                    batch = self._some(found)
                    self._reading = {key for key, _, _ in batch}
                    return batch
                self._changed.notify_all()
                self._changed.wait()
            self._changed.notify_all()
        return None

    def _some(self, found: list[tuple[str, list[int], int]]) -> list[tuple[str, list[int], int]]:
        size, end = 0, 0
        while end < len(found) and (end == 0 or size < _BATCH_BYTES):
            size += found[end][2] * self._token_bytes
            end += 1
        return found[:end]

    def _verify(self, batch: list[tuple[str, list[int], int]]) -> None:
        """Raises RankError."""
        damaged: set[str] = set()
        for rank in range(len(self._ranks)):
            keys = [key for key, ranks, _ in batch if rank in ranks]
            answer = self._ranks.check(rank, keys) if keys else {"sound": [], "corrupt": []}
            sound, corrupt = set(answer["sound"]), set(answer["corrupt"])
            for key in keys:
                if key in sound:
                    self._book.sound(rank, key)
                elif self._book.unsound(rank, key) and key in corrupt:
                    damaged.add(key)
        if damaged:
            self._count("damaged_records", len(damaged))
            logger.warning("InferScale: %d records were damaged and are dropped", len(damaged))

    def _pause(self, seconds: float, and_ask: bool = True) -> None:
        """Until ``seconds`` are over, ``close`` or, where ``and_ask``, something is asked for."""
        with self._changed:
            asked = lambda: and_ask and self._book.unverified_keys(list(self._wanted))
            self._changed.wait_for(lambda: self._stop or asked(), min(max(0.0, seconds), _MAX_PAUSE_SECONDS))
