"""docs/vllm.md followed to the letter, in a new environment with vLLM in it: install, serve, remember, ask.

Its commands are read from there. Left out of the fast runs: `-m "not slow"`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from server import OFFLINE, START_SECONDS, die_with_parent, free_port
from test_client import PROGRAM

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "vllm.md"
WHEELS = ROOT / "build" / "wheel"


def blocks(heading: str) -> list[list[str]]:
    """The commands of each block of a section of the document."""
    section = DOCUMENT.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [block.strip().splitlines() for block in re.findall(r"```\n(.*?)```", section, re.S)]


def copy_environment(target: Path) -> None:
    """Of the one that runs this test; its files are shared where the file system can, and pip replaces none of them."""
    source = Path(sys.prefix)
    if subprocess.run(["cp", "-al", source, target], capture_output=True, check=False).returncode != 0:
        shutil.rmtree(target, ignore_errors=True)
        subprocess.run(["cp", "-a", source, target], check=True)
    subprocess.run([target / "bin" / "python", "-m", "ensurepip", "--default-pip"], check=True, capture_output=True,
                   timeout=300)


class Shell:
    """Commands as somebody types them who has nothing but the environment, the program and the wheel."""

    def __init__(self, folder: Path):
        self.home = folder / "home"
        self.home.mkdir()
        for wheel in WHEELS.glob("inferscale-*.whl"):
            shutil.copy(wheel, self.home)
        kept = {name: value for name, value in os.environ.items()
                if not name.startswith(("INFERSCALE", "PYTHON", "VLLM", "XDG"))}
        path = f"{folder / 'venv' / 'bin'}:{PROGRAM.parent}:{os.environ['PATH']}"
        self.environment = kept | OFFLINE | {"HOME": str(self.home), "PATH": path}

    def run(self, command: str) -> str:
        done = subprocess.run(["sh", "-c", command], cwd=self.home, env=self.environment, capture_output=True, text=True,
                              timeout=600, check=False)
        assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
        return done.stdout

    def start(self, command: str, log: Path) -> subprocess.Popen:
        with open(log, "w", encoding="utf-8") as out:
            return subprocess.Popen(["sh", "-c", f"exec {command}"], cwd=self.home, env=self.environment, stdout=out,
                                    stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=die_with_parent)


def wait_until(log: Path, words: str, server: subprocess.Popen) -> None:
    deadline = time.monotonic() + START_SECONDS
    while words not in log.read_text(encoding="utf-8", errors="replace"):
        assert server.poll() is None and time.monotonic() < deadline, log.read_text(errors="replace")[-4000:]
        time.sleep(0.5)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_three_commands_serve_a_model_with_memory(tmp_path, model_folder):
    (install, serve, show), (add, ask) = blocks("Serve a model with memory")[:2]
    copy_environment(tmp_path / "venv")
    shell = Shell(tmp_path)
    where = "python -c 'import inferscale; print(inferscale.__file__)'"
    assert shell.run("command -v pip").strip() == str(tmp_path / "venv" / "bin" / "pip"), "another one must not be touched"
    shell.run(install)
    assert str(tmp_path / "venv") in shell.run(where)

    # The CPU build cannot `vllm serve`, as the document says. Not the newcomer's: a free port, a small cache, nothing compiled.
    port = free_port()
    serve = serve.replace("vllm serve MODEL", f"python -m vllm.entrypoints.openai.api_server --model {model_folder}")
    log = ROOT / "build" / "logs" / "vllm-newcomer.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    server = shell.start(f"{serve} --port {port} --host 127.0.0.1"
                         " --enforce-eager --max-model-len 2048 --kv-cache-memory-bytes 536870912", log)
    try:
        wait_until(log, "injection is on", server)
        assert json.loads(shell.run(show))["url"].startswith("http://127.0.0.1:")
        wait_until(log, "Application startup complete", server)
        add, ask = (line.replace("127.0.0.1:8000", f"127.0.0.1:{port}") for line in (add, ask))
        shell.run(add)
        answer = json.loads(shell.run(f"{ask} --json"))
        assert [fact["text"] for fact in answer["facts"]] == ["Ana lives in Lisbon."]
        assert answer["tokens"]["prompt"] > 0 and answer["answer"].strip()
        # What stands before the first fact is kept by the first answer, and injected from the second on.
        again = json.loads(shell.run(f"{ask} --json"))
        assert [fact["state"] for fact in again["facts"]] == ["injected"] and again["tokens"]["injected"] > 0, again
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(server.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
