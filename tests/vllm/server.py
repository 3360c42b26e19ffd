"""A vLLM server of its own for the tests: started on a free port, its output in a file, ended with all its processes."""
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

MODULE = "vllm.entrypoints.openai.api_server"
MODEL_NAME = "smollm2"
START_SECONDS = 400  # 20 to 65 on an idle machine
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
           "VLLM_HOST_IP": "127.0.0.1", "PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false"}
# f32 without graphs: exact, and nothing is compiled. A small budget of tokens: vLLM warms up with a batch of that size.
ARGUMENTS = {"--served-model-name": MODEL_NAME, "--dtype": "float32", "--max-model-len": "2048", "--block-size": "32",
             "--max-num-batched-tokens": "512", "--kv-cache-memory-bytes": str(512 << 20), "--seed": "0"}


class ServerError(Exception):
    """The server did not start, or ended; the message has the end of its log."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def die_with_parent() -> None:
    """In the child before exec: a killed test run leaves no server behind."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


class VllmServer:
    """One server process and its children. Not for several threads at once, except `post` and `get`.

    `arguments` replace or add to ARGUMENTS; a value None takes one out, "" stands for a flag without a value. `module` is
    what runs, in the folder of the log.
    """

    def __init__(self, model: str, log: Path, arguments: dict | None = None, environment: dict | None = None,
                 module: str = MODULE):
        self.log = log
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        options = ARGUMENTS | {"--model": model, "--host": "127.0.0.1", "--port": str(self.port), "--enforce-eager": ""}
        words = [word for name, value in (options | (arguments or {})).items() if value is not None
                 for word in (name, value) if word]
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "w", encoding="utf-8") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *words], stdin=subprocess.DEVNULL,
                stdout=out, stderr=subprocess.STDOUT, cwd=log.parent, env=os.environ | OFFLINE | (environment or {}),
                start_new_session=True, preexec_fn=die_with_parent)

    def wait_until_ready(self, seconds: float = START_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise ServerError(f"vLLM ended with code {self.process.returncode}; {self.tail()}")
            try:
                if self.get("/health", timeout=5)[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.5)
        raise ServerError(f"vLLM was not ready after {seconds:.0f} s; {self.tail()}")

    def alive(self) -> bool:
        return self.process.poll() is None

    def tail(self, lines: int = 40) -> str:
        text = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]
        return "\n".join([f"end of {self.log}:", *(line[:400] for line in text)])

    def stop(self) -> None:
        """Ends the server and every process of its group, the engine's too."""
        try:
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait(20)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait(20)

    def request(self, path: str, body: dict | None, timeout: float, headers: dict | None = None) -> tuple:
        """(status, decoded JSON, or the text where it is none). Raises OSError when nobody answers."""
        request = urllib.request.Request(self.url + path, method="GET" if body is None else "POST",
                                         data=None if body is None else json.dumps(body).encode(),
                                         headers={"Content-Type": "application/json"} | (headers or {}))
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                status, content = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, content = error.code, error.read()
        try:
            return status, json.loads(content)
        except ValueError:
            return status, content.decode(errors="replace")

    def get(self, path: str, timeout: float = 60) -> tuple:
        return self.request(path, None, timeout)

    def post(self, path: str, body: dict, timeout: float = 300) -> tuple:
        return self.request(path, {"model": MODEL_NAME} | body, timeout)

    def complete(self, prompt, max_tokens: int = 16, **fields) -> dict:
        """The greedy completion of a text or of token ids; the whole answer. Fails on any other status than 200."""
        status, answer = self.post("/v1/completions", {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0} | fields)
        assert status == 200, (status, answer)
        return answer
