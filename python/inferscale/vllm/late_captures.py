"""Captures whose bytes are still on their way from the device when their step is over."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import Any

import numpy as np

from inferscale.vllm import probe
from inferscale.vllm.host_path import capture_failure
from inferscale.vllm.messages import CaptureJob, CaptureResult
from inferscale.vllm.store import RankRecords

logger = logging.getLogger("vllm.inferscale")


class Outbox:
    """What became of captures, until the scheduler's side has it. Thread-safe.

    Entries are numbered, so that an answer that was lost on its way is given once more: what
    ``take`` was not told to be known stays.
    """

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._entries: deque[tuple[int, list[CaptureResult], list[str]]] = deque()
        self._last = 0
        self._closed = False

    def put(self, captured: list[CaptureResult], lost: list[str]) -> None:
        """``lost``: keys of records that were here and no longer are, also of captured ones."""
        with self._change:
            self._last += 1
            self._entries.append((self._last, captured, lost))
            self._change.notify_all()

    def take(self, after: int, wait_s: float) -> dict[str, Any]:
        """What came after entry number ``after``: {"last", "entries": [[captured, lost], ...]} in order.
        Waits, at most so long, when there is nothing."""
        with self._change:
            while self._entries and self._entries[0][0] <= after:
                self._entries.popleft()
            self._change.wait_for(lambda: self._entries or self._closed, wait_s)
            entries = [[captured, lost] for _, captured, lost in self._entries]
            last = self._entries[-1][0] if self._entries else after
        return {"last": last, "entries": entries}

    def close(self) -> None:
        """Whoever waits goes on, and nobody waits any more."""
        with self._change:
            self._closed = True
            self._change.notify_all()


class LateCaptures:
    """Waits for the bytes, checks and stores the records, and puts into the outbox what came of it, all
    on a thread of its own. Batches are finished in the order in which they were added, and a batch's
    memory is free again before its captures are told. Thread-safe."""

    def __init__(
        self, records: RankRecords, repeated: probe.RepeatedTokens, rank: int, outbox: Outbox
    ) -> None:
        self._records = records
        self._repeated = repeated
        self._rank = rank
        self._outbox = outbox
        self._change = threading.Condition()
        self._waiting: deque[tuple[list[CaptureJob], Any]] = deque()
        self._added = self._finished = 0  # batches
        self._closed = self._dropping = False
        self._thread = threading.Thread(target=self._run, name="inferscale-device", daemon=True)
        self._thread.start()

    def add(self, jobs: list[CaptureJob], batch: Any) -> None:
        """``batch``: the core's CapturedRows, a run for each job; this owns it now."""
        with self._change:
            self._waiting.append((jobs, batch))
            self._added += 1
            self._change.notify_all()

    def wait_for_one(self, until: float) -> bool:
        """Returns when a batch fewer is on its way; False when none was, or ``time.monotonic`` is there."""
        with self._change:
            before = self._finished
            if before == self._added:
                return False
            return self._change.wait_for(lambda: self._finished > before, max(0.0, until - time.monotonic()))

    def settle(self, timeout_s: float) -> None:
        """Returns when every batch that was added before is finished. Raises TimeoutError."""
        with self._change:
            added = self._added
            if not self._change.wait_for(lambda: self._finished >= added, timeout_s):
                raise TimeoutError("captures are still on their way from the device")

    def close(self, timeout_s: float) -> None:
        """What is finished in this time is stored, and of the rest nothing."""
        with self._change:
            self._closed = True
            self._change.notify_all()
            self._change.wait_for(lambda: self._finished == self._added, timeout_s)
            self._dropping = True
        self._thread.join(timeout_s)  # the record that is being stored is stored whole

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                jobs, batch = self._waiting.popleft()
            reasons = self._finish(jobs, batch)
            batch.release()
            self._tell(jobs, reasons)
            with self._change:
                self._finished += 1
                self._change.notify_all()

    def _finish(self, jobs: list[CaptureJob], batch: Any) -> list[str | None]:
        try:
            if not self._dropping:
                batch.wait()
        except Exception as error:
            return [capture_failure(job, error) for job in jobs]
        return [self._keep(job, batch, number) for number, job in enumerate(jobs)]

    def _keep(self, job: CaptureJob, batch: Any, number: int) -> str | None:
        if self._dropping:
            return "capture_failed"
        try:
            keys = np.frombuffer(batch.first_layer_keys(number), np.float32).reshape(len(job.tokens), -1)
            if not self._repeated.agree_plain(job.tokens, keys):
                return "capture_rotation"
            return self._records.keep(job.meta, job.fence, lambda: batch.store(number))
        except Exception as error:
            return capture_failure(job, error)

    def _tell(self, jobs: list[CaptureJob], reasons: list[str | None]) -> None:
        told = [CaptureResult(self._rank, job.number, job.key, reason) for job, reason in zip(jobs, reasons)]
        try:
            lost = self._records.evicted()
        except Exception as error:  # the store is closed
            logger.debug("InferScale: evicted records are not known: %s", error)
            lost = []
        self._outbox.put(told, lost)
