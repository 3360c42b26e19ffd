"""vLLM serves injected memory: a KV connector for stock vLLM.

Give vLLM ``--kv-transfer-config '{"kv_connector": "InferScaleConnector", "kv_connector_module_path":
"inferscale.vllm", "kv_role": "kv_both"}'``; docs/vllm.md says how it works.
Importing this package imports neither vLLM nor torch.
"""

from typing import Any

__all__ = ["InferScaleConnector"]


def __getattr__(name: str) -> Any:
    if name == "InferScaleConnector":
        from inferscale.vllm.connector import InferScaleConnector

        return InferScaleConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
