"""The served model: is its KV something this package may touch, and its ModelSpec as a dict."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

# HuggingFace architecture -> the name that the rest of InferScale uses for the family.
ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
CACHE_DTYPES = ("float32", "float16", "bfloat16")


class Refused(Exception):
    """Injection is not possible with this model or configuration; the text says why."""


def cache_dtype(vllm_config: Any) -> str:
    """Element type of the KV cache by torch's name, e.g. ``"float32"``."""
    name = str(vllm_config.cache_config.cache_dtype)
    if name == "auto":
        return str(vllm_config.model_config.dtype).removeprefix("torch.")
    return name


def store_codec(vllm_config: Any, wanted: str) -> str:
    """The type of the records' elements; ``"auto"`` is two bytes, as the cache has them."""
    if wanted != "auto":
        return wanted
    return "bf16" if cache_dtype(vllm_config) == "bfloat16" else "f16"


def check_config(vllm_config: Any) -> None:
    """Raises Refused when the configuration is not one that injection was proved for."""
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    transfer = vllm_config.kv_transfer_config
    dtype = cache_dtype(vllm_config)
    checks = (
        (model.use_mla, "the model's attention is MLA, which keeps no keys and values"),
        (getattr(model, "is_encoder_decoder", False), "the model is an encoder-decoder"),
        (model.runner_type == "pooling", "the model generates no tokens"),
        (vllm_config.lora_config is not None, "LoRA adapters are enabled"),
        (vllm_config.speculative_config is not None, "speculative decoding is enabled"),
        (parallel.pipeline_parallel_size > 1, "pipeline parallelism is not supported"),
        (parallel.data_parallel_size > 1, "data parallelism needs an engine of its own per replica"),
        (
            getattr(parallel, "decode_context_parallel_size", 1) > 1
            or getattr(parallel, "prefill_context_parallel_size", 1) > 1,
            "context parallelism is not supported",
        ),
        (
            dtype not in CACHE_DTYPES,
            f"the KV cache is {dtype}; supported are {', '.join(CACHE_DTYPES)}",
        ),
        (
            getattr(transfer, "kv_load_failure_policy", "fail") != "fail",
            "kv_load_failure_policy must be \"fail\": no other was proved right on this version",
        ),
        (transfer.kv_role != "kv_both", f"kv_role must be kv_both, not {transfer.kv_role}"),
    )
    for refused, reason in checks:
        if refused:
            raise Refused(reason)
    check_groups(vllm_config)


def check_groups(vllm_config: Any) -> None:
    """Raises Refused for windowed, hybrid or recurrent models, by their configuration."""
    config = vllm_config.model_config.hf_text_config
    if getattr(config, "use_sliding_window", True) and getattr(config, "sliding_window", None):
        raise Refused("the model attends through a sliding window")
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise Refused(f"the model mixes attention kinds ({', '.join(sorted(kinds))})")


def check_cache_config(kv_cache_config: Any) -> int:
    """The block size in tokens. Raises Refused unless there is one group of full attention."""
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        raise Refused(f"the model has {len(groups)} KV cache groups; supported is one")
    spec = groups[0].kv_cache_spec
    if type(spec).__name__ != "FullAttentionSpec":
        raise Refused(f"the model's KV cache is {type(spec).__name__}, not full attention")
    if spec.sliding_window is not None or spec.attention_chunk_size is not None:
        raise Refused("the model attends through a sliding window or in chunks")
    if getattr(spec, "non_causal", False):
        raise Refused("the model attends to later tokens")
    if getattr(spec, "head_size_v", spec.head_size) != spec.head_size:
        raise Refused("keys and values have different sizes")
    return int(spec.block_size)


def weight_files(vllm_config: Any) -> list[str]:
    """The local weight files, sorted by name. Raises Refused when there are none."""
    model = vllm_config.model_config
    if str(vllm_config.load_config.load_format) == "dummy":
        raise Refused("dummy weights have no fingerprint")
    directory = Path(str(model.model))
    if directory.is_file():
        return [str(directory)]
    if not directory.is_dir():
        directory = _downloaded(str(model.model), model.revision)
    for pattern in ("*.safetensors", "*.bin", "*.pt"):
        files = sorted(str(path) for path in directory.glob(pattern))
        if files:
            return files
    raise Refused(f"no weight files in {directory}, so the model has no fingerprint")


def _downloaded(name: str, revision: str | None) -> Path:
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(name, revision=revision, local_files_only=True))
    except Exception as error:
        raise Refused(f"the weight files of {name} are not on this machine: {error}") from error


def spec_dict(vllm_config: Any) -> dict[str, Any]:
    """What ``_core.ModelSpec.from_dict`` takes, without its fingerprint. Raises Refused.

    The shape is the whole model's: all KV heads of all ranks.
    """
    model = vllm_config.model_config
    config = model.hf_text_config
    names = list(getattr(model.hf_config, "architectures", None) or [])
    family = next((ARCHITECTURES[name] for name in names if name in ARCHITECTURES), None)
    if family is None:
        raise Refused(
            f"{', '.join(names) or 'the model'} is not supported; supported are "
            f"{', '.join(ARCHITECTURES)}"
        )
    head_dim = int(model.get_head_size())
    return {
        "architecture": family,
        "shape": {
            "n_layers": int(config.num_hidden_layers),
            "n_kv_heads": int(model.get_total_num_kv_heads()),
            "head_dim_k": head_dim,
            "head_dim_v": head_dim,
        },
        "rope": rope_dict(config, head_dim),
        "trained_positions": int(config.max_position_embeddings),
        "vocab_size": int(config.vocab_size),
    }


def rope_dict(config: Any, head_dim: int) -> dict[str, Any]:
    """The RopeSpec of a HuggingFace text configuration. Raises Refused for what is not listed."""
    raw = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    rope = dict(raw)
    kind = rope.get("rope_type", rope.get("type", "default"))
    base = rope.get("rope_theta", getattr(config, "rope_theta", 10000.0))
    partial = rope.get("partial_rotary_factor", getattr(config, "partial_rotary_factor", 1.0))
    rotary = int(head_dim * partial)
    spec: dict[str, Any] = {
        "pairing": "halves",
        "scaling": "none",
        "freq_base": float(base),
        "rotary_dim": rotary,
    }
    if kind == "default":
        return spec
    factor = float(rope.get("factor", 1.0))
    original = int(rope.get("original_max_position_embeddings", 0))
    if kind == "linear":
        return spec | {"scaling": "linear", "scaling_factor": factor}
    if kind == "llama3":
        factors = _llama3_factors(
            float(base), rotary, factor, float(rope["low_freq_factor"]),
            float(rope["high_freq_factor"]), original,
        )
        return spec | {"scaling": "llama3", "freq_factors": factors}
    if kind == "yarn" and not (rope.get("mscale") or rope.get("mscale_all_dim")):
        correction = 1.0 + 0.1 * math.log(factor) if factor > 1.0 else 1.0
        attention = rope.get("attention_factor")
        return spec | {
            "scaling": "yarn",
            "scaling_factor": factor,
            "yarn_ext_factor": 1.0,
            "yarn_attn_factor": 1.0 if attention is None else float(attention) / correction,
            "yarn_beta_fast": float(rope.get("beta_fast", 32)),
            "yarn_beta_slow": float(rope.get("beta_slow", 1)),
            "original_context": original or int(config.max_position_embeddings),
        }
    raise Refused(f"rope type {kind!r} is not supported; supported are default, linear, llama3, yarn")


def _llama3_factors(
    base: float, rotary: int, factor: float, low: float, high: float, original: int
) -> list[float]:
    """By how much llama3's scaling slows each pair down."""
    factors = []
    for pair in range(rotary // 2):
        wavelength = 2 * math.pi * base ** (2 * pair / rotary)
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1.0 / ((1.0 - smooth) / factor + smooth))
    return factors


def adds_key_bias(vllm_config: Any, spec: dict[str, Any]) -> bool:
    """Whether vLLM adds a bias to the model's keys and rotates the sum as it is. A file may hold one that vLLM
    ignores, as its class of the model does not have it; Qwen3 normalises keys behind it."""
    config = vllm_config.model_config.hf_text_config
    if spec["architecture"] in ("qwen2", "qwen3"):
        return bool(spec["architecture"] == "qwen2")
    bias = getattr(config, "attention_bias", False) or getattr(config, "bias", False)
    return bool(getattr(config, "qkv_bias", bias))


def canonical_settings(vllm_config: Any, spec: dict[str, Any], without_bias: bool) -> bytes:
    """What besides the weights decides the KV, and whether records hold keys without the model's bias: those of
    before that was known hold them with it. Part of the fingerprint."""
    model = vllm_config.model_config
    settings = {
        "architecture": spec["architecture"],
        "shape": spec["shape"],
        "rope": spec["rope"],
        "dtype": str(model.dtype),
        "quantization": str(model.quantization),
    }
    if without_bias:
        settings["keys"] = "without bias 1"
    return json.dumps(settings, sort_keys=True).encode()
