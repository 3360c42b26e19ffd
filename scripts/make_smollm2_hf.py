#!/usr/bin/env python3
"""Writes the model folder of SmolLM2-135M-Instruct that vLLM and transformers read, from its GGUF.

  make_smollm2_hf.py --gguf SmolLM2-135M-Instruct.Q4_1.gguf --out DIR    needs gguf and numpy; does nothing when DIR is there

The quantised weights become the f32 numbers they stand for, so that what runs from DIR has the weights of the embedded
engine. What comes out is checked by its SHA-256, and DIR is there whole or not at all.
"""
import argparse
import fcntl
import hashlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np

SHA256 = {
    "model.safetensors": "a672150fb4f99d7c8f4168cecdd464069c0ef3a37d8113f22ddb9d48031d03cd",
}
LIST = "SHA256SUMS"  # of all files, written last
SPECIAL = gguf.TokenType.CONTROL
# The names of the tensors outside the layers, and of those of one layer.
MODEL = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
LAYER = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
         "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


class ConversionError(Exception):
    pass


class Source:
    """A GGUF of the Llama architecture."""

    def __init__(self, path: Path):
        self.reader = gguf.GGUFReader(path)
        if self.field("general.architecture") != "llama" or self.field("tokenizer.ggml.model") != "gpt2":
            raise ConversionError(f"{path} is not a Llama with a byte-pair vocabulary")
        self.tensors = {tensor.name: tensor for tensor in self.reader.tensors}
        if "output.weight" in self.tensors:
            raise ConversionError("the output matrix is not the embedding's")
        self.layers = self.field("llama.block_count")
        self.width = self.field("llama.embedding_length")
        self.heads = self.field("llama.attention.head_count")
        self.kv_heads = self.field("llama.attention.head_count_kv")
        if self.field("llama.rope.dimension_count") != self.width // self.heads:
            raise ConversionError("a part of the head is not rotated")

    def field(self, key: str):
        if key not in self.reader.fields:
            raise ConversionError(f"the GGUF does not say {key}")
        return self.reader.fields[key].contents()


def config_of(source: Source) -> dict:
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "float32",
        "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True,
        "hidden_size": source.width, "intermediate_size": source.field("llama.feed_forward_length"),
        "num_hidden_layers": source.layers, "num_attention_heads": source.heads,
        "num_key_value_heads": source.kv_heads, "head_dim": source.width // source.heads,
        "max_position_embeddings": source.field("llama.context_length"),
        "rms_norm_eps": source.field("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": source.field("llama.rope.freq_base"), "vocab_size": source.field("llama.vocab_size"),
        "bos_token_id": source.field("tokenizer.ggml.bos_token_id"),
        "eos_token_id": source.field("tokenizer.ggml.eos_token_id"),
        "pad_token_id": source.field("tokenizer.ggml.padding_token_id"),
    }


def halves_of_pairs(matrix: np.ndarray, heads: int) -> np.ndarray:
    """The rows of a head in the order of a rotation that pairs row i with row i + half; GGUF has the pairs side by side."""
    rows, columns = matrix.shape
    return matrix.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def tensor_names(layers: int) -> dict:
    """{name in the model folder: name in the GGUF}, sorted as they are written."""
    names = {theirs: ours for ours, theirs in MODEL.items()}
    for layer in range(layers):
        names |= {f"model.layers.{layer}.{theirs}.weight": f"blk.{layer}.{ours}.weight" for ours, theirs in LAYER.items()}
    return dict(sorted(names.items()))


def weights_of(source: Source, name: str) -> np.ndarray:
    tensor = source.tensors[name]
    values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype("<f4", copy=False)
    values = values.reshape([int(size) for size in reversed(tensor.shape)])
    if name.endswith("attn_q.weight"):
        values = halves_of_pairs(values, source.heads)
    if name.endswith("attn_k.weight"):
        values = halves_of_pairs(values, source.kv_heads)
    return np.ascontiguousarray(values)


def write_weights(source: Source, out: Path) -> str:
    """Writes the safetensors file; its SHA-256."""
    names = tensor_names(source.layers)
    if set(names.values()) != set(source.tensors):
        raise ConversionError(f"other tensors than expected: {sorted(set(names.values()) ^ set(source.tensors))[:4]}")
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, ours in names.items():
        shape = [int(size) for size in reversed(source.tensors[ours].shape)]
        end = offset + 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with open(out, "wb") as file:
        for part in (len(text).to_bytes(8, "little"), text):
            file.write(part)
            digest.update(part)
        for ours in names.values():
            values = memoryview(weights_of(source, ours)).cast("B")
            file.write(values)
            digest.update(values)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def special_tokens(source: Source) -> list:
    tokens, types = source.field("tokenizer.ggml.tokens"), source.field("tokenizer.ggml.token_type")
    return [{"id": number, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
            for number, (token, kind) in enumerate(zip(tokens, types)) if kind == SPECIAL]


def tokenizer_of(source: Source) -> dict:
    """tokenizer.json: digits one by one, then the words of GPT-2, as llama.cpp's pre-tokenizer `smollm` cuts."""
    if source.field("tokenizer.ggml.pre") != "smollm":
        raise ConversionError("another pre-tokenizer than smollm")
    words = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special_tokens(source), "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, words]},
        "post_processor": None,
        "decoder": words | {"add_prefix_space": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "vocab": {token: number for number, token in enumerate(source.field("tokenizer.ggml.tokens"))},
                  "merges": source.field("tokenizer.ggml.merges")},
    }


def tokenizer_config_of(source: Source) -> dict:
    tokens = source.field("tokenizer.ggml.tokens")
    special = {f"{name}_token": tokens[source.field(f"tokenizer.ggml.{key}_token_id")]
               for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))}
    listed = [token["content"] for token in special_tokens(source)]
    return special | {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False,
                      "additional_special_tokens": listed, "model_max_length": source.field("llama.context_length"),
                      "chat_template": source.field("tokenizer.chat_template")}


def write_model(source: Source, folder: Path, expected: dict) -> None:
    sums = {"model.safetensors": write_weights(source, folder / "model.safetensors")}
    config = config_of(source)
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    for name, content in (("config.json", config), ("generation_config.json", generation),
                          ("tokenizer.json", tokenizer_of(source)),
                          ("tokenizer_config.json", tokenizer_config_of(source))):
        text = (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode()
        (folder / name).write_bytes(text)
        sums[name] = hashlib.sha256(text).hexdigest()
    for name, value in expected.items():
        if sums[name] != value:
            raise ConversionError(f"{name} came out with SHA-256 {sums[name]} instead of {value}")
    (folder / LIST).write_text("".join(f"{value}  {name}\n" for name, value in sorted(sums.items())))


def there(out: Path, expected: dict) -> bool:
    """Is the folder there, whole and as this version of the script makes it?"""
    try:
        listed = set((out / LIST).read_text().splitlines())
    except OSError:
        return False
    return listed >= {f"{value}  {name}" for name, value in expected.items()}


def make(path: Path, out: Path, expected: dict) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    with open(out.parent / f".{out.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if there(out, expected):
            return
        scratch = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
        try:
            write_model(Source(path), scratch, expected)
            scratch.chmod(0o755)
            shutil.rmtree(out, ignore_errors=True)  # of an older version of the script
            scratch.rename(out)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", type=Path, required=True, metavar="FILE")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    arguments = parser.parse_args()
    try:
        make(arguments.gguf, arguments.out, SHA256)
    except (ConversionError, OSError, ValueError) as error:
        print(f"make_smollm2_hf: {error}", file=sys.stderr)
        return 1
    print(f"SmolLM2-135M-Instruct for vLLM: {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
