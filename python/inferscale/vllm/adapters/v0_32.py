"""vLLM 0.32: as 0.26 for this connector, under a new base class (loads before the forward pass only
where the scheduler says so, transfer results in one call), whose defaults serve us."""

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

NAME = "v0_32"

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
