"""Small models with random weights: one folder per family and rope type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

POSITIONS = 1024
SHAPE: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 512, "tie_word_embeddings": False,
    "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": POSITIONS,
}

# name -> (class of transformers, what its configuration has besides)
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"rope_theta": 10000.0}),
    "llama, wide": ("Llama", {"rope_theta": 10000.0, "num_key_value_heads": 4}),
    "llama, linear": ("Llama", {"rope": {"rope_type": "linear", "factor": 4.0}}),
    "llama, llama3": (
        "Llama",
        {
            "rope": {
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 128,
            }
        },
    ),
    "llama, yarn": (
        "Llama", {"rope": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}}
    ),
    "qwen2": ("Qwen2", {"rope_theta": 1000000.0, "use_sliding_window": False}),
    "qwen2, outliers": (
        "Qwen2", {"rope_theta": 1000000.0, "use_sliding_window": False, "key_outlier": 200.0}
    ),
    "qwen3": ("Qwen3", {"rope_theta": 1000000.0, "use_sliding_window": False}),
    "mistral": ("Mistral", {"sliding_window": None}),
}


def make(name: str, folder: Path) -> str:
    """Writes the model of this name; returns its folder."""
    import transformers

    kind, extra = FAMILIES[name]
    settings = SHAPE | extra
    outlier = settings.pop("key_outlier", 0.0)
    rope = settings.pop("rope", None)
    if rope is not None:
        settings["rope_parameters"] = {"rope_theta": 10000.0} | rope
    elif "rope_theta" in settings:
        settings["rope_parameters"] = {"rope_theta": settings.pop("rope_theta"), "rope_type": "default"}
    config = getattr(transformers, f"{kind}Config")(**settings)
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.15)  # far from uniform answers
            elif parameter.abs().sum() == 0:
                parameter.normal_(0.0, 0.5)  # biases of keys, which rotation must carry along
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("k_proj.bias"):
                # Where the models themselves have theirs: the slowest pair hardly tells positions apart.
                half = SHAPE["head_dim"] // 2
                parameter.view(-1, half)[:, -1] += outlier
    target = folder / name.replace(", ", "-")
    model.save_pretrained(target)
    return str(target)
