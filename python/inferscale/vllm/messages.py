"""What the scheduler tells the workers in a step, and what they answer. Pickled between processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from inferscale import _core


class LoadItem(NamedTuple):
    """A record that was matched, and the position of its first token; as RecordStore.prepare takes it."""

    key: str
    scope_hash: str
    context_id: str | None
    tokens: np.ndarray  # int32
    begin: int


@dataclass(frozen=True)
class LoadJob:
    """Tokens ``[begin, end)`` of a request come from the records of ``plan``, which cover at least those."""

    request_id: str
    begin: int
    end: int
    first_block: int  # index in the prompt of block_ids[0]
    block_ids: list[int]
    plan: bytes  # of the core's Match
    tokens: np.ndarray  # int32: the ids of the records, one after the other

    def items(self) -> list[LoadItem]:
        """The records one by one."""
        return [LoadItem(*item) for item in _core.load_items(self.plan, self.tokens)]


@dataclass(frozen=True)
class CaptureJob:
    """After this step's forward pass, the rows of ``tokens``, which begin at ``begin``, are stored."""

    request_id: str
    key: str
    begin: int
    tokens: np.ndarray  # int32
    first_block: int
    block_ids: list[int]
    meta: dict[str, Any]  # as RecordStore.capture takes it
    fence: int  # erasures with a higher number were not known when this was planned
    number: int = 0  # of this capture: a key may be captured again


class CaptureResult(NamedTuple):
    """What became of a capture on a rank."""

    rank: int
    number: int
    key: str
    reason: str | None = None  # why it was not stored; None: it was


@dataclass
class StepMetadata(KVConnectorMetadata):
    """One step's work; empty in most."""

    loads: list[LoadJob] = field(default_factory=list)
    captures: list[CaptureJob] = field(default_factory=list)
    lost_blocks: list[int] = field(default_factory=list)  # promised to be loaded, but not planned


@dataclass
class WorkerAcks(KVConnectorWorkerMetadata):
    """What the ranks did in a step. Lists of all ranks are joined. What became of captures whose bytes
    were still on their way is not among it: the rank channel tells that when it is known."""

    captured: list[CaptureResult] = field(default_factory=list)
    lost: list[tuple[int, str]] = field(default_factory=list)  # rank, key: no longer there
    failed_loads: list[tuple[int, str, str]] = field(default_factory=list)  # rank, request, reason

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        if not isinstance(other, WorkerAcks):
            return self
        self.captured += other.captured
        self.lost += other.lost
        self.failed_loads += other.failed_loads
        return self

    def empty(self) -> bool:
        return not (self.captured or self.lost or self.failed_loads)
