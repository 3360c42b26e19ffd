"""Tables for docs/performance.md of a result of vllm_bench.py: python bench/gpu/table.py FILE..."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def number(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def interval(found: dict[str, float] | None) -> str:
    return f"{found['ratio']:.3f} ({found['low']:.3f}–{found['high']:.3f})" if found else "–"


def ttft(part: dict[str, Any]) -> list[str]:
    """One row for each number of facts: medians and p95 in ms, and the ratios of what was injected."""
    table, ratios = part["ms"], part["ratios"]
    counts = sorted({int(name.split("/")[1]) for name in table})
    arms = [arm for arm in ("none", "text", "warm") if f"{arm}/{counts[0]}" in table]
    arms += sorted({name.split("/")[0] for name in table if name.startswith("inject")})
    lines = ["| facts | " + " | ".join(arms) + " |", "|---" * (len(arms) + 1) + "|"]
    for count in counts:
        cells = [table.get(f"{arm}/{count}") for arm in arms]
        lines.append(f"| {count} | " + " | ".join(f"{number(c['median'])} ({number(c['p95'])})" if c else "–" for c in cells) + " |")
    injected = [arm for arm in arms if arm.startswith("inject")]
    heads = [f"{arm} / none" for arm in injected] + [f"{arm} / warm" for arm in injected] + [f"text / {arm}" for arm in injected]
    lines += ["", "| facts | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for count in counts:
        lines.append(f"| {count} | " + " | ".join(interval(ratios.get(f"{head} @ {count}")) for head in heads) + " |")
    return lines


def throughput(part: dict[str, Any]) -> list[str]:
    cells = {name: cell for name, cell in part.items() if isinstance(cell, dict) and "requests_per_s" in cell}
    users = sorted({int(name.split("@")[1]) for name in cells})
    lines = ["| users | none | text | inject | warm | inject / warm | inject / text |", "|---" * 7 + "|"]
    for n in users:
        rate = {arm: cells[f"{arm}@{n}"]["requests_per_s"] for arm in ("none", "text", "inject", "warm") if f"{arm}@{n}" in cells}
        row = [f"{rate[arm]:.1f}" if arm in rate else "–" for arm in ("none", "text", "inject", "warm")]
        for below in ("warm", "text"):
            both = "inject" in rate and rate.get(below)
            row.append(f"{rate['inject'] / rate[below]:.2f}" if both else "–")
        lines.append(f"| {n} | " + " | ".join(row) + " |")
    return lines


def arrivals(part: dict[str, Any]) -> list[str]:
    """Median (p95) latency in ms at each rate of arrivals; s: more came than were answered."""
    cells = {name: cell for name, cell in part.items() if isinstance(cell, dict) and "answered_per_s" in cell}
    rates = sorted({float(name.split("@")[1]) for name in cells})
    arms = [arm for arm in ("none", "text", "inject", "warm") if any(name.startswith(arm + "@") for name in cells)]
    lines = ["| arrivals a second | " + " | ".join(arms) + " |", "|---" * (len(arms) + 1) + "|"]
    for rate in rates:
        row = []
        for arm in arms:
            cell = cells.get(f"{arm}@{rate}")
            found = cell and cell["latency_ms"]
            times = f"{number(found['median'])} ({number(found['p95'])})" if found else "–"
            row.append(times + (" s" if cell and cell["saturated"] else ""))
        lines.append(f"| {rate:g} | " + " | ".join(row) + " |")
    return lines


def main() -> None:
    for name in sys.argv[1:]:
        report = json.loads(Path(name).read_text())
        print(f"## {name}\n{report.get('machine')}\n")
        for key, make in (("ttft", ttft), ("throughput", throughput), ("pinned", throughput), ("arrivals", arrivals)):
            if "error" not in report.get(key, {"error": ""}):
                print("\n".join(make(report[key])), "\n")
        for key in ("gates", "facts", "encode", "breakdown", "background", "profile"):
            if key in report:
                print(key, json.dumps(report[key], indent=1), "\n")


if __name__ == "__main__":
    main()
