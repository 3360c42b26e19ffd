"""What the connector's own code costs a request on the engine's threads, without an engine: JSON on the standard output.

  ./run wheel && PYTHONPATH=build/site PYTHON bench/python/vllm_hooks.py [--facts 50] [--runs 400] [--baseline FILE]

PYTHON has vLLM. A request names a header and facts of 28 tokens; every hook of the scheduler's side that it meets is timed, the
pickling of its step's metadata (which travels to workers in other processes), and a load by the device path. The device is
plain memory and the model as small as can be, so that a load is the bookkeeping and not the copying. `--baseline`: an
output of another state of the code, of which the ratios are of; the sum is of what a request waits for.
"""
from __future__ import annotations

import argparse
import json
import pickle
import statistics
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from inferscale import _core
from inferscale.vllm.device_path import DevicePath
from inferscale.vllm.late_captures import Outbox
from inferscale.vllm.messages import StepMetadata
from inferscale.vllm.records import RecordInfo
from inferscale.vllm.scheduler import SchedulerSide
from inferscale.vllm.settings import load_settings
from inferscale.vllm.store import RankRecords

HEADER, FACT, QUESTION, BLOCK, BLOCKS, DIM = 45, 28, 20, 16, 400, 2
SCOPE = {"tenant": "acme", "user": "alice", "agent": "", "run": ""}
NOBODY = "00" * 16
HOOKS = ("on_new_request", "matched_tokens", "allocated", "build_meta", "load")  # until the first token


class NoRanks:
    """As Ranks, of one rank that has nothing and hears of nothing."""

    def __len__(self):
        return 1

    def another(self):
        return self

    def records(self, rank):
        return iter(())

    def follow(self, told):
        pass


class Adapter:
    def scheduled_requests(self, output):
        return ()

    def resalt(self, request, salt):
        raise AssertionError("the salt is right")


class Parts:
    """Both sides of a connector, and the records of a header and ``facts`` facts."""

    def __init__(self, folder: Path, facts: int) -> None:
        self.settings = load_settings({"data_dir": str(folder)})
        self.secret = self.settings.secret
        self.side = SchedulerSide(
            self.settings, Adapter(), NOBODY, BLOCK, BLOCKS, NoRanks(), injecting=True,
            load_tokens=1 << 20, capture_tokens=0, token_bytes=4 * DIM,
        )
        self.side.epochs.start(("acme", "alice"), 1)
        self.side.epochs.learn_scope(SCOPE)
        self.side.book.learn_scope(SCOPE)
        rope = {"pairing": "halves", "scaling": "none", "freq_base": 10000.0, "rotary_dim": DIM}
        spec = _core.ModelSpec.from_dict({
            "architecture": "llama", "trained_positions": 8192, "vocab_size": 200000, "fingerprint": NOBODY,
            "rope": rope, "shape": {"n_layers": 1, "n_kv_heads": 1, "head_dim_k": DIM, "head_dim_v": DIM}})
        self.store = _core.RecordStore("", 1 << 28, 0, spec, "f32", 0, 1, 8192)
        self.cache = np.zeros((2, BLOCKS * BLOCK, DIM), np.float32)
        row = self.cache.strides[1]
        self.store.attach_device(
            {"dtype": "f32", "device": "plain", "n_kv_heads": 1, "head_dim": DIM, "k": [self.cache[0].ctypes.data],
             "v": [self.cache[1].ctypes.data], "k_strides": (BLOCK * row, row, row), "v_strides": (BLOCK * row, row, row),
             "rows_per_block": BLOCK, "n_rows": BLOCKS * BLOCK},
            gpu_budget=1 << 26, pinned_budget=1 << 26, max_load_tokens=1 << 16, max_capture_tokens=1024)
        self.path = DevicePath(RankRecords(self.store), BLOCK, None, 0, 1024, lambda: 0, Outbox())
        self.keys, self.tokens = [], []
        sizes = [HEADER] + [FACT] * facts
        for number, size in enumerate(sizes):
            self._add(np.arange(1000 * number, 1000 * number + size, dtype=np.int32), "window" if number else "prefix")

    def _add(self, tokens: np.ndarray, kind: str) -> None:
        key = _core.record_key(self.secret, SCOPE, NOBODY, NOBODY, kind, tokens)
        digest = _core.scope_hash(SCOPE)
        self.side.book.found(0, key, RecordInfo(digest, kind, NOBODY, tokens))
        self.side.book.sound(0, key)
        meta = {"key": key, "scope_hash": digest, "context_id": NOBODY, "context_kind": kind, "context_tokens": 0}
        batch = self.store.begin_capture([(meta, tokens, 0, np.arange(len(tokens), dtype=np.uint32))], 0)
        batch.wait()
        batch.store(0)
        self.keys.append(key)
        self.tokens.append(tokens)

    def request(self, number: int) -> SimpleNamespace:
        order = [0, *(1 + np.random.default_rng(number).permutation(len(self.keys) - 1))]
        question = np.arange(90000 + number, 90000 + number + QUESTION, dtype=np.int32)
        prompt = np.concatenate([*(self.tokens[i] for i in order), question]).tolist()
        text = _core.signed_params({
            "v": 1, "request": f"r{number}", "scope": SCOPE, "epoch": 1, "purpose": "inject", "top_j": 0, "context": "",
            "client_salt": "", "inject": [self.keys[i] for i in order], "capture": []}, self.secret)
        salt = _core.cache_salt(_core.parse_params(text, self.secret), self.secret, NOBODY)
        blocks = np.random.default_rng(number).permutation(BLOCKS)[: -(-len(prompt) // BLOCK)].tolist()
        hashes = [bytes(32)] * (len(prompt) // BLOCK)
        return SimpleNamespace(
            request_id=f"q{number}", kv_transfer_params={"inferscale": text}, prompt_token_ids=prompt,
            cache_salt=salt, block_hashes=hashes, num_tokens=len(prompt), blocks=blocks,
        )

    def run(self, request: SimpleNamespace, times: dict[str, list[float]]) -> None:
        def timed(name, call):
            begun = time.perf_counter()
            result = call()
            times.setdefault(name, []).append(1e6 * (time.perf_counter() - begun))
            return result

        side = self.side
        timed("on_new_request", lambda: side.on_new_request(request))
        count = timed("matched_tokens", lambda: side.matched_tokens(request, 0))
        assert count == len(request.prompt_token_ids) - QUESTION, side._requests[request.request_id].trace.to_json()
        timed("allocated", lambda: side.allocated(request, request.blocks, count))
        meta: StepMetadata = timed("build_meta", lambda: side.build_meta(None))
        timed("pickled", lambda: pickle.loads(pickle.dumps(meta)))
        timed("load", lambda: self.path.load(meta.loads))
        timed("finished", lambda: side.finished(request))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--facts", type=int, default=50)
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--baseline", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="inferscale-bench-") as folder:
        parts = Parts(Path(folder), options.facts)
        requests = [parts.request(number) for number in range(options.runs)]
        times: dict[str, list[float]] = {}
        for request in requests[:20]:
            parts.run(request, {})
        for request in requests[20:]:
            parts.run(request, times)
        parts.path.close()
        parts.store.close()
    found = {"facts": options.facts, "runs": options.runs - 20}
    found["us"] = {name: {"median": round(statistics.median(values), 1), "best": round(min(values), 1)}
                   for name, values in times.items()}
    found["until_first_token_us"] = {
        kind: round(sum(found["us"][name][kind] for name in HOOKS), 1) for kind in ("median", "best")}
    if options.baseline:
        before = json.loads(options.baseline.read_text())
        found["baseline"] = {"us": before["us"], "until_first_token_us": before["until_first_token_us"]}
        found["ratio_of_best"] = {
            name: round(found["us"][name]["best"] / before["us"][name]["best"], 3) for name in found["us"]}
        found["ratio_of_best"]["until_first_token"] = round(
            found["until_first_token_us"]["best"] / before["until_first_token_us"]["best"], 3)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
