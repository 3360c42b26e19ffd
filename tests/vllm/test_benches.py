"""The benchmarks in Python run, and say what they are there to say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(script: str, *arguments: str, **environment: str) -> str:
    """Its output; the end of what it says of an error."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / script), *arguments], capture_output=True, text=True, timeout=500,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"} | environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def report(output: str) -> dict:
    return json.loads(output[output.index("{\n"):])


def test_what_a_request_costs_in_the_connector():
    found = report(run("python/vllm_hooks.py", "--facts", "3", "--runs", "25"))
    assert found["runs"] == 5 and found["until_first_token_us"]["best"] > 0
    assert {"on_new_request", "matched_tokens", "allocated", "build_meta", "load"} <= set(found["us"])


def test_compose_beside_memcpy():
    found = report(run("python/compose_bench.py", "--tokens", "52", "--runs", "2"))
    assert found["tokens"] == 52


def test_an_engine_under_load(tmp_path):
    out = tmp_path / "tiny.json"
    run(
        "gpu/vllm_bench.py", "--shape", "tiny", "--dtype", "float32", "--eager", "--out", str(out), "--seconds", "200",
        "--counts", "0,5", "--rounds", "2", "--facts", "20", "--users", "2", "--cell-seconds", "2", "--rates", "4",
        "--parts", "smoke,gates,facts,tiers,ttft,breakdown,encode,throughput,arrivals,pinned,profile", INFERSCALE_BENCH_CPU="1",
    )
    found = json.loads(out.read_text())
    parts = ("smoke", "gates", "facts", "ttft", "breakdown", "encode", "throughput", "arrivals", "pinned", "profile")
    assert "error" not in found and not any("error" in found[part] for part in parts), found
    assert found["ttft"]["n_not_injected"] == 0 and found["facts"]["missing"] == 0
    cells = found["throughput"]
    assert set(cells) == {"none@2", "text@2", "inject@2", "warm@2"}
    # On a busy machine a cell may end before its first request does.
    assert sum(cell["requests"] for cell in cells.values()) > 0
    if cells["inject@2"]["requests"]:
        assert cells["inject@2"]["injected_tokens_per_request"] > 1300
    table = run("gpu/table.py", str(out))
    assert "| arrivals a second |" in table and "| users |" in table
