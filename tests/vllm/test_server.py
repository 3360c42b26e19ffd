"""That vLLM itself works here, and that the model is the one the embedded engine has."""
import json
from pathlib import Path

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "smollm2-tokens.json"


def test_greedy_completion(plain_server):
    answer = plain_server.complete("The capital of France is", max_tokens=4)
    assert "Paris" in answer["choices"][0]["text"]
    assert answer["usage"]["completion_tokens"] <= 4


def test_chat_takes_the_models_own_template(plain_server):
    status, answer = plain_server.post("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "What is the capital of France? One word."}],
        "max_tokens": 12, "temperature": 0})
    assert status == 200, answer
    assert "Paris" in answer["choices"][0]["message"]["content"]
    assert answer["choices"][0]["finish_reason"] == "stop", "<|im_end|> did not end the answer"


def test_token_ids_are_those_of_libllama(plain_server):
    for text, ids in json.loads(GOLDEN.read_text(encoding="utf-8")).items():
        status, answer = plain_server.post("/tokenize", {"prompt": text, "add_special_tokens": False})
        assert status == 200 and answer["tokens"] == ids, text
