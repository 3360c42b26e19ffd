"""What the wheel carries besides code."""
import importlib.metadata
from pathlib import Path

import inferscale
from inferscale import _core

ROOT = Path(__file__).resolve().parents[2]


def test_version_is_the_projects():
    version = (ROOT / "VERSION").read_text().strip()
    assert inferscale.__version__ == _core.version == importlib.metadata.version("inferscale") == version


def test_types_are_declared():
    package = Path(inferscale.__file__).parent
    assert (package / "py.typed").is_file()
    assert "version: str" in (package / "_core.pyi").read_text()


def test_vllm_finds_the_plugin():
    (plugin,) = importlib.metadata.entry_points(group="vllm.general_plugins", name="inferscale")
    assert plugin.value == "inferscale.vllm.plugin:register"


def test_the_licence_is_in_the_wheel():
    assert "Apache License" in (Path(inferscale.__file__).parent / "LICENSE").read_text()
