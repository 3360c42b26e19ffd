"""How fast records get into an engine's arrays, against copying as many bytes: JSON on the standard output.

  ./run wheel && PYTHONPATH=build/site PYTHON bench/python/compose_bench.py [--tokens 1014] [--runs 40] [--threads 2]

SmolLM2-135M's shape in f32: 30 layers of 3 heads of 64 elements, records of 26 tokens. `memcpy`: numpy copies the same bytes
between arrays of the same sizes, on one thread. `prepare` looks records up, verifies their checksums and leases them; `compose`
rotates and writes them into such arrays, `place` into a cache of the same element type in vLLM's CPU layout: in a block of 128
tokens and a head keys [dim][token], then values [token][dim].
"""
import argparse
import json
import statistics
import time

import numpy as np

from inferscale import _core

LAYERS, HEADS, DIM, FACT, BLOCK = 30, 3, 64, 26, 128
NOBODY = "00" * 16


def milliseconds(call, runs):
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - begin))
    return {"median_ms": round(statistics.median(times), 2), "best_ms": round(min(times), 2)}


def filled_store(codec, k, v, threads):
    """A store in memory, and the items that fill all rows."""
    rope = {"pairing": "halves", "scaling": "none", "freq_base": 100000.0, "rotary_dim": DIM}
    spec = _core.ModelSpec.from_dict({
        "architecture": "llama", "trained_positions": 8192, "vocab_size": 49152, "fingerprint": NOBODY, "rope": rope,
        "shape": {"n_layers": LAYERS, "n_kv_heads": HEADS, "head_dim_k": DIM, "head_dim_v": DIM}})
    store = _core.RecordStore("", 1 << 30, 0, spec, codec, 0, 1, 8192, threads)
    items = []
    for number, begin in enumerate(range(0, k.shape[1], FACT)):
        rows = slice(begin, begin + FACT)
        tokens = np.arange(k.shape[1], dtype=np.int32)[rows]
        meta = {"key": f"{number:032x}", "scope_hash": NOBODY, "context_id": NOBODY, "context_kind": "window",
                "context_tokens": 200}
        store.capture(meta, tokens, begin, k[:, rows], v[:, rows])
        items.append((meta["key"], NOBODY, None, tokens, begin))
    return store, items


def engine_cache(tokens, dtype):
    blocks = tokens // BLOCK + 2
    memory = np.zeros((LAYERS, blocks, HEADS, 2, BLOCK * DIM), dtype)
    k = memory[:, :, :, 0].reshape(LAYERS, blocks, HEADS, DIM, BLOCK, copy=False).transpose(0, 1, 4, 2, 3)
    v = memory[:, :, :, 1].reshape(LAYERS, blocks, HEADS, BLOCK, DIM, copy=False).transpose(0, 1, 3, 2, 4)
    return _core.EngineCache(list(zip(k, v)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1014)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    draw = np.random.default_rng(1)
    source = [draw.standard_normal((LAYERS, options.tokens, HEADS, DIM), np.float32) for _ in range(2)]
    target = [np.zeros_like(array) for array in source]

    def copy():
        for to, array in zip(target, source):
            np.copyto(to, array)

    results = {"tokens": options.tokens, "threads": options.threads, "bytes": 2 * source[0].nbytes,
               "memcpy": milliseconds(copy, options.runs)}
    slots = np.arange(14, 14 + options.tokens, dtype=np.uint32)
    for codec, dtype in (("f32", np.float32), ("f16", np.float16)):
        store, items = filled_store(codec, *source, options.threads)
        loaded = store.prepare(items)
        cache = engine_cache(options.tokens, dtype)
        timed = {"prepare": milliseconds(lambda: store.prepare(items), options.runs),
                 "compose": milliseconds(lambda: store.compose(loaded, *target), options.runs),
                 "place": milliseconds(lambda: store.place([(loaded, 0, slots)], cache), options.runs)}
        best = timed["compose"]["best_ms"]
        timed["of_memcpy"] = round(results["memcpy"]["best_ms"] / best, 2)
        timed["of_memcpy_with_prepare"] = round(results["memcpy"]["best_ms"] / (best + timed["prepare"]["best_ms"]), 2)
        share = 1 if codec == "f32" else 2  # as many bytes as the cache takes
        both = timed["place"]["best_ms"] + timed["prepare"]["best_ms"]
        timed["place_of_memcpy"] = round(results["memcpy"]["best_ms"] / share / timed["place"]["best_ms"], 2)
        timed["place_of_memcpy_with_prepare"] = round(results["memcpy"]["best_ms"] / share / both, 2)
        results[codec] = timed
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
