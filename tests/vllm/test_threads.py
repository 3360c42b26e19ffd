"""Whose threads a large load runs on."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
import torch  # noqa: F401: it loads an OpenMP runtime
from harness import ALICE
from inferscale import _core
from inferscale.vllm import worker

HEADS, DIM = 3, 8


def spec(layers):
    return _core.ModelSpec.from_dict({
        "architecture": "llama", "trained_positions": 512, "vocab_size": 10, "fingerprint": "00" * 16,
        "shape": {"n_layers": layers, "n_kv_heads": HEADS, "head_dim_k": DIM, "head_dim_v": DIM},
        "rope": {"pairing": "halves", "scaling": "none", "freq_base": 10000.0, "rotary_dim": DIM},
    })


@pytest.fixture
def bound():
    """This thread is kept to one processor and another of the process to a second, as an engine does it."""
    own = os.sched_getaffinity(0)
    if len(own) < 2:
        pytest.skip("one processor alone")
    first, second = sorted(own)[:2]
    bound, end = threading.Event(), threading.Event()

    def other():
        os.sched_setaffinity(0, {second})
        bound.set()
        end.wait()

    thread = threading.Thread(target=other)
    thread.start()
    assert bound.wait(60)
    os.sched_setaffinity(0, {first})
    yield own, first, second
    os.sched_setaffinity(0, own)
    end.set()
    thread.join()


def test_threads_of_ours_run_on_every_processor_that_the_process_uses_and_on_no_other(bound):
    own, first, second = bound
    seen = {}

    def look(name):
        thread = threading.Thread(target=lambda: seen.update({name: os.sched_getaffinity(0)}))
        thread.start()
        thread.join()

    look("before")
    with worker._on_all_processors() as processors:
        look("meanwhile")
        assert processors == len(seen["meanwhile"])
    look("behind")
    assert seen["before"] == seen["behind"] == os.sched_getaffinity(0) == {first}, "the engine's thread stays where it was"
    assert {first, second} <= seen["meanwhile"] <= own


def test_large_loads_run_on_the_threads_of_the_engines_openmp():
    assert _core.has_openmp(), "torch has loaded one"
    layers, tokens = 64, np.arange(256, dtype=np.int32)
    draw = np.random.default_rng(1)
    keys, values = (draw.normal(size=(layers, 256, HEADS, DIM)).astype(np.float32) for _ in range(2))
    scope, context, secret = _core.scope_hash(ALICE), "00" * 16, b"s" * 32
    key = _core.record_key(secret, ALICE, "00" * 16, context, "prefix", tokens)
    meta = {"key": key, "scope_hash": scope, "context_id": context, "context_kind": "prefix", "context_tokens": 0}
    composed = []
    for threads, openmp, made in ((1, False, 0), (4, False, 3), (4, True, 0)):
        before = set(os.listdir("/proc/self/task"))
        store = _core.RecordStore("", 1 << 26, 0, spec(layers), "f32", 0, 1, 512, threads, openmp=openmp)
        assert len(set(os.listdir("/proc/self/task")) - before) == made
        store.capture(meta, tokens, 0, keys, values)
        composed.append((np.zeros_like(keys), np.zeros_like(values)))
        store.compose([(key, scope, None, tokens, 100)], *composed[-1])
        store.close()
    assert composed[0][0].any()
    for k, v in composed[1:]:
        assert np.array_equal(k, composed[0][0]) and np.array_equal(v, composed[0][1])
