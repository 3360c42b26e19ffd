"""The shapes of public models, as configuration only: the weights are random.

  python shapes.py SHAPE FOLDER --tokenizer MODEL

makes a folder that a server can load: random weights in files, by which the connector knows a model, and the tokeniser of
the folder MODEL, whose number of words it has. Shapes of Llama and Mistral.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_COMMON = {
    "hidden_act": "silu", "torch_dtype": "bfloat16", "tie_word_embeddings": False, "bos_token_id": 1,
    "eos_token_id": 2, "attention_dropout": 0.0, "initializer_range": 0.02, "use_cache": True,
}
SHAPES: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": _COMMON | {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131072, "rope_theta": 500000.0, "attention_bias": False,
        "mlp_bias": False,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "qwen2.5-7b": _COMMON | {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 3584,
        "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
        "num_key_value_heads": 4, "vocab_size": 152064, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 32768, "rope_theta": 1000000.0, "use_sliding_window": False,
    },
    "mistral-7b": _COMMON | {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 32768, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 32768, "rope_theta": 1000000.0, "sliding_window": None,
    },
    "smollm2-135m": _COMMON | {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576,
        "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
        "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49152, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8192, "rope_theta": 100000.0, "attention_bias": False,
        "mlp_bias": False, "tie_word_embeddings": True,
    },
    # For trying the scripts out on a CPU.
    "tiny": _COMMON | {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256,
        "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 4096, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096, "rope_theta": 10000.0, "attention_bias": False,
        "mlp_bias": False,
    },
}


def write_shape(name: str, folder: Path) -> Path:
    """A model folder with a configuration and nothing else."""
    target = folder / name
    target.mkdir(parents=True, exist_ok=True)
    (target / "config.json").write_text(json.dumps(SHAPES[name], indent=1))
    return target


def _matrices(shape: dict[str, Any]) -> Iterator[tuple[str, dict[str, tuple[int, ...]]]]:
    """For each file its tensors with their sizes, under the names that transformers gives them."""
    hidden, inner, words = (shape[key] for key in ("hidden_size", "intermediate_size", "vocab_size"))
    width = shape.get("head_dim", hidden // shape["num_attention_heads"])
    queries, keys = shape["num_attention_heads"] * width, shape["num_key_value_heads"] * width
    yield "rest", {"model.embed_tokens.weight": (words, hidden), "lm_head.weight": (words, hidden), "model.norm.weight": (hidden,)}
    for layer in range(shape["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        yield f"layer-{layer:03}", {
            at + "input_layernorm.weight": (hidden,), at + "post_attention_layernorm.weight": (hidden,),
            at + "self_attn.q_proj.weight": (queries, hidden), at + "self_attn.k_proj.weight": (keys, hidden),
            at + "self_attn.v_proj.weight": (keys, hidden), at + "self_attn.o_proj.weight": (hidden, queries),
            at + "mlp.gate_proj.weight": (inner, hidden), at + "mlp.up_proj.weight": (inner, hidden),
            at + "mlp.down_proj.weight": (hidden, inner),
        }


def write_model(name: str, folder: Path, tokenizer: Path) -> None:
    import torch
    from safetensors.torch import save_file

    shape = SHAPES[name] | {"vocab_size": json.loads((tokenizer / "config.json").read_text())["vocab_size"]}
    if shape["model_type"] not in ("llama", "mistral"):
        raise SystemExit(f"{name}: shapes of Llama and Mistral only")
    folder.mkdir(parents=True, exist_ok=True)
    for file in tokenizer.iterdir():
        if file.name.startswith(("tokenizer", "special_tokens", "generation_config", "vocab", "merges", "chat_template")):
            shutil.copy(file, folder)
    (folder / "config.json").write_text(json.dumps(shape, indent=1))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    for part, tensors in _matrices(shape):
        made = {
            tensor: torch.ones(size, dtype=torch.bfloat16) if len(size) == 1
            else torch.empty(size, dtype=torch.bfloat16, device=device).normal_(0.0, 0.02).cpu()
            for tensor, size in tensors.items()
        }
        save_file(made, folder / f"{part}.safetensors", {"format": "pt"})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True)
    options = parser.parse_args()
    write_model(options.shape, options.folder, options.tokenizer)
