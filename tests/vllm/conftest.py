"""Fixtures of the tests against vLLM. Starting an engine is what takes time, so servers are shared by a whole run."""
import os
import re
import signal
from pathlib import Path

import pytest
from harness import Engine
from server import VllmServer

ROOT = Path(__file__).resolve().parents[2]


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: takes minutes")
    # The default would end the run without its fixtures' ends, and leave servers behind.
    signal.signal(signal.SIGTERM, lambda *_: pytest.exit("terminated", 143))


@pytest.fixture(scope="session")
def model_folder() -> str:
    folder = os.environ.get("INFERSCALE_TEST_MODEL", "")
    assert folder, "run these tests with ./run test-vllm"
    return folder


@pytest.fixture(scope="module")
def start_server(model_folder):
    """A function (name, arguments, environment) that starts a server and waits for it; all end with the module."""
    running = []

    def start(name: str, arguments: dict | None = None, environment: dict | None = None) -> VllmServer:
        assert re.fullmatch(r"[\w-]+", name), "the name is that of the log, too"
        server = VllmServer(model_folder, ROOT / "build" / "logs" / f"vllm-{name}.log", arguments, environment)
        running.append(server)
        server.wait_until_ready()
        return server

    yield start
    for server in running:
        server.stop()


@pytest.fixture(scope="module")
def plain_server(start_server) -> VllmServer:
    """vLLM as it is, with no connector."""
    return start_server("plain")


class Engines:
    """Engines in this process, one at a time: the last one stays until another is wanted."""

    def __init__(self, model: str):
        self.model, self.running, self.folder = model, None, None

    def get(self, data_dir: Path, **options) -> Engine:
        self.close()
        self.running = Engine(options.pop("model", self.model), data_dir, **options)
        return self.running

    def close(self) -> None:
        if self.running is not None:
            self.running.close()
            self.running = None


@pytest.fixture(scope="session")
def engines(model_folder):
    engines = Engines(model_folder)
    yield engines
    engines.close()


@pytest.fixture(scope="module")
def engine(engines, tmp_path_factory) -> Engine:
    """With the default settings of the harness; shared by the modules that follow each other."""
    if engines.running is None or engines.folder is not engines.running.data_dir:
        engines.folder = tmp_path_factory.mktemp("data")
        engines.get(engines.folder)
    return engines.running
