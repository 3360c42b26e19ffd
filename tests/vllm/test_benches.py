"""The benchmarks in Python run, and say what they are there to say."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

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


STUBS = {
    "python": """#!/bin/sh
case "$*" in
  *"cli.main serve"*)
    echo "$*" >>"$CALLS"
    for port in 8123 8124; do case "$*" in *"--port $port"*) echo $$ >"$CALLS.$port" ;; esac; done
    exec sleep 600 ;;
  *health*) for port in 8123 8124; do case "$*" in *":$port/"*) test -e "$CALLS.$port"; exit ;; esac; done ;;
  *) exec python3 "$@" ;;
esac
""",
    "inferscale": """#!/bin/sh
echo "$INFERSCALE_HOME $*" >>"$CALLS"
while [ $# -gt 0 ]; do
  case $1 in --work) work=$2 ;; --out) out=$2 ;; --conversations) cases=$2 ;; esac
  shift
done
[ "$cases" = "$FAIL" ] && exit 6
[ -z "$HANG" ] || exec sleep 600
mkdir -p "$work"
[ -s "$work/results.jsonl" ] || for line in evaluation $(echo "$cases" | tr , ' '); do echo "$line" >>"$work/results.jsonl"; done
cp "$work/results.jsonl" "$out"
""",
}


def group_script(tmp_path, conversations: int = 5, **environment: str) -> subprocess.Popen:
    for name, text in STUBS.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "locomo.json").write_text(json.dumps([{"sample_id": f"c{number}"} for number in range(conversations)]))
    return subprocess.Popen(
        [str(ROOT / "bench" / "gpu" / "run_group.sh"), str(tmp_path / "out"), "evaluation"], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, env=os.environ | {
            "PYTHON": str(tmp_path / "python"), "INFERSCALE": str(tmp_path / "inferscale"), "MODEL": "model", "SERVERS": "2",
            "LOCOMO": str(tmp_path / "locomo.json"), "CALLS": str(tmp_path / "calls"), "FAIL": "none", "HANG": "",
        } | environment,
    )


def assert_servers_are_gone(tmp_path) -> None:
    for port in (8123, 8124):
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / f"calls.{port}").read_text()), 0)


def test_servers_share_the_conversations_of_an_evaluation(tmp_path):
    script = group_script(tmp_path)
    said = script.communicate(timeout=60)[0]
    assert script.returncode == 0, said
    assert_servers_are_gone(tmp_path)
    assert (tmp_path / "out" / "eval.json").read_text().split() == ["evaluation", "c0", "c2", "c4", "c1", "c3"]
    calls = (tmp_path / "calls").read_text().splitlines()
    ports = [call.split("--port ")[1].split()[0] for call in calls if "cli.main serve" in call]
    assert sorted(ports) == ["8123", "8124"]
    asked = {call.split("vllm=http://127.0.0.1:")[1][:4] for call in calls if "--conversations c1,c3" in call}
    assert asked == {"8124"}


def test_no_server_is_without_a_conversation(tmp_path):
    script = group_script(tmp_path, conversations=1, EVAL="--arms *", BLOCK_SIZE="0")
    said = script.communicate(timeout=60)[0]
    assert script.returncode == 0, said
    calls = (tmp_path / "calls").read_text().splitlines()
    assert sum("cli.main serve" in call for call in calls) == 1
    assert not any("--block-size" in call for call in calls)
    assert all(call.count("--arms *") == 1 for call in calls if "eval locomo" in call)


def test_what_an_evaluation_has_found_is_kept_when_a_part_fails(tmp_path):
    script = group_script(tmp_path, FAIL="c1,c3")
    said = script.communicate(timeout=60)[0]
    assert script.returncode != 0 and "not all was asked" in said
    assert not (tmp_path / "out" / "eval.json").exists()
    assert (tmp_path / "out" / "evaluation" / "results.jsonl").read_text().split() == ["evaluation", "c0", "c2", "c4"]


def test_servers_end_with_a_script_that_is_ended(tmp_path):
    script = group_script(tmp_path, HANG="yes")
    until = time.monotonic() + 30
    while not (tmp_path / "out" / "evaluation-2.log").exists() and time.monotonic() < until:
        time.sleep(0.1)
    os.killpg(script.pid, signal.SIGTERM)
    script.communicate(timeout=30)
    assert script.returncode != 0
    assert_servers_are_gone(tmp_path)


@pytest.mark.parametrize("arguments", [["out"], ["out", "suites", "nonsense"], ["--what"], ["/proc/nothing", "suites"]])
def test_wrong_arguments_of_the_groups_do_nothing(tmp_path, arguments):
    script = [str(ROOT / "bench" / "gpu" / "run_group.sh"), *arguments]
    done = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, timeout=30)
    assert done.returncode in (1, 2) and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "wrong", [{"SERVERS": "0"}, {"SERVERS": "x"}, {"API_SERVERS": "-1"}, {"BLOCK_SIZE": "abc"}, {"CODEC": "q5"}]
)
def test_wrong_settings_of_the_groups_do_nothing(tmp_path, wrong):
    script = [str(ROOT / "bench" / "gpu" / "run_group.sh"), "out", "scan"]
    done = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, timeout=30, env=os.environ | wrong)
    assert done.returncode == 2 and next(iter(wrong)) in done.stderr and not list(tmp_path.iterdir())


def test_parts_that_are_not_there_are_refused(tmp_path):
    with pytest.raises(AssertionError, match="no such part: typo"):
        run("gpu/vllm_bench.py", "--shape", "tiny", "--out", str(tmp_path / "x.json"), "--parts", "smoke,typo")
