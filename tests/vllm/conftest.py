"""Fixtures for tests against a real vLLM: engines in this process, one at a time."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def model() -> str:
    """The HuggingFace directory of the test model."""
    path = os.environ.get("INFERSCALE_VLLM_MODEL", "")
    if not path:
        pytest.skip("INFERSCALE_VLLM_MODEL is not set: ./run test-vllm sets it")
    return path


@pytest.fixture(scope="module")
def engine(model, tmp_path_factory):
    """An engine with the default settings of the harness."""
    from harness import Engine

    engine = Engine(model, tmp_path_factory.mktemp("data"))
    yield engine
    engine.close()
