"""How fast records get into an engine's arrays, against copying as many bytes: JSON on the standard output.

  ./run wheel && PYTHONPATH=build/site PYTHON bench/python/compose_bench.py [--tokens 1014] [--runs 40]

SmolLM2-135M's shape in f32: 30 layers of 3 heads of 64 elements, records of 26 tokens. `memcpy`: numpy copies the same bytes
between arrays of the same sizes. `prepare` looks records up, verifies their checksums and leases them; `compose` rotates and
writes them. One thread.
"""
import argparse
import json
import statistics
import time

import numpy as np

from inferscale import _core

LAYERS, HEADS, DIM, FACT = 30, 3, 64, 26
NOBODY = "00" * 16


def milliseconds(call, runs):
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - begin))
    return {"median_ms": round(statistics.median(times), 2), "best_ms": round(min(times), 2)}


def filled_store(codec, k, v):
    """A store in memory, and the items that fill all rows."""
    rope = {"pairing": "halves", "scaling": "none", "freq_base": 100000.0, "rotary_dim": DIM}
    spec = _core.ModelSpec.from_dict({
        "architecture": "llama", "trained_positions": 8192, "vocab_size": 49152, "fingerprint": NOBODY, "rope": rope,
        "shape": {"n_layers": LAYERS, "n_kv_heads": HEADS, "head_dim_k": DIM, "head_dim_v": DIM}})
    store = _core.RecordStore("", 1 << 30, 0, spec, codec, 0, 1, 8192)
    items = []
    for number, begin in enumerate(range(0, k.shape[1], FACT)):
        rows = slice(begin, begin + FACT)
        tokens = np.arange(k.shape[1], dtype=np.int32)[rows]
        meta = {"key": f"{number:032x}", "scope_hash": NOBODY, "context_id": NOBODY, "context_kind": "window",
                "context_tokens": 200}
        store.capture(meta, tokens, begin, k[:, rows], v[:, rows])
        items.append((meta["key"], NOBODY, None, tokens, begin))
    return store, items


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1014)
    parser.add_argument("--runs", type=int, default=40)
    options = parser.parse_args()
    draw = np.random.default_rng(1)
    source = [draw.standard_normal((LAYERS, options.tokens, HEADS, DIM), np.float32) for _ in range(2)]
    target = [np.zeros_like(array) for array in source]

    def copy():
        for to, array in zip(target, source):
            np.copyto(to, array)

    results = {"tokens": options.tokens, "bytes": 2 * source[0].nbytes, "memcpy": milliseconds(copy, options.runs)}
    for codec in ("f32", "f16"):
        store, items = filled_store(codec, *source)
        loaded = store.prepare(items)
        timed = {"prepare": milliseconds(lambda: store.prepare(items), options.runs),
                 "compose": milliseconds(lambda: store.compose(loaded, *target), options.runs)}
        best = timed["compose"]["best_ms"]
        timed["of_memcpy"] = round(results["memcpy"]["best_ms"] / best, 2)
        timed["of_memcpy_with_prepare"] = round(results["memcpy"]["best_ms"] / (best + timed["prepare"]["best_ms"]), 2)
        results[codec] = timed
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
