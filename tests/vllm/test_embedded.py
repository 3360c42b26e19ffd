"""Facts encoded apart: vLLM's composition of them says what the embedded engine's says, both with f32 weights."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from harness import FACTS, HEADER, QUESTION, Client, capture, encode_fact

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("INFERSCALE_BIN", ROOT / "build" / "release" / "bin"))
MODELS = Path(os.environ.get("INFERSCALE_CACHE", Path.home() / ".cache" / "inferscale")) / "models"
SAME = 1e-3  # nats, of the whole distribution
ORDERS = [[0, 1, 2, 3, 4, 5], [5, 3, 1, 0, 2, 4], [2, 0]]


@pytest.fixture(scope="module")
def f32_model() -> Path:
    """The same weights as the model folder's, as the f32 numbers they stand for."""
    target = MODELS / "SmolLM2-135M-Instruct.F32.gguf"
    if not target.exists():
        part = target.with_suffix(f".{os.getpid()}")
        source = MODELS / "SmolLM2-135M-Instruct.Q4_1.gguf"
        subprocess.run([BIN / "requantize_gguf", source, part, "f32"], check=True, capture_output=True)
        part.rename(target)
    return target


def kl(p: np.ndarray, q: np.ndarray) -> float:
    """KL of q from p, both log-probabilities of all tokens."""
    return float(np.sum(np.exp(p) * (p - q)))


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: "-".join(map(str, order)))
def test_the_same_distribution(engines, engine, f32_model, order):
    client = Client.of(engine, {"tenant": "acme", "user": "embedded", "agent": "", "run": ""})
    header, question = engine.ids(HEADER), engine.ids(QUESTION)
    facts = [engine.ids(fact) for fact in FACTS]
    start = client.range(header, 0, len(header))
    capture(engine, client, header + facts[0], [start])
    keys = [encode_fact(engine, client, header, fact) for fact in facts]
    wanted = [facts[i] for i in order]
    told = json.dumps({"header": header, "facts": wanted, "question": question})
    done = subprocess.run([BIN / "embedded_distribution", f32_model], input=told, capture_output=True, text=True,
                          timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    embedded = json.loads(done.stdout)
    prompt = header + [token for fact in wanted for token in fact] + question
    assert embedded["tokens_injected"] == len(prompt) - len(question)

    def ask(**fields) -> np.ndarray:
        answer = engine.one(prompt, client.request(**fields), max_tokens=1, logprobs=-1)
        expected = len(prompt) - len(question) if fields.get("inject") else 0
        assert answer.injected + answer.reply["local_hit"] * bool(expected) == expected, answer.reply
        row = np.full(len(embedded["text"]), -np.inf)
        for token, value in answer.steps[0].items():
            if token < len(row):
                row[token] = value
        return row

    injected = ask(inject=[start["key"], *(keys[i] for i in order)])
    text = ask(purpose="text")
    theirs, theirs_text = np.array(embedded["injected"]), np.array(embedded["text"])
    apart = kl(theirs_text, theirs)
    assert kl(theirs_text, text) <= SAME, "the two engines differ already on text"
    assert kl(theirs, injected) <= SAME
    assert apart > 10 * SAME, "composition is not what is compared: it makes no difference here"
