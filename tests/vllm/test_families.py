"""Every family and rope type that is on the list: injection is on, exact at the same place (E1), and right
in the first layer at another (E2). And two ranks."""

from __future__ import annotations

import random

import numpy as np
import pytest
from harness import Client, capture, difference, first_layer_rows
from tiny_model import FAMILIES, make


def start(engines, name, tmp_path, **options):
    return engines.get(
        tmp_path / "data", model=make(name, tmp_path), skip_tokenizer_init=True,
        num_gpu_blocks_override=64, **options,
    )


def random_ids(count, seed):
    source = random.Random(seed)
    return [source.randrange(3, 512) for _ in range(count)]


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_family(engines, name, tmp_path):
    engine = start(engines, name, tmp_path)
    info = engine.control.get("/v1/info")
    assert info["injection"] is True, info["reason"]
    assert on_a_gpu() or engine.worker._path._in_place is not None, "this machine's layout is known"
    client = Client.of(engine)
    captured_prefix(engine, client)

    # The rows of one token in the first layer, at another position than where they were captured.
    fact = random_ids(40, 2)
    header, other = random_ids(5, 3), random_ids(201, 4)
    encoded = header + fact
    record = client.range(encoded, 5, 45, "header", "66" * 16)
    capture(engine, client, encoded, [record], client_salt="c")
    context = client.range(other, 0, 201)
    capture(engine, client, other, [context], client_salt="d")
    prompt = other + fact + random_ids(20, 5)
    injected = rows(engine, prompt, client.request(inject=[context["key"], record["key"]], client_salt="e"))
    plain_rows = rows(engine, prompt, client.request("text", client_salt="e"))
    for mine, theirs in zip(injected, plain_rows):
        assert np.abs(mine - theirs).max() <= 1e-3 * np.abs(theirs).max()
    assert engine.connector.faults.counts() == {}


@pytest.mark.parametrize("dtype, codec", [("float16", "f16"), ("bfloat16", "bf16"), ("bfloat16", "f32")])
def test_half_precision(engines, dtype, codec, tmp_path):
    """The core reads and writes the cache in place; a record serves as what was in the cache, but for one rounding."""
    engine = start(engines, "llama", tmp_path, dtype=dtype, store_codec=codec)
    info = engine.control.get("/v1/info")
    assert info["injection"] is True, info["reason"]
    assert info["cache_dtype"] == dtype and info["store_codec"] == codec
    assert on_a_gpu() or engine.worker._path._in_place is not None
    client = Client.of(engine)
    prompt = random_ids(260, 1)
    record = client.range(prompt, 0, 241)
    capture(engine, client, prompt, [record], client_salt="a")
    injected = rows(engine, prompt, client.request(inject=[record["key"]], client_salt="b"))
    plain = rows(engine, prompt, client.request("text", client_salt="b"))
    rounding = 2.0**-7 if dtype == "bfloat16" else 2.0**-10
    assert np.abs(injected[0] - plain[0]).max() <= rounding * np.abs(plain[0]).max()
    assert np.array_equal(injected[1], plain[1])
    assert engine.connector.faults.counts() == {}


@pytest.mark.parametrize("known", [True, False])
def test_a_bias_of_keys_costs_a_scaled_codec_nothing(engines, known, tmp_path, monkeypatch):
    """A head has one scale. Without the bias that its keys have, it is that of what they differ in."""
    from inferscale.vllm import key_bias

    if not known:
        monkeypatch.setattr(key_bias, "read", lambda *_: [])
    engine = start(engines, "qwen2, outliers", tmp_path, store_codec="q8")
    info = engine.control.get("/v1/info")
    assert info["injection"] is True, info["reason"]
    client = Client.of(engine)
    prompt = random_ids(260, 1)
    record = client.range(prompt, 0, 241)
    capture(engine, client, prompt, [record], client_salt="a")
    injected = rows(engine, prompt, client.request(inject=[record["key"]], client_salt="b"))[0]
    plain = rows(engine, prompt, client.request("text", client_salt="b"))[0]
    assert np.abs(plain).max() > 190
    bias = 200 * (np.arange(plain.shape[-1]) % 32 == 31)
    half_a_step = np.abs(plain - bias).max() / 127 / 2
    error = np.abs(injected - plain).max()
    assert error <= 3 * half_a_step if known else error > 5 * half_a_step
    assert engine.connector.faults.counts() == {}


def test_an_engine_that_lays_rows_out_otherwise_writes_them_itself(engines, tmp_path, monkeypatch):
    from inferscale.vllm import model, probe

    def refuse(*_):
        raise model.Refused("packed for matrix units")

    monkeypatch.setattr(probe, "check_in_place", refuse)
    engine = start(engines, "llama", tmp_path)
    assert engine.worker._path._in_place is None and engine.control.get("/v1/info")["injection"] is True
    captured_prefix(engine, Client.of(engine))
    assert engine.connector.faults.counts() == {}


def on_a_gpu():
    import torch

    return torch.cuda.is_available()


def rows(engine, prompt, request):
    """Keys and values of tokens 201 to 240 of the first layer."""
    return first_layer_rows(
        engine, 201, 241, lambda: engine.one(prompt, request, max_tokens=1, detokenize=False)
    )[1:]


def captured_prefix(engine, client):
    """The record of a prompt's first 277 tokens, which was seen to serve them as the engine itself does."""
    prompt = random_ids(300, 1)
    plain = engine.one(prompt, detokenize=False)
    wanted = client.range(prompt, 0, 277)
    capture(engine, client, prompt, [wanted], client_salt="a")
    answer = engine.one(prompt, client.request(inject=[wanted["key"]], client_salt="b"), detokenize=False)
    assert answer.injected == 277
    assert answer.tokens == plain.tokens and difference(answer, plain) <= 2e-3
    return wanted["key"]


@pytest.mark.parametrize("name", ["llama", "llama, wide"])  # one head a rank, two heads a rank
def test_two_ranks(engines, name, tmp_path):
    """Each rank has its shard of heads; a record counts when both have it, and both erase it. The answer from
    records is that of one rank."""
    prompt = random_ids(300, 1)
    alone = start(engines, name, tmp_path).one(prompt, detokenize=False)
    engine = start(engines, name, tmp_path / "two", tensor_parallel_size=2)
    info = engine.control.get("/v1/info")
    assert info["injection"] is True and info["ranks"] == 2, info["reason"]
    client = Client.of(engine)
    key = captured_prefix(engine, client)
    injected = engine.one(prompt, client.request(inject=[key], client_salt="c"), detokenize=False)
    assert injected.injected == 277
    assert injected.tokens == alone.tokens and difference(injected, alone) <= 2e-3
    receipt = engine.control.post(
        "/v1/erase", {"tenant": "acme", "user": "alice", "epoch": 2, "keys": [key]}
    )
    assert receipt["ranks"] == 2 and receipt["records"] == 1 and receipt["erased"]["host"] == 2
    stats = engine.control.get("/v1/stats")
    assert len(stats["ranks"]) == 2
