"""vLLM 0.32: as 0.26 for this connector, under a new base class (loads before the forward pass only
where the scheduler says so, transfer results in one call), whose defaults serve us."""

from inferscale.vllm.adapters.common import *  # noqa: F403 - all of it; what differs would stand here

NAME = "v0_32"
