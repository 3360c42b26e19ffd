#!/usr/bin/env python3
"""Tests of make_smollm2_hf.py on a made-up model of two layers. Needs gguf and numpy."""
import json
import sys
import tempfile
import unittest
from pathlib import Path

import gguf
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import make_smollm2_hf as tool

LAYERS, HEADS, KV_HEADS, HEAD, INNER = 2, 4, 2, 8, 64
WIDTH = HEADS * HEAD
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "Ġ", "ab"]


def side_by_side(matrix: np.ndarray, heads: int) -> np.ndarray:
    """Rows as a GGUF has them: row i of a head and row i + half of it become rows 2i and 2i + 1."""
    out, head = np.empty_like(matrix), len(matrix) // heads
    for start in range(0, len(matrix), head):
        for i in range(head // 2):
            out[start + 2 * i] = matrix[start + i]
            out[start + 2 * i + 1] = matrix[start + i + head // 2]
    return out


def read_safetensors(path: Path) -> dict:
    content = path.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    assert header.pop("__metadata__") == {"format": "pt"}
    tensors, end = {}, begin
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        assert entry["dtype"] == "F32" and begin + first == end
        end = begin + last
        tensors[name] = np.frombuffer(content[begin + first:end], "<f4").reshape(entry["shape"])
    assert end == len(content)
    return tensors


class Conversion(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.gguf, self.out = Path(scratch.name, "model.gguf"), Path(scratch.name, "out", "model-hf")
        random = np.random.default_rng(3)
        shapes = {"token_embd": (len(TOKENS), WIDTH), "output_norm": (WIDTH,)}
        for layer in range(LAYERS):
            shapes |= {f"blk.{layer}.{name}": shape for name, shape in {
                "attn_norm": (WIDTH,), "attn_q": (WIDTH, WIDTH), "attn_k": (KV_HEADS * HEAD, WIDTH),
                "attn_v": (KV_HEADS * HEAD, WIDTH), "attn_output": (WIDTH, WIDTH), "ffn_norm": (WIDTH,),
                "ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH), "ffn_down": (WIDTH, INNER)}.items()}
        self.tensors = {f"{name}.weight": random.standard_normal(shape).astype("<f4") for name, shape in shapes.items()}

    def write(self, pre="smollm", quantised=()) -> None:
        writer = gguf.GGUFWriter(self.gguf, "llama")
        writer.add_context_length(128)
        writer.add_embedding_length(WIDTH)
        writer.add_block_count(LAYERS)
        writer.add_feed_forward_length(INNER)
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(KV_HEADS)
        writer.add_rope_dimension_count(HEAD)
        writer.add_rope_freq_base(10000.0)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_vocab_size(len(TOKENS))
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(TOKENS)
        writer.add_token_types([3, 3, 3, 1, 1, 1, 1])
        writer.add_token_merges(["a b"])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)
        writer.add_pad_token_id(2)
        writer.add_chat_template("{{ messages }}")
        for name, values in self.tensors.items():
            heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(name.split(".")[-2])
            values = side_by_side(values, heads) if heads else values
            if name in quantised:
                kind = gguf.GGMLQuantizationType.Q4_1
                writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
            else:
                writer.add_tensor(name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def convert(self, expected=None) -> dict:
        tool.make(self.gguf, self.out, expected or {})
        return read_safetensors(self.out / "model.safetensors")

    def test_weights(self):
        self.write()
        written = self.convert()
        self.assertEqual(len(written), 2 + 9 * LAYERS)
        for name, source in (("model.embed_tokens.weight", "token_embd"), ("model.norm.weight", "output_norm"),
                             ("model.layers.1.self_attn.q_proj.weight", "blk.1.attn_q"),
                             ("model.layers.0.self_attn.k_proj.weight", "blk.0.attn_k"),
                             ("model.layers.0.self_attn.v_proj.weight", "blk.0.attn_v"),
                             ("model.layers.1.mlp.down_proj.weight", "blk.1.ffn_down")):
            np.testing.assert_array_equal(written[name], self.tensors[f"{source}.weight"], name)

    def test_quantised_weights_become_what_they_stand_for(self):
        self.write(quantised=("blk.0.attn_q.weight",))
        got, wanted = self.convert()["model.layers.0.self_attn.q_proj.weight"], self.tensors["blk.0.attn_q.weight"]
        self.assertLess(np.abs(got - wanted).max(), 0.25)
        self.assertGreater(np.abs(got - wanted).max(), 0)

    def test_configuration(self):
        self.write()
        self.convert()
        config = json.loads((self.out / "config.json").read_text())
        self.assertEqual((config["num_hidden_layers"], config["num_attention_heads"], config["num_key_value_heads"],
                          config["head_dim"], config["hidden_size"], config["intermediate_size"]),
                         (LAYERS, HEADS, KV_HEADS, HEAD, WIDTH, INNER))
        self.assertEqual((config["rope_theta"], config["vocab_size"], config["eos_token_id"]), (10000.0, len(TOKENS), 2))
        tokenizer = json.loads((self.out / "tokenizer.json").read_text())
        self.assertEqual([token["content"] for token in tokenizer["added_tokens"]], TOKENS[:3])
        self.assertEqual(tokenizer["model"]["vocab"]["ab"], 6)
        self.assertEqual(json.loads((self.out / "tokenizer_config.json").read_text())["eos_token"], "<|im_end|>")

    def test_same_bytes_again_and_content_is_pinned(self):
        self.write()
        self.convert()
        sums = dict(reversed(line.split("  ")) for line in (self.out / tool.LIST).read_text().splitlines())
        before = (self.out / tool.LIST).stat().st_mtime_ns
        pinned = {"model.safetensors": sums["model.safetensors"]}
        self.convert(pinned)
        self.assertEqual((self.out / tool.LIST).stat().st_mtime_ns, before, "made again although it was there")
        self.tensors["output_norm.weight"][0] += 1
        self.write()
        (self.out / tool.LIST).unlink()
        with self.assertRaisesRegex(tool.ConversionError, "SHA-256"):
            self.convert(pinned)
        self.convert({"config.json": sums["config.json"]})
        self.assertEqual(sorted(path.name for path in self.out.parent.iterdir()), [".model-hf.lock", "model-hf"])

    def test_another_model(self):
        self.write(pre="qwen2")
        with self.assertRaisesRegex(tool.ConversionError, "smollm"):
            self.convert()
        self.tensors["blk.1.attn_q.bias"] = np.zeros(WIDTH, "<f4")
        self.write()
        with self.assertRaisesRegex(tool.ConversionError, "attn_q.bias"):
            self.convert()
        self.assertFalse(self.out.exists())


if __name__ == "__main__":
    unittest.main()
