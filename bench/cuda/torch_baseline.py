#!/usr/bin/env python3
"""Composes KV with torch operations, layer by layer, as a serving stack without a kernel of its own does: concatenate the
facts, rotate the keys, write both into the paged cache by index. JSON to --out or stdout.

  torch_baseline.py [--requests N] [--tokens N] [--rounds N] [--out FILE]

Shape and layout are those of kernels_cuda_bench: Llama-3.1-8B in bf16, (block, row, head, [K|V]), facts of 28 tokens.
"""
import argparse
import json
import statistics
import time

import torch

LAYERS, HEADS, DIM, FACT, BLOCK = 32, 8, 128, 28, 16


def rotate_half(x):
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


class Rig:
    def __init__(self, requests, tokens, sets):
        self.device = torch.device("cuda")
        torch.manual_seed(1)
        self.requests, self.tokens = requests, tokens
        counts = [min(FACT, tokens - first) for first in range(0, tokens, FACT)]
        rows = 20000 // BLOCK * BLOCK
        self.cache = [torch.randn(rows // BLOCK, BLOCK, HEADS, 2 * DIM, dtype=torch.bfloat16, device=self.device)
                      for _ in range(LAYERS)]
        # Facts of every request as records are kept: [layer][fact] -> [n, heads, dim]; `sets` of them in turn.
        self.k = [self.facts(counts) for _ in range(sets)]
        self.v = [self.facts(counts) for _ in range(sets)]
        blocks = torch.randperm(rows // BLOCK, device=self.device)
        need = requests * tokens
        slots = (blocks[:, None] * BLOCK + torch.arange(BLOCK, device=self.device)).flatten()
        slots = slots.repeat(need * sets // slots.numel() + 1)
        self.slots = [slots[i * need:(i + 1) * need] for i in range(sets)]
        frequencies = 500000.0 ** (-torch.arange(0, DIM, 2, device=self.device, dtype=torch.float64) / DIM)
        angles = (40 + torch.arange(tokens, device=self.device))[:, None] * frequencies
        angles = torch.cat((angles, angles), dim=-1).repeat(requests, 1)[:, None, :]
        self.cos, self.sin = angles.cos().to(torch.bfloat16), angles.sin().to(torch.bfloat16)

    def facts(self, counts):
        return [[torch.randn(n, HEADS, DIM, dtype=torch.bfloat16, device=self.device)
                 for _ in range(self.requests) for n in counts] for _ in range(LAYERS)]

    def compose(self, turn):
        k_facts, v_facts, slots = self.k[turn], self.v[turn], self.slots[turn]
        block, row = slots // BLOCK, slots % BLOCK
        for layer in range(LAYERS):
            k = torch.cat(k_facts[layer])
            v = torch.cat(v_facts[layer])
            k = k * self.cos + rotate_half(k) * self.sin
            self.cache[layer][block, row, :, :DIM] = k
            self.cache[layer][block, row, :, DIM:] = v


def measure(rig, sets, rounds):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    device, host, wall = [], [], []
    for number in range(rounds + 5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        begin.record()
        rig.compose(number % sets)
        end.record()
        called = time.perf_counter()
        torch.cuda.synchronize()
        done = time.perf_counter()
        if number >= 5:
            device.append(1000 * begin.elapsed_time(end))
            host.append(1e6 * (called - start))
            wall.append(1e6 * (done - start))

    def summary(values):
        values = sorted(values)
        return {"median_us": statistics.median(values), "p95_us": values[len(values) * 95 // 100]}

    return {"device": summary(device), "call_host": summary(host), "launch_to_end": summary(wall)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--out")
    options = parser.parse_args()
    sets = 6 if options.requests == 1 else 2
    rig = Rig(options.requests, options.tokens, sets)
    result = {"torch": torch.__version__, "device": torch.cuda.get_device_name(), "requests": options.requests,
              "tokens": options.requests * options.tokens, "rounds": options.rounds,
              **measure(rig, sets, options.rounds)}
    text = json.dumps(result, indent=1)
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
