"""A real server over HTTP, engine and worker in processes of their own."""

from __future__ import annotations

import json
import os
import urllib.request

import pytest
from harness import ALICE, FACTS, HEADER, Client, Control
from transformers import AutoTokenizer

SYSTEM_TEXT = "You are a helpful assistant with a good memory."
MEMORY = "This is what you remember:\n"


class Server:
    """A server with the connector, and its control channel."""

    def __init__(self, server, data_dir):
        self.server, self.data_dir, self.url = server, data_dir, server.url
        self.control = Control(data_dir)

    def post(self, path, body):
        status, answer = self.server.post(path, body)
        assert status == 200, answer
        return answer


@pytest.fixture(scope="module")
def server(engines, start_server, tmp_path_factory):
    engines.close()  # two at once would share the processors
    data_dir = tmp_path_factory.mktemp("server")
    extra = {"data_dir": str(data_dir), "store_codec": "f32", "host_budget": "256MiB", "disk_budget": "1GiB"}
    transfer = {"kv_connector": "InferScaleConnector", "kv_connector_module_path": "inferscale.vllm",
                "kv_role": "kv_both", "kv_connector_extra_config": extra}
    return Server(start_server("memory", {"--kv-transfer-config": json.dumps(transfer)}), data_dir)


@pytest.fixture(scope="module")
def tokenizer(model_folder):
    return AutoTokenizer.from_pretrained(model_folder)


@pytest.fixture(params=["object", "text"])
def form(request):
    """How parameters are sent."""
    return {"object": lambda params: params, "text": json.dumps}[request.param]


@pytest.fixture(scope="module")
def client(server):
    secret = (server.data_dir / "secret").read_bytes()
    return Client(secret, server.control.get("/v1/info")["fingerprint"], dict(ALICE))


def complete(server, prompt, request=None, **fields):
    body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "logprobs": 5, "ignore_eos": True} | fields
    if request is not None:
        body |= {"kv_transfer_params": {"inferscale": request["params"]}, "cache_salt": request["salt"]}
    return server.post("/v1/completions", body)


def test_info(server):
    info = server.control.get("/v1/info")
    assert info["injection"] is True, info["reason"]
    mode = os.stat(server.data_dir / "control.json").st_mode & 0o777
    assert mode == 0o600


def test_completions(server, client, tokenizer, form):
    prompt = tokenizer.encode(HEADER + "".join(FACTS), add_special_tokens=False)
    wanted = client.range(prompt, 0, len(prompt) - 3)
    complete(server, prompt, client.request("encode", context="header", capture=[wanted]), max_tokens=1)
    assert server.control.post("/v1/ready", ALICE_KEYS([wanted["key"]]))["ready"] == [True]
    plain = complete(server, prompt)
    request = client.request(inject=[wanted["key"]], client_salt=form.__name__)
    injected = complete(server, prompt, request | {"params": form(request["params"])})
    assert injected["kv_transfer_params"]["inferscale"]["injected"] == len(prompt) - 3
    assert injected["choices"][0]["text"] == plain["choices"][0]["text"]
    mine, theirs = (a["choices"][0]["logprobs"]["token_logprobs"] for a in (injected, plain))
    assert max(abs(a - b) for a, b in zip(mine, theirs)) <= 1e-3


def ALICE_KEYS(keys):  # noqa: N802 - reads as a constant
    return {"tenant": "acme", "user": "alice", "keys": keys}


def chat_prompt(tokenizer, messages):
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)


def find(prompt, tokens):
    for at in range(len(prompt) - len(tokens) + 1):
        if prompt[at : at + len(tokens)] == tokens:
            return at
    raise AssertionError("not a part of the prompt")


def test_chat_completions_find_their_facts_in_the_messages(server, client, tokenizer):
    """Facts stand as text in an ordinary message; vLLM's own template and tokenizer make the ids."""
    question = "\nIn which town was Anna born?"
    messages = [
        {"role": "system", "content": SYSTEM_TEXT},
        {"role": "user", "content": MEMORY + FACTS[0] + FACTS[2] + question},
    ]
    prompt = chat_prompt(tokenizer, messages)
    facts = [tokenizer.encode(fact, add_special_tokens=False) for fact in (FACTS[0], FACTS[2])]
    begin = find(prompt, facts[0] + facts[1])
    header = prompt[:begin]
    ranges = [client.range(prompt, 0, begin, owner="system")]
    for fact in facts:
        encoded = header + fact
        ranges.append(client.range(encoded, len(header), len(encoded), "header", "44" * 16))
    complete(
        server, header + facts[0], client.request("encode", context="header", capture=ranges[:2]),
        max_tokens=1,
    )
    complete(
        server, header + facts[1], client.request("encode", context="header", capture=[ranges[2]]),
        max_tokens=1,
    )
    keys = [entry["key"] for entry in ranges]
    assert server.control.post("/v1/ready", ALICE_KEYS(keys))["ready"] == [True] * 3
    request = client.request(inject=keys, client_salt="chat")
    body = {
        "messages": messages, "max_tokens": 12, "temperature": 0, "cache_salt": request["salt"],
        "kv_transfer_params": {"inferscale": request["params"]},
    }
    answer = server.post("/v1/chat/completions", body)
    trace = answer["kv_transfer_params"]["inferscale"]
    assert trace["injected"] == begin + len(facts[0]) + len(facts[1])
    assert "Velden" in answer["choices"][0]["message"]["content"]
    # A streamed reply carries no parameters: the trace is asked for.
    request = client.request(inject=keys, client_salt="streamed")
    body |= {"stream": True, "cache_salt": request["salt"],
             "kv_transfer_params": {"inferscale": request["params"]}}
    assert "data: [DONE]" in server.post("/v1/chat/completions", body)
    streamed = server.control.get(f"/v1/trace?request={request['name']}")
    assert streamed["injected"] == trace["injected"] and streamed["finished"]


def test_erase_while_the_engine_is_idle(server, client, tokenizer):
    prompt = tokenizer.encode(HEADER + "".join(FACTS), add_special_tokens=False)
    wanted = client.range(prompt, 0, 77)
    complete(server, prompt, client.request("encode", context="header", capture=[wanted]), max_tokens=1)
    assert server.control.post("/v1/ready", ALICE_KEYS([wanted["key"]])) == {"epoch": 1, "ready": [True]}
    receipt = server.control.post("/v1/erase", ALICE_KEYS([wanted["key"]]) | {"epoch": 2})
    assert receipt["epoch"] == 2 and receipt["records"] == 1 and receipt["erased"]["disk"] == 1
    assert server.control.post("/v1/ready", ALICE_KEYS([wanted["key"]])) == {"epoch": 2, "ready": [False]}
    assert server.control.call("POST", "/v1/erase", ALICE_KEYS([wanted["key"]]) | {"epoch": 1})[0] == 409
    client.epoch = 2
    again = complete(server, prompt, client.request(inject=[wanted["key"]]))
    assert again["kv_transfer_params"]["inferscale"]["fallbacks"] == [{"reason": "record_missing", "count": 1}]


def test_a_wrong_signature_is_served_as_text(server, client, tokenizer, form):
    prompt = tokenizer.encode("Hello there, how are you?", add_special_tokens=False)
    request = client.request(inject=["ab" * 16])
    request["params"]["signature"] = "0" * 64
    answer = complete(server, prompt, request | {"params": form(request["params"])})
    assert answer["kv_transfer_params"]["inferscale"]["fallbacks"] == [{"reason": "not_signed", "count": 1}]
    assert len(answer["choices"][0]["text"]) > 0


@pytest.mark.parametrize("name", ["inferscale", "other"])
def test_deeply_nested_parameters_end_nothing(server, tokenizer, name):
    prompt = tokenizer.encode("Hello there, how are you?", add_special_tokens=False)
    nested: list = []
    for _ in range(400):
        nested = [nested]
    answer = server.post("/v1/completions", {
        "prompt": prompt, "max_tokens": 2, "ignore_eos": True, "kv_transfer_params": {name: nested},
    })
    if name == "inferscale":
        assert answer["kv_transfer_params"]["inferscale"]["fallbacks"] == [{"reason": "malformed", "count": 1}]
    assert answer["usage"]["completion_tokens"] == 2
    assert complete(server, prompt)["usage"]["completion_tokens"] == 8, "the engine goes on"


def test_control_needs_its_token(server):
    assert server.control.call("GET", "/v1/info", token="0" * 64)[0] == 401
    assert server.control.call("GET", "/v1/nothing")[0] == 404
    assert server.control.call("GET", "/v1/trace?request=nobody")[0] == 404
    assert server.control.call("POST", "/v1/erase", {"tenant": "acme", "user": "x"})[0] == 400


def test_verify_and_stats(server):
    answer = server.control.post("/v1/verify", {})
    assert answer["ranks"][0]["corrupt"] == [] and answer["ranks"][0]["records"] > 0
    assert server.control.get("/v1/stats")["counters"]["injected_tokens"] > 0


def test_metrics(server):
    text = urllib.request.urlopen(server.url + "/metrics", timeout=30).read().decode()
    lines = {line.split("{")[0]: float(line.rsplit(" ", 1)[1])
             for line in text.splitlines() if line.startswith("vllm:inferscale_")}
    assert lines["vllm:inferscale_injected_tokens_total"] > 0
    assert lines["vllm:inferscale_captures_total"] > 0
    assert lines["vllm:inferscale_load_seconds_count"] > 0
    assert 'vllm:inferscale_fallbacks_total{' in text and 'reason="not_signed"' in text


def test_the_server_lives(server):
    assert server.server.alive()
