"""Time to first token through vLLM with the connector, as text and injected; JSON on the standard output.

  ./run wheel && PYTHONPATH=build/site VENV/bin/python bench/python/vllm_ttft.py --model FOLDER [--facts 0,10,50] [--runs 7]

VENV and FOLDER are what `./run test-vllm` makes. One engine in this process, f32, without compilation; facts of 20 random
tokens, encoded one by one behind the header. Requests of one token, in turn none (the question alone), text and injected, each
in a cache namespace of its own, so that nothing comes from the prefix cache. `plan_ms`: matching and metadata, on the
scheduler's side. `load_ms`: composing and writing on the worker's. `memcpy_ms`: numpy copies as many bytes.
"""
import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "vllm"))
from harness import Client, Engine, capture, encode_fact  # noqa: E402

FACT, HEADER, QUESTION = 20, 14, 19


class Clock:
    """Adds up the time that some methods take."""

    def __init__(self, owner, names):
        self.ms = 0.0
        for name in names:
            setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, method):
        def call(*arguments):
            begin = time.perf_counter()
            try:
                return method(*arguments)
            finally:
                self.ms += 1e3 * (time.perf_counter() - begin)

        return call

    def take(self):
        ms, self.ms = self.ms, 0.0
        return ms


def summary(values):
    return {"median": round(statistics.median(values), 2), "min": round(min(values), 2), "max": round(max(values), 2)}


def memcpy_ms(engine, tokens):
    shape = engine.worker._shape
    size = (2, shape["n_layers"], max(1, tokens), shape["n_kv_heads"], shape["head_dim_k"])
    source, target = np.ones(size, np.float32), np.zeros(size, np.float32)
    times = []
    for _ in range(9):
        begin = time.perf_counter()
        np.copyto(target, source)
        times.append(1e3 * (time.perf_counter() - begin))
    return summary(times)


def measure(engine, client, header, context, facts, keys, count, runs):
    draw = random.Random(count)
    plan = Clock(engine.side, ["on_new_request", "matched_tokens", "allocated", "build_meta"])
    load = Clock(engine.worker, ["load"])
    times = {name: [] for name in ("none", "text", "inject")}
    plans, loads = [], []
    for number in range(runs + 1):  # the first warms up
        question = [draw.randrange(100, 40000) for _ in range(QUESTION)]
        prompt = header + [t for fact in facts[:count] for t in fact] + question
        salt = f"{count}-{number}"
        arms = {
            "none": (header + question, client.request("text", client_salt=salt + "n")),
            "text": (prompt, client.request("text", client_salt=salt)),
            "inject": (prompt, client.request(inject=[context, *keys[:count]], client_salt=salt)),
        }
        for name, (ids, request) in arms.items():
            plan.take(), load.take()
            begin = time.perf_counter()
            answer = engine.one(ids, request, max_tokens=1)
            elapsed = 1e3 * (time.perf_counter() - begin)
            if number:
                times[name].append(elapsed)
            if number and name == "inject":
                assert answer.injected == len(prompt) - QUESTION, answer.reply
                plans.append(plan.take())
                loads.append(load.take())
    return {
        "facts": count, "prompt_tokens": len(prompt), "injected_tokens": len(prompt) - QUESTION,
        "ttft_ms": {name: summary(values) for name, values in times.items()},
        "plan_ms": summary(plans), "load_ms": summary(loads),
        "memcpy_ms": memcpy_ms(engine, len(prompt) - QUESTION),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--facts", default="0,10,50")
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    counts = [int(count) for count in options.facts.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(options.model, Path(folder), max_model_len=2048, max_num_batched_tokens=2048)
        client = Client.of(engine)
        draw = random.Random(1)
        header = [draw.randrange(100, 40000) for _ in range(HEADER)]
        facts = [[draw.randrange(100, 40000) for _ in range(FACT)] for _ in range(max(counts))]
        context = client.range(header, 0, HEADER)
        capture(engine, client, header + [5], [context])
        keys = [encode_fact(engine, client, header, fact) for fact in facts]
        import torch
        import vllm

        report = {
            "vllm": vllm.__version__, "torch": torch.__version__, "threads": torch.get_num_threads(),
            "model": Path(options.model).name, "runs": options.runs,
            "results": [
                measure(engine, client, header, context["key"], facts, keys, count, options.runs)
                for count in counts
            ],
        }
        engine.close()
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
