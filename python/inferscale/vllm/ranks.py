"""All ranks' stores as one: every operation reaches each rank, or says that it did not."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from inferscale.vllm.messages import CaptureResult
from inferscale.vllm.rank_channel import RankClient, RankError, socket_path

logger = logging.getLogger("vllm.inferscale")

_WAIT_S = 20.0  # of a rank that has nothing to tell
_PAUSE_S = 1.0  # before a rank is asked again that did not answer
_PAGE = 1000  # records in an answer
_ERASE_PAGE = 20000  # keys in a call


class Ranks:
    """Thread-safe. Every method raises RankError when a rank does not answer."""

    def __init__(self, data_dir: Path, token: str, count: int) -> None:
        self._data_dir, self._token = data_dir, token
        self._paths = [socket_path(data_dir, rank) for rank in range(count)]
        self._clients = [RankClient(path, token) for path in self._paths]
        self._closed = threading.Event()

    def __len__(self) -> int:
        return len(self._clients)

    def another(self) -> "Ranks":
        """The same ranks over connections of its own: calls over these do not wait for calls over those."""
        return Ranks(self._data_dir, self._token, len(self))

    def hello(self) -> list[dict[str, Any]]:
        """What each rank says of itself: {"ok", "reason", "fingerprint", ...}."""
        return [client.call("hello") for client in self._clients]

    def records(self, rank: int) -> Iterator[dict[str, Any]]:
        """{"key", "scope", "kind", "context_id", "tokens"} of every record of a rank."""
        offset = 0
        while page := self._clients[rank].call("records", offset=offset, limit=_PAGE):
            yield from page
            offset += len(page)

    def erase(self, keys: list[str], scopes: list[str], fence: int) -> dict[str, int]:
        """Erases records by key and by scope hash, durably. Counts are sums over the ranks."""
        total = {"gpu": 0, "pinned": 0, "host": 0, "disk": 0, "leased": 0}
        pages = [keys[at : at + _ERASE_PAGE] for at in range(0, len(keys), _ERASE_PAGE)] or [[]]
        for client in self._clients:
            for number, page in enumerate(pages):
                hashes = scopes if number == 0 else []
                counts = client.call("erase", keys=page, scopes=hashes, fence=fence)
                for tier in total:
                    total[tier] += counts.get(tier, 0)
        return total

    def check(self, rank: int, keys: list[str]) -> dict[str, list[str]]:
        """A rank reads records: which are ``sound``, and which were damaged (``corrupt``) and are dropped."""
        return self._clients[rank].call("check", keys=keys)

    def each(self, op: str) -> list[Any]:
        """The answers of all ranks to a call without arguments."""
        return [client.call(op) for client in self._clients]

    def follow(self, told: Callable[[int, list[CaptureResult], list[str]], None]) -> None:
        """From now on calls ``told`` with the rank, captures that it has finished behind their step, and
        keys of records that it no longer has: from a thread for each rank, whatever the engine does."""
        for rank, path in enumerate(self._paths):
            arguments = (rank, RankClient(path, self._token), told)
            threading.Thread(target=self._follow, args=arguments, name="inferscale-told", daemon=True).start()

    def _follow(self, rank: int, client: RankClient, told: Callable[..., None]) -> None:
        last = 0
        while not self._closed.is_set():
            try:
                answer = client.call("captured", after=last, wait_s=_WAIT_S)
            except RankError as error:
                logger.debug("InferScale: rank %d: %s", rank, error)
                self._closed.wait(_PAUSE_S)
                continue
            last = answer["last"]
            try:
                for captured, lost in answer["entries"]:
                    told(rank, [CaptureResult(*result) for result in captured], lost)
            except Exception as error:
                logger.error("InferScale: rank %d: %s", rank, error, exc_info=error)
        client.close()

    def close(self) -> None:
        self._closed.set()
        for client in self._clients:
            client.close()
