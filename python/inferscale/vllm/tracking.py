"""Requests that the scheduler side follows from their arrival to their end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from inferscale.vllm.records import RecordInfo
from inferscale.vllm.trace import Trace


@dataclass
class PlannedCapture:
    """A range of the prompt that is to be stored, checked and waiting for its rows."""

    key: str
    begin: int
    end: int
    info: RecordInfo
    context_tokens: int


@dataclass(frozen=True)
class CaptureUnderWay:
    """A capture that the ranks have been told of."""

    key: str
    tokens: int
    trace: Trace


@dataclass
class Tracked:
    """One engine request with InferScale's parameters. Used by the scheduler's thread alone."""

    request_id: str
    params: Any  # _core.RequestParams; None when they were refused
    owner: tuple[str, str]
    prompt: np.ndarray  # int32
    trace: Trace
    injects: bool = False
    match: Any = None  # _core.Match of the last query
    local_hit: int = 0  # tokens, at the last query
    blocks: list[int] = field(default_factory=list)  # ids, in the order of the prompt
    hashes: Any = ()  # the engine's block hashes of this request, growing
    loaded: tuple[int, int] = (0, 0)  # rows injected at the last admission
    unnoted: bool = False  # the block in which they end has no hash yet
    captures: list[PlannedCapture] = field(default_factory=list)
    reserved: bool = False  # room for all of them
    waiting_since: float = 0.0  # for that room; 0: it was not needed
    query_fallbacks: Counter[str] = field(default_factory=Counter)


    def capture_tokens(self) -> int:
        """Of the captures that are still to come."""
        return sum(plan.end - plan.begin for plan in self.captures)


class InjectedBlocks:
    """Which cached blocks hold injected rows, by block hash: a capture must not take those for
    computed ones. Forgets the oldest beyond its capacity, which is kept well above the number of
    blocks that the engine has. Used by the scheduler's thread alone."""

    def __init__(self, capacity: int) -> None:
        """``capacity``: of the newest so many are known, and up to as many again."""
        self._capacity = max(capacity, 1024)
        # hash -> rows of the block up to which some are injected. In two generations: to take the oldest out
        # one by one would cost every request with injection more than all else that is done here.
        self._ends: dict[Any, int] = {}
        self._older: dict[Any, int] = {}

    def __len__(self) -> int:
        return len(self._ends) + len(self._older)

    def note(self, hashes: list[Any], block_size: int, begin: int, end: int) -> None:
        """Tokens ``[begin, end)`` of a prompt with these block hashes come from records."""
        full = hashes[begin // block_size : end // block_size]
        self._ends.update(dict.fromkeys(full, block_size))
        if end % block_size and end // block_size < len(hashes):
            last = hashes[end // block_size]
            self._ends[last] = max(end % block_size, self._rows(last))
        if len(self._ends) > self._capacity:
            self._older, self._ends = self._ends, {}

    def touches(self, hashes: list[Any], block_size: int, begin: int, end: int) -> bool:
        """Whether tokens ``[begin, end)``, taken from the prefix cache, may hold injected rows."""
        for index in range(begin // block_size, min(-(-end // block_size), len(hashes))):
            rows = self._rows(hashes[index])
            if rows and begin < index * block_size + rows:
                self._ends[hashes[index]] = rows  # still in use
                return True
        return False

    def _rows(self, block: Any) -> int:
        return max(self._ends.get(block, 0), self._older.get(block, 0))
