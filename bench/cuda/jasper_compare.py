#!/usr/bin/env python3
"""Compares exact scans with Jasper, a graph index on the GPU: recall@10, latency of 1 and of 64 queries, time to build.

  jasper_compare.py --out FILE [--sizes 10000,100000,1000000] [--kinds gaussian,clustered,subspace]
                    [--builds ip:1.2,l2:1.2,ip:0.83] [--beams 64,200] [--rounds N] [--seconds N] [--step-seconds N]
                    [--kernels] [--scan-binary build/cuda/bin/kernels_cuda_bench]

torch and the package jasper (github.com/saltsystemslab/Jasper) must be importable; InferScale uses neither.

Vectors have 384 dimensions and length 1, in f16 on the device: `gaussian`; `clustered` around sqrt(n) centres;
`subspace` mostly in 32 dimensions, as those of texts are. Queries are drawn likewise. A build is a metric and the
pruning factor alpha, with 64 neighbours a vector; both metrics order vectors of length 1 alike. Recall is against the
top 10 of f32 products of the same vectors. `torch` is matmul, its products in f16, and topk. --scan-binary adds what
the benchmark of the own scan says.

`call_to_host` is from the call to hits in host memory on an idle device, queries being on the device; `device_events`
is between events around the call behind other work, with the gaps in which it waits or allocates; before both the L2
cache is overwritten. `kernels_us` (--kernels) is what a call's kernels and copies take, the cache as it is; take the
latencies from a run without it, for the profiler can slow the calls that come after it.

FILE is written after each step. Steps that fail are in `errors`, those that came after --seconds in `not_run`; one
that takes longer than --step-seconds ends the program and is in `running`.
"""
import argparse
import faulthandler
import json
import os
import statistics
import subprocess
import time

import jasper
import torch

DEVICE = "cuda"
DIM, K, NEIGHBORS, QUERIES, WARM_UP = 384, 10, 64, 1024, 20


class Report:
    def __init__(self, options):
        self.options = options
        self.end = time.monotonic() + options.seconds
        self.result = {"torch": torch.__version__, "device": torch.cuda.get_device_name(), "dim": DIM, "k": K,
                       "queries": QUERIES, "neighbors": NEIGHBORS, "rounds": options.rounds,
                       "running": None, "errors": {}, "not_run": []}

    def step(self, path, work):
        """Puts the values that `work` returns under the names of the path; answers whether it did."""
        name = "/".join(path)
        late = time.monotonic() > self.end
        if late:
            self.result["not_run"].append(name)
        else:
            self.result["running"] = name
            self.write()
            faulthandler.dump_traceback_later(self.options.step_seconds, exit=True)
            try:
                values = work()
                place = self.result
                for part in path:
                    place = place.setdefault(part, {})
                place.update(values)
            except Exception as error:
                self.result["errors"][name] = f"{type(error).__name__}: {error}"
            faulthandler.cancel_dump_traceback_later()
            self.result["running"] = None
        self.write()
        return not late and name not in self.result["errors"]

    def write(self):
        with open(self.options.out + ".part", "w", encoding="utf-8") as file:
            file.write(json.dumps(self.result, indent=1) + "\n")
        os.replace(self.options.out + ".part", self.options.out)


def draw(kind, count):
    """So many vectors, and the queries."""
    rows = torch.randn(count + QUERIES, DIM, device=DEVICE)
    if kind == "clustered":
        centres = torch.nn.functional.normalize(torch.randn(round(count**0.5), DIM, device=DEVICE))
        rows *= 0.7 * DIM**-0.5
        rows += centres[torch.randint(len(centres), (len(rows),), device=DEVICE)]
    elif kind == "subspace":
        rows *= 0.1
        rows += torch.randn(len(rows), 32, device=DEVICE) @ (torch.randn(32, DIM, device=DEVICE) * 32**-0.5)
    elif kind != "gaussian":
        raise ValueError(f"no such vectors: {kind}")
    rows = torch.nn.functional.normalize(rows).half()
    return rows[:count].clone(), rows[count:].clone()


def recall(search, queries, exact):
    hits = torch.cat([search(part)[0].long() for part in queries.split(64)])
    return {"recall": (hits[:, :, None] == exact[:, None, :]).any(-1).float().mean().item()}


def latency(search, batches, busy, rounds):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    wall, device = [], []
    for number in range(rounds + WARM_UP):
        busy.zero_()
        begin.record()
        search(batches[2 * number % len(batches)])
        end.record()
        busy.zero_()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for tensor in search(batches[(2 * number + 1) % len(batches)]):
            tensor.cpu()
        wall.append(1e6 * (time.perf_counter() - start))
        device.append(1000 * begin.elapsed_time(end))

    def summary(values):
        values = sorted(values[WARM_UP:])
        return {"median_us": statistics.median(values), "p95_us": values[len(values) * 95 // 100]}

    return {"call_to_host": summary(wall), "device_events": summary(device)}


def kernels(search, batches, calls=16):
    search(batches[0])
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for number in range(calls):
            search(batches[number % len(batches)])
        torch.cuda.synchronize()
    return {"kernels_us": sum(event.self_device_time_total for event in profile.key_averages()
                              if event.device_type == torch.autograd.DeviceType.CUDA) / calls}


def measure(report, path, search, queries, exact, busy):
    report.step(path, lambda: recall(search, queries, exact))
    for size in (1, 64):
        own = [*path, f"batch{size}"]
        batches = queries.split(size)
        if report.step(own, lambda: latency(search, batches, busy, report.options.rounds)) and report.options.kernels:
            report.step([*own, "profiler"], lambda: kernels(search, batches))


def compare(report, count, kind, busy):
    path, data = [str(count), kind], []

    def prepare():
        data.extend(draw(kind, count))
        wide = data[0].float()
        hits = [torch.topk(part.float() @ wide.T, K) for part in data[1].split(64)]
        data.append(torch.cat([hit.indices for hit in hits]))
        return {"mean_tenth_product": torch.cat([hit.values[:, -1] for hit in hits]).mean().item()}

    if not report.step(path, prepare):
        return
    vectors, queries, exact = data
    measure(report, [*path, "torch"], lambda part: torch.topk(part @ vectors.T, K)[::-1], queries, exact, busy)
    for build in report.options.builds.split(","):
        metric, alpha = build.split(":")
        graphs = []

        def construct():
            torch.cuda.synchronize()
            start = time.perf_counter()
            graphs.append(jasper.Graph.build(vectors, n_neighbors=NEIGHBORS, distance=metric, alpha=float(alpha)))
            torch.cuda.synchronize()
            return {"build_s": time.perf_counter() - start}

        if report.step([*path, "jasper " + build], construct):
            for beam in map(int, report.options.beams.split(",")):
                measure(report, [*path, "jasper " + build, f"beam{beam}"],
                        lambda part: graphs[0].search(part, k=K, beam_width=beam), queries, exact, busy)
            graphs.pop().free()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = {"sizes": "10000,100000,1000000", "kinds": "gaussian,clustered,subspace",
                "builds": "ip:1.2,l2:1.2,ip:0.83", "beams": "64,200",
                "rounds": 100, "seconds": 420, "step-seconds": 120}
    for name, default in defaults.items():
        parser.add_argument("--" + name, type=type(default), default=default)
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--scan-binary")
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    torch.manual_seed(1)
    report = Report(options)
    if options.scan_binary:
        report.step(["own_scan"], lambda: json.loads(subprocess.run(
            [options.scan_binary, "--only", "scan"], check=True, timeout=options.step_seconds - 1,
            stdout=subprocess.PIPE).stdout))
    busy = torch.empty(1 << 30, dtype=torch.uint8, device=DEVICE)
    for metric in ("ip", "l2"):  # a first call loads its kernels, which no build time is to hold
        report.step(["first_build", metric], lambda: {"vectors": jasper.Graph.build(
            draw("gaussian", 5000)[0], n_neighbors=NEIGHBORS, distance=metric).n_vectors})
    for count in map(int, options.sizes.split(",")):
        for kind in options.kinds.split(","):
            compare(report, count, kind, busy)
    print("\n" + json.dumps(report.result, indent=1))


if __name__ == "__main__":
    main()
