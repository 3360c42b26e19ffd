"""InferScale: facts encoded once, injected as KV. ``inferscale.vllm`` is the connector for vLLM."""

from inferscale._core import ConflictError, CorruptionError, RetryError
from inferscale._core import version as __version__

__all__ = ["ConflictError", "CorruptionError", "RetryError", "__version__"]
