"""How the tests' servers start and end, with a stand-in that takes no time to start."""
import os
import time

import pytest
from server import ServerError, VllmServer

STUBBORN = """
import http.server, os, signal, subprocess, sys
port = int(sys.argv[sys.argv.index("--port") + 1])
child = subprocess.Popen(["sleep", "1000"], preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN))
print("child", child.pid, flush=True)

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def start(folder, code: str) -> VllmServer:
    (folder / "stand_in.py").write_text(code)
    return VllmServer("no-such-model", folder / "log", module="stand_in")


def exists(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_server_that_cannot_start_says_why(tmp_path):
    server = start(tmp_path, "import sys\nsys.exit('there is no ' + sys.argv[sys.argv.index('--model') + 1])")
    with pytest.raises(ServerError, match="code 1(.|\n)*there is no no-such-model"):
        server.wait_until_ready()
    server.stop()


def test_a_server_that_is_not_ready_in_time_is_an_error(tmp_path):
    server = start(tmp_path, "print('loading', flush=True)\nimport time\ntime.sleep(1000)")
    with pytest.raises(ServerError, match="not ready"):
        server.wait_until_ready(1)
    server.stop()
    assert not server.alive()


def test_stop_ends_children_that_do_not_want_to(tmp_path):
    server = start(tmp_path, STUBBORN)
    server.wait_until_ready()
    child = int(server.log.read_text(encoding="utf-8").split()[1])
    assert server.alive() and exists(child)
    server.stop()
    assert not server.alive()
    deadline = time.monotonic() + 30
    while exists(child) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not exists(child)


def test_the_environment_is_passed_on(tmp_path):
    server = start(tmp_path, "import os\nprint(*(k for k in os.environ), flush=True)\nraise SystemExit(3)")
    with pytest.raises(ServerError, match="code 3"):
        server.wait_until_ready()
    names = server.log.read_text(encoding="utf-8").split()
    assert {"HF_HUB_OFFLINE", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK", *os.environ} <= set(names)
