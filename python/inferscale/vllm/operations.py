"""What the control channel's routes do."""

from __future__ import annotations

from typing import Any

from inferscale.vllm.control import Handler, NotFound, read_keys, read_scope, read_text
from inferscale.vllm.scheduler import SchedulerSide
from inferscale.vllm.verification import READY_SECONDS

_MAX_EPOCH = (1 << 53) - 1  # exact in every JSON reader


class Operations:
    """Bound to one engine. ``side`` is None when there is no injection: then only ``info`` answers
    usefully, and erasing fails, since what lies on disk cannot be reached. Thread-safe."""

    def __init__(self, info: dict[str, Any], side: SchedulerSide | None) -> None:
        self._info = info
        self._side = side

    def routes(self) -> dict[str, Handler]:
        return {
            "GET /v1/info": self.info,
            "POST /v1/ready": self.ready,
            "POST /v1/erase": self.erase,
            "GET /v1/trace": self.trace,
            "GET /v1/stats": self.stats,
            "POST /v1/verify": self.verify,
        }

    def _require(self) -> SchedulerSide:
        if self._side is None:
            from inferscale.vllm.rank_channel import RankError

            raise RankError(f"injection is off: {self._info.get('reason', '')}")
        return self._side

    def info(self, _: dict[str, Any]) -> dict[str, Any]:
        if self._side is None or not self._side.stopped:
            return self._info
        return self._info | {"injection": False, "reason": self._side.stopped}

    def ready(self, body: dict[str, Any]) -> dict[str, Any]:
        side = self._require()
        owner = (read_text(body, "tenant"), read_text(body, "user"))
        keys = read_keys(body)
        side.verification.wait(keys, READY_SECONDS)
        return {"epoch": side.epochs.epoch(owner) or 0, "ready": [side.book.ready(k) for k in keys]}

    def erase(self, body: dict[str, Any]) -> dict[str, Any]:
        side = self._require()
        unknown = set(body) - {"tenant", "user", "epoch", "keys", "all", "scope"}
        if unknown:
            raise ValueError(f"{sorted(unknown)[0]}: unknown field")
        owner = (read_text(body, "tenant"), read_text(body, "user"))
        if not owner[1]:
            if set(body) & {"epoch", "all", "scope"}:
                raise ValueError("records without a user are erased by keys alone")
            return side.eraser.erase_shared(read_keys(body))
        epoch = body.get("epoch")
        if not isinstance(epoch, int) or isinstance(epoch, bool) or not 0 < epoch <= _MAX_EPOCH:
            raise ValueError(f"epoch: must be a number from 1 to {_MAX_EPOCH}")
        return side.eraser.erase(owner, epoch, _what(body, owner))

    def trace(self, arguments: dict[str, Any]) -> dict[str, Any]:
        name = arguments.get("request", "")
        found = self._require().traces.find(name)
        if found is None:
            raise NotFound(f"no trace of request {name!r}")
        return found.to_json()

    def stats(self, _: dict[str, Any]) -> dict[str, Any]:
        """Counters since the start, records that are ready, and each rank's store."""
        side = self._require()
        return {
            "counters": side.totals(),
            "records": side.book.count(),
            "unverified": len(side.book.unverified_keys()),
            "ranks": side.ranks.each("stats"),
        }

    def verify(self, _: dict[str, Any]) -> dict[str, Any]:
        """Reads every record on every rank; damaged ones are dropped."""
        side = self._require()
        side.verification.wait()
        answers = side.ranks.each("verify")
        for rank, answer in enumerate(answers):
            for key in answer.get("corrupt", []):
                side.book.lost(rank, key)
        return {"ranks": answers}


def _what(body: dict[str, Any], owner: tuple[str, str]) -> dict[str, Any]:
    given = [name for name in ("keys", "all", "scope") if name in body]
    if len(given) != 1:
        raise ValueError("give one of keys, all and scope")
    if given == ["all"]:
        if body["all"] is not True:
            raise ValueError("all: must be true")
        return {"all": True}
    if given == ["scope"]:
        scope = read_scope(body["scope"])
        if (scope["tenant"], scope["user"]) != owner:
            raise ValueError("scope: must be of the same tenant and user")
        return {"scope": scope}
    return {"keys": read_keys(body)}
