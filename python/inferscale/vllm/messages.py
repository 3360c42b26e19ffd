"""What the scheduler tells the workers in a step, and what they answer. Pickled between processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)


class LoadItem(NamedTuple):
    """A record that was matched, and the position of its first token."""

    key: str
    scope_hash: str
    context_id: str | None
    tokens: np.ndarray  # int32
    begin: int


@dataclass(frozen=True)
class LoadJob:
    """Tokens ``[begin, end)`` of a request come from ``items``, which cover at least those."""

    request_id: str
    begin: int
    end: int
    first_block: int  # index in the prompt of block_ids[0]
    block_ids: list[int]
    items: list[LoadItem]


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


@dataclass
class StepMetadata(KVConnectorMetadata):
    """One step's work; empty in most."""

    loads: list[LoadJob] = field(default_factory=list)
    captures: list[CaptureJob] = field(default_factory=list)
    lost_blocks: list[int] = field(default_factory=list)  # promised to be loaded, but not planned


@dataclass
class WorkerAcks(KVConnectorWorkerMetadata):
    """What the ranks did. Lists of all ranks are joined.

    What a step's captures came to is known only when their bytes have left the device, and the step
    does not wait for that: ``later`` are calls that wait and add what they know. Whoever reads the
    lists calls ``settle`` first; pickling does.
    """

    captured: list[tuple[int, str]] = field(default_factory=list)  # rank, key
    refused: list[tuple[int, str, str]] = field(default_factory=list)  # rank, key, reason
    lost: list[tuple[int, str]] = field(default_factory=list)  # rank, key: no longer there
    failed_loads: list[tuple[int, str, str]] = field(default_factory=list)  # rank, request, reason
    later: list[Callable[["WorkerAcks"], None]] = field(default_factory=list, repr=False)

    def settle(self) -> "WorkerAcks":
        """Waits until everything is known. The calls raise nothing."""
        waiting, self.later = self.later, []
        for add in waiting:
            add(self)
        return self

    def __getstate__(self) -> dict[str, Any]:
        return dict(vars(self.settle()))

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        if not isinstance(other, WorkerAcks):
            return self
        self.settle()
        other.settle()
        self.captured += other.captured
        self.refused += other.refused
        self.lost += other.lost
        self.failed_loads += other.failed_loads
        return self

    def empty(self) -> bool:
        return not (
            self.captured or self.refused or self.lost or self.failed_loads or self.later
        )
