"""The bias of keys, from weight files: what is taken, and what is left alone and said."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from inferscale.vllm import key_bias, model

SPEC = {"architecture": "qwen2", "shape": {"n_layers": 3, "n_kv_heads": 2, "head_dim_k": 4, "head_dim_v": 4}}


def name(layer):
    return f"model.layers.{layer}.self_attn.k_proj.bias"


def biases(dtype=torch.float32):
    return {name(layer): torch.arange(8, dtype=dtype) + 10 * layer for layer in range(3)}


def write(folder, *parts):
    """A file of each part; their paths."""
    paths = []
    for number, part in enumerate(parts):
        paths.append(str(folder / f"model-{number}.safetensors"))
        save_file(part, paths[-1])
    return paths


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_layers_are_found_in_any_file_and_order(tmp_path, dtype):
    first, second = biases(dtype), {"model.layers.0.self_attn.q_proj.bias": torch.ones(16)}
    second[name(0)] = first.pop(name(0))
    expected = [10.0 * layer + channel for layer in range(3) for channel in range(8)]
    assert key_bias.read(write(tmp_path, first, second), SPEC) == expected


def test_a_model_without_a_bias_says_nothing(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "vllm.inferscale"):
        nothing = {"model.layers.0.self_attn.k_proj.weight": torch.ones(8, 4)}
        zeros = {key: torch.zeros_like(bias) for key, bias in biases().items()}
        others = {f"vision.{key}": bias for key, bias in biases().items()}
        for part in (nothing, zeros, others):
            assert key_bias.read(write(tmp_path, part), SPEC) == []
    assert caplog.records == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda part: part.pop(name(1)), "2 of 3 layers"),
        (lambda part: part.update({name(3): torch.ones(8)}), "4 of 3 layers"),
        (lambda part: part.update({name(1): torch.ones(4)}), "layer 1"),
        (lambda part: part.update({name(1): torch.ones(2, 4)}), "layer 1"),
        (lambda part: part.update({name(1): torch.ones(8, dtype=torch.int32)}), "int32"),
        (lambda part: part.update({name(1): torch.full((8,), float("inf"))}), "not finite"),
        (lambda part: part.update({name(1): torch.full((8,), 2e4)}), "larger than 10000"),
        (lambda part: part.update({name(1).removeprefix("model."): torch.ones(8)}), "two biases"),
    ],
)
def test_what_is_not_as_expected_is_left_alone_and_said(tmp_path, caplog, change, said):
    part = biases()
    change(part)
    with caplog.at_level(logging.INFO, "vllm.inferscale"):
        assert key_bias.read(write(tmp_path, part), SPEC) == []
    assert said in caplog.text


@pytest.mark.parametrize("file", ["config.json", "model.bin", "damaged.safetensors", "gone.safetensors"])
def test_other_files_are_left_alone_and_said(tmp_path, caplog, file):
    if not file.startswith("gone"):
        (tmp_path / file).write_bytes(b"{}" * 40)
    with caplog.at_level(logging.INFO, "vllm.inferscale"):
        assert key_bias.read([str(tmp_path / file)], SPEC) == []
    assert "keys with their bias" in caplog.text


@pytest.mark.parametrize("other", ["model.layers.01", "model.layers.\u0661", "model.layers.12345"])
def test_layers_have_plain_numbers(tmp_path, other):
    part = biases() | {f"{other}.self_attn.k_proj.bias": torch.ones(8)}
    assert len(key_bias.read(write(tmp_path, part), SPEC)) == 24


@pytest.mark.parametrize(
    ("architecture", "config", "adds"),
    [
        ("qwen2", {}, True),
        ("qwen3", {"attention_bias": True}, False),  # keys are normalised behind it
        ("llama", {}, False),  # of a bias in the files vLLM takes no notice
        ("llama", {"attention_bias": True}, True),
        ("llama", {"bias": True}, True),
        ("llama", {"attention_bias": True, "qkv_bias": False}, False),
    ],
)
def test_a_bias_counts_where_vllm_adds_it(architecture, config, adds):
    settings = SimpleNamespace(model_config=SimpleNamespace(hf_text_config=SimpleNamespace(**config)))
    assert model.adds_key_bias(settings, {"architecture": architecture}) is adds


def test_the_fingerprint_says_whether_records_are_without_it():
    class Config:
        class model_config:
            dtype, quantization = torch.float16, None

    spec = SPEC | {"rope": {}}
    with_bias, without = (model.canonical_settings(Config, spec, flag) for flag in (False, True))
    assert with_bias != without and b"bias" not in with_bias
