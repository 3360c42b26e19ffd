"""Which versions of vLLM are known, and the adapter of each range."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True)
class Range:
    """Versions from ``first`` (included) to ``end`` (excluded) that share an adapter."""

    first: tuple[int, int]
    end: tuple[int, int]
    adapter: str


# Only what was run: docs/vllm.md has the table with the result of each.
RANGES = (
    Range((0, 26), (0, 27), "v0_26"),
    Range((0, 32), (0, 33), "v0_32"),
)


def parse_version(version: str) -> tuple[int, int] | None:
    """(major, minor) of ``"0.32.0+cpu"``; None when it does not start with two numbers."""
    match = re.match(r"(\d{1,6})\.(\d{1,6})", version)
    return (int(match.group(1)), int(match.group(2))) if match else None


def adapter_name(version: str) -> str | None:
    """The adapter for a version, None when there is none."""
    parsed = parse_version(version)
    if parsed is None:
        return None
    for entry in RANGES:
        if entry.first <= parsed < entry.end:
            return entry.adapter
    return None


def find_adapter(version: str) -> ModuleType | None:
    """The adapter module for a version of vLLM; None when the version is not known."""
    name = adapter_name(version)
    return importlib.import_module(f"inferscale.vllm.adapters.{name}") if name else None


def unknown_version(version: str) -> str:
    """The one line that says why there is no injection."""
    known = ", ".join(f"{r.first[0]}.{r.first[1]}" for r in RANGES)
    return f"vLLM {version} is not among the versions this connector knows ({known})"
