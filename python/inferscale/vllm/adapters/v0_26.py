"""vLLM 0.26: K and V of a token packed side by side, ``(blocks, H, block, 2 D)``."""

from inferscale.vllm.adapters.common import (
    Scheduled,
    attention_layers,
    make_reader,
    make_writer,
    resalt,
    rope_modules,
    rope_table,
    rotate,
    scheduled_requests,
)

NAME = "v0_26"

__all__ = [
    "NAME",
    "Scheduled",
    "attention_layers",
    "make_reader",
    "make_writer",
    "resalt",
    "rope_modules",
    "rope_table",
    "rotate",
    "scheduled_requests",
]
