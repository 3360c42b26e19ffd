"""vLLM 0.26: K and V of a token packed side by side, ``(blocks, H, block, 2 D)``."""

from inferscale.vllm.adapters.common import *  # noqa: F403 - all of it; what differs would stand here

NAME = "v0_26"
