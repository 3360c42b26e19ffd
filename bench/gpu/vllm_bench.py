"""Measures vLLM with the connector on a GPU, with weights of a folder, or random ones in the shape of a public model; JSON.

  python bench/gpu/vllm_bench.py --shape llama-3.1-8b --out FILE [--parts smoke,facts,ttft] [--seconds 400]

One engine in this process (vLLM, the inferscale package and their environment must be importable). FILE is written
anew after every part, so that what was measured is kept however the run ends; each part has a share of --seconds
and stops when it is used up. Parts: smoke, gates, facts, tiers, ttft, breakdown, encode, throughput, arrivals, pinned
(throughput of records in pinned memory), background, profile. See docs/performance.md for what the figures mean.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tests" / "vllm")]
from memory import Memory  # noqa: E402
from rig import FACT, HEADER, QUESTION, Options, Rig  # noqa: E402
from shapes import SHAPES  # noqa: E402

PARTS = (
    "smoke", "gates", "facts", "tiers", "ttft", "breakdown", "encode", "throughput", "arrivals", "pinned", "background",
    "profile",
)
BOB = {"tenant": "acme", "user": "bob", "agent": "", "run": ""}


class Run:
    """Parts of a measurement against one clock and one report."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.begun = time.perf_counter()
        weights = f"of {Path(options.model).name}" if options.model else "random: normal(0, 0.02)"
        self.report: dict[str, Any] = {"arguments": vars(options), "weights": weights}

    def left(self) -> float:
        return self.options.seconds - (time.perf_counter() - self.begun)

    def write(self) -> None:
        Path(self.options.out).write_text(json.dumps(self.report, indent=1, default=str))

    def part(self, name: str, call: Any, limit: float = 60.0) -> None:
        """What a part raises is in the report, and the next one is tried; after ``limit`` seconds the
        process ends and says where it was."""
        if name not in self.options.parts:
            return
        begun = time.perf_counter()
        faulthandler.dump_traceback_later(limit, exit=True)  # what hangs must not use up the machine
        try:
            self.report[name] = call()
        except Exception as error:
            traceback.print_exc()
            self.report[name] = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
        faulthandler.cancel_dump_traceback_later()
        self.report.setdefault("part_s", {})[name] = round(time.perf_counter() - begun, 1)
        print(f"[{time.perf_counter() - self.begun:.0f} s] {name}: {json.dumps(self.report[name], default=str)[:1500]}", flush=True)
        self.write()


    def failed(self) -> bool:
        found = [self.report, *(part for part in self.report.values() if isinstance(part, dict))]
        return any("error" in part for part in found)


def parts(text: str) -> list[str]:
    names = text.split(",")
    if unknown := sorted(set(names) - set(PARTS)):
        raise argparse.ArgumentTypeError(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    return names


def machine() -> dict[str, Any]:
    import torch
    import vllm

    found = {
        "vllm": vllm.__version__, "torch": torch.__version__, "python": platform.python_version(),
        "cpus": os.cpu_count(), "load": os.getloadavg(),
    }
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
        query = "driver_version,clocks.sm,clocks.mem,utilization.gpu"
        run = subprocess.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], capture_output=True, text=True)
        found["nvidia_smi"] = run.stdout.strip()
    return found


def pinned_path(rig: Rig) -> Any:
    """A path of the worker whose records never leave pinned memory, over a store of its own."""
    from inferscale import _core
    from inferscale.vllm import device_path, layout, probe
    from inferscale.vllm.store import RankRecords

    worker = rig.worker
    names = sorted(rig.caches, key=lambda name: int(name.split(".")[2]))
    caches = layout.describe([rig.caches[name] for name in names], int(worker._cache_config.num_blocks))
    store = _core.RecordStore(
        str(rig.data_dir / "pinned"), 2 << 30, 0, worker._store_spec, worker._codec, 0, 1, worker._max_positions
    )
    capture_tokens = worker._path._capture_tokens
    store.attach_device(
        caches, gpu_budget=0, pinned_budget=2 << 30, max_load_tokens=device_path.MAX_LOAD_TOKENS,
        max_capture_tokens=capture_tokens,
    )
    repeated = probe.RepeatedTokens(worker._spec, worker._max_positions)
    return device_path.DevicePath(
        RankRecords(store), worker._block_size, repeated, worker._rank, capture_tokens,
        device_path.cuda_stream, worker._outbox,
    )


def paths_by_tier(rig: Rig, memory: Memory) -> dict[str, Any]:
    """The worker's own path, and one from pinned memory; the facts' records are captured there too."""
    from inferscale.vllm.device_path import DevicePath

    own = rig.worker._path
    if not isinstance(own, DevicePath):
        return {"host": own}
    try:
        rig.worker._path = pinned_path(rig)
        memory.encode_again(256)
        return {"gpu": own, "pinned": rig.worker._path}
    finally:
        rig.worker._path = own


def measure(run: Run, rig: Rig) -> None:
    from equivalence import gate_e1, gate_e2, gate_e5
    from throughput import ARMS, closed_loop, encoding_beside, open_loop, profiled
    from ttft import Stopwatch, Ttft, breakdown

    options = run.options
    client = rig.client()
    memory = Memory(rig, client)
    memory.encode_header()
    run.part("smoke", lambda: memory.encode(8, 20.0, batch=4) | {"tiers": rig.worker._records.stats({})["tiers"]})
    length = 830
    run.part("gates", lambda: {
        "E1": gate_e1(rig, client, length, [800, 805, length - 1]), "E2": gate_e2(rig, memory, 6),
        "E5": gate_e5(rig, memory, BOB),
    })
    run.part("facts", lambda: memory.encode(256, 60.0))
    counts = [count for count in map(int, options.counts.split(",")) if count <= len(memory.facts)]
    paths: dict[str, Any] = {}
    run.part("tiers", lambda: paths.update(paths_by_tier(rig, memory)) or sorted(paths))
    paths = paths or {"gpu": rig.worker._path}
    own = rig.worker._path

    def ttft() -> dict[str, Any]:
        table = Ttft(rig, memory, counts, paths)
        table.run(options.rounds, min(options.ttft_seconds, run.left() - 20.0))
        return table.report()

    run.part("ttft", ttft, options.ttft_seconds + 40.0)
    run.part("breakdown", lambda: breakdown(rig, memory, paths, max(c for c in counts if c <= 50), 40))
    rig.worker._path = own

    def encode() -> dict[str, Any]:
        clocks = [Stopwatch(own, ["save"])]
        if hasattr(own, "_late"):
            clocks.append(Stopwatch(own._late, ["_finish", "_keep"]))  # behind the steps
        found = memory.encode(options.facts, min(options.encode_seconds, run.left()))
        found["host_ms"] = {name: round(ms, 1) for clock in clocks for name, ms in clock.take().items()}
        for clock in clocks:
            clock.stop()
        return found

    run.part("encode", encode)
    if options.users:
        users = [int(n) for n in options.users.split(",")]
        until = lambda: time.perf_counter() + run.left() - 10.0  # noqa: E731

        def loop(arms: tuple[str, ...]) -> dict[str, Any]:
            return closed_loop(rig, memory, users, 50, 50, options.cell_seconds, 2.0, until(), arms)

        limit = max(60.0, run.left() + 20.0)
        run.part("throughput", lambda: loop(ARMS), limit)
        rates = [float(rate) for rate in options.rates.split(",")]
        run.part("arrivals", lambda: open_loop(rig, memory, rates, 100, 50, 50, options.cell_seconds, until()), limit)
        rig.worker._path = paths.get("pinned", own)
        run.part("pinned", lambda: loop(("inject",)), limit)
        rig.worker._path = own
        run.part("background", lambda: encoding_beside(rig, memory, 25, 50, options.cell_seconds, 2), 90.0)
        run.part("profile", lambda: profiled(rig, memory, 25, 50, options.cell_seconds))
    run.report["tiers_at_end"] = rig.worker._records.stats({})
    run.write()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), required=True)
    parser.add_argument("--model", default="", help="a folder with the weights, of that shape (default: random weights)")
    parser.add_argument("--out", required=True)
    parser.add_argument("--parts", type=parts, default="smoke,gates,facts,tiers,ttft,breakdown,encode,throughput")
    parser.add_argument("--seconds", type=float, default=400.0)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--codec", default="auto", help="of the records")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--facts", type=int, default=1000)
    parser.add_argument("--encode-seconds", type=float, default=40.0)
    parser.add_argument("--counts", default="0,5,10,20,50,64")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--ttft-seconds", type=float, default=150.0)
    parser.add_argument("--users", default="10,25,50,75,100")
    parser.add_argument("--rates", default="10,20,40,60,80,100,120,140,160,200,240", help="requests a second, of the part arrivals")
    parser.add_argument("--gpu-budget", default="8GiB", help="less than the facts take: they do not all fit")
    parser.add_argument("--pinned-budget", default="6GiB")
    parser.add_argument("--cell-seconds", type=float, default=5.0)
    parser.add_argument("--block-size", type=int, default=0, help="tokens of a block of vLLM's cache (default: vLLM's own)")
    return parser.parse_args()


def main() -> None:
    options = parse()
    run = Run(options)
    with tempfile.TemporaryDirectory(prefix="inferscale-bench-") as folder:
        faulthandler.dump_traceback_later(220.0, exit=True)
        try:
            rig = Rig(Options(
                options.shape, Path(folder), model=options.model, dtype=options.dtype, eager=options.eager,
                codec=options.codec, gpu_budget=options.gpu_budget, pinned_budget=options.pinned_budget,
                block_size=options.block_size,
            ))
            faulthandler.cancel_dump_traceback_later()
            run.report |= {
                "machine": machine(), "import_s": round(rig.import_s, 1), "start_s": round(rig.start_s, 1),
                "no_injection_because": rig.reason(), "header": HEADER, "fact": FACT, "question": QUESTION,
            }
            print("start", run.report["start_s"], "reason:", rig.reason(), flush=True)
            run.write()
            if not rig.reason():
                measure(run, rig)
        except Exception:
            run.report["error"] = traceback.format_exc()
            traceback.print_exc()
        run.report["seconds"] = round(time.perf_counter() - run.begun, 1)
        run.write()
        sys.stdout.flush()
        os._exit(int(run.failed()))  # vLLM's own tear-down takes long and tells nothing


if __name__ == "__main__":
    main()
