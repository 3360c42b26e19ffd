"""An engine in this process, a client that signs, and what is compared in the tests."""

from __future__ import annotations

import gc
import itertools
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from inferscale import _core

ALICE = {"tenant": "acme", "user": "alice", "agent": "", "run": ""}
BOB = {"tenant": "acme", "user": "bob", "agent": "", "run": ""}
ACME = {"tenant": "acme", "user": "", "agent": "", "run": ""}
SYSTEM = {"tenant": "", "user": "", "agent": "", "run": ""}
NO_CONTEXT = "00" * 16
BLOCK = 32  # tokens, of the engines made here

HEADER = (
    "<|im_start|>system\nYou are a helpful assistant with a good memory.<|im_end|>\n"
    "<|im_start|>user\nThis is what you remember:\n"
)
FACTS = [
    "- Anna was born in the small town of Velden in the year 1983.\n",
    "- Anna's brother is called Tobias and works as a carpenter in Graz.\n",
    "- Anna has a grey cat with the name Minka, who is eleven years old.\n",
    "- Anna plays the cello in the orchestra of her town every Thursday evening.\n",
    "- Anna drinks her coffee black and never eats mushrooms.\n",
    "- Anna moved to Lisbon in March because of a new job at a library.\n",
]
QUESTION = "\nIn which town was Anna born? Answer with its name.<|im_end|>\n<|im_start|>assistant\n"


@dataclass
class Answer:
    """What came back: sampled ids, the best log-probabilities of each step, the reply's trace."""

    tokens: list[int]
    steps: list[dict[int, float]]
    reply: dict[str, Any]
    cached: int
    finish: str | None

    @property
    def injected(self) -> int:
        return self.reply.get("injected", 0)

    @property
    def fallbacks(self) -> dict[str, int]:
        return {entry["reason"]: entry["count"] for entry in self.reply.get("fallbacks", [])}


def difference(one: Answer, other: Answer) -> float:
    """Largest difference of the log-probabilities that both list, over the steps up to where they part."""
    worst = 0.0
    for mine, theirs, a, b in zip(one.steps, other.steps, one.tokens, other.tokens):
        shared = set(mine) & set(theirs)
        assert shared, "two answers share none of their best tokens"
        worst = max(worst, max(abs(mine[t] - theirs[t]) for t in shared))
        if a != b:
            break
    return worst


class Engine:
    """A vLLM engine in this process (VLLM_ENABLE_V1_MULTIPROCESSING=0), with our connector."""

    def __init__(self, model: str, data_dir: Path, connector: bool = True, **options: Any) -> None:
        os.environ.update(
            VLLM_ENABLE_V1_MULTIPROCESSING="0", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1",
            DO_NOT_TRACK="1", VLLM_HOST_IP="127.0.0.1", VLLM_CPU_OMP_THREADS_BIND="nobind",
        )
        from vllm import LLM
        from vllm.config import KVTransferConfig

        extra = {
            "data_dir": str(data_dir), "store_codec": options.pop("store_codec", "f32"),
            "host_budget": options.pop("host_budget", "512MiB"),
            "disk_budget": options.pop("disk_budget", "2GiB"),
        }
        if "verify_rate" in options:
            extra["verify_rate"] = options.pop("verify_rate")
        transfer = dict(options.pop("transfer", {}))
        settings: dict[str, Any] = {
            "model": model, "dtype": "float32", "enforce_eager": True, "seed": 0,
            "max_model_len": 1024, "max_num_batched_tokens": 1024, "block_size": BLOCK,
            "num_gpu_blocks_override": 256, "kv_cache_memory_bytes": 768 << 20,
            "enable_prefix_caching": True, "disable_log_stats": False, "max_logprobs": -1,
        } | options
        if connector:
            settings["kv_transfer_config"] = KVTransferConfig(
                kv_connector="InferScaleConnector", kv_connector_module_path="inferscale.vllm",
                kv_role="kv_both", kv_connector_extra_config=extra, **transfer,
            )
        self.data_dir = data_dir
        self.llm = LLM(**settings)
        self.tokenizer = None if options.get("skip_tokenizer_init") else self.llm.get_tokenizer()
        self.control = Control(data_dir) if connector else None
        self.names = itertools.count()

    @property
    def scheduler(self) -> Any:
        return self.llm.llm_engine.engine_core.engine_core.scheduler

    @property
    def connector(self) -> Any:
        return self.scheduler.connector

    @property
    def side(self) -> Any:
        return self.connector._scheduler

    @property
    def worker(self) -> Any:
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return get_kv_transfer_group()._worker

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def generate(self, requests: list[tuple[list[int], dict[str, Any]]], **sampling: Any) -> list[Answer]:
        """Each request: prompt ids, and {"params": signed object, "salt": text} or nothing."""
        from vllm import SamplingParams

        prompts, settings = [], []
        for ids, extra in requests:
            prompt: dict[str, Any] = {"prompt_token_ids": ids}
            if extra.get("salt"):
                prompt["cache_salt"] = extra["salt"]
            prompts.append(prompt)
            arguments = {"temperature": 0.0, "max_tokens": 8, "logprobs": 5, "ignore_eos": True}
            arguments |= sampling
            if extra.get("params") is not None:
                arguments["extra_args"] = {"kv_transfer_params": {"inferscale": extra["params"]}}
            settings.append(SamplingParams(**arguments))
        return [_answer(output) for output in self.llm.generate(prompts, settings, use_tqdm=False)]

    def one(self, ids: list[int], extra: dict[str, Any] | None = None, **sampling: Any) -> Answer:
        return self.generate([(ids, extra or {})], **sampling)[0]

    def close(self) -> None:
        """Ends the engine, so that another can start in this process."""
        from vllm.distributed import cleanup_dist_env_and_memory
        from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown, has_kv_transfer_group

        self.scheduler.shutdown()
        if has_kv_transfer_group():
            ensure_kv_transfer_shutdown()
        self.llm.llm_engine.engine_core.shutdown()
        del self.llm
        gc.collect()
        cleanup_dist_env_and_memory()


def _answer(output: Any) -> Answer:
    first = output.outputs[0]
    steps = [{t: entry.logprob for t, entry in step.items()} for step in first.logprobs or []]
    reply = (output.kv_transfer_params or {}).get("inferscale", {})
    return Answer(list(first.token_ids), steps, reply, output.num_cached_tokens or 0, first.finish_reason)


@dataclass
class Control:
    """The control channel of the engine with this data directory."""

    data_dir: Path

    def call(self, method: str, path: str, body: Any = None, token: str | None = None) -> tuple[int, Any]:
        where = json.loads((self.data_dir / "control.json").read_text())["url"]
        if token is None:
            token = _core.control_token((self.data_dir / "secret").read_bytes())
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(where + path, data=data, method=method)
        request.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"null")

    def get(self, path: str) -> Any:
        status, answer = self.call("GET", path)
        assert status == 200, answer
        return answer

    def post(self, path: str, body: Any) -> Any:
        status, answer = self.call("POST", path, body)
        assert status == 200, answer
        return answer


@dataclass
class Client:
    """Signs requests for a scope, and remembers its epoch."""

    secret: bytes
    fingerprint: str
    scope: dict[str, str] = field(default_factory=lambda: dict(ALICE))
    epoch: int = 1
    names: Any = field(default_factory=itertools.count)

    @classmethod
    def of(cls, engine: Engine, scope: dict[str, str] | None = None) -> "Client":
        return cls(
            (engine.data_dir / "secret").read_bytes(), engine.side._fingerprint,
            dict(scope or ALICE), names=engine.names,
        )

    def request(self, purpose: str = "inject", salted: bool = True, **fields: Any) -> dict[str, Any]:
        """Parameters and salt of a request; ``fields`` replace those of the object."""
        wanted = {
            "v": 1, "request": f"r{next(self.names)}", "scope": self.scope, "epoch": self.epoch,
            "purpose": purpose, "top_j": 0, "context": "", "client_salt": "", "inject": [],
            "capture": [],
        } | fields
        text = _core.signed_params(wanted, self.secret)
        salt = _core.cache_salt(_core.parse_params(text, self.secret), self.secret, self.fingerprint)
        return {"params": json.loads(text), "salt": salt if salted else None, "name": wanted["request"]}

    def key(self, tokens: list[int], kind: str, context: str, scope: dict[str, str] | None = None) -> str:
        ids = np.asarray(tokens, np.int32)
        return _core.record_key(self.secret, scope or self.scope, self.fingerprint, context, kind, ids)

    def range(
        self, prompt: list[int], begin: int, end: int, kind: str = "prefix", context: str = NO_CONTEXT,
        owner: str = "scope", context_tokens: int = 0,
    ) -> dict[str, Any]:
        """An entry of ``capture``."""
        whose = {"scope": self.scope, "tenant": ACME, "system": SYSTEM}[owner]
        return {
            "key": self.key(prompt[begin:end], kind, context, whose), "begin": begin, "end": end,
            "context_kind": kind, "context_id": context, "context_tokens": context_tokens,
            "owner": owner,
        }


def capture(engine: Engine, client: Client, prompt: list[int], ranges: list[dict[str, Any]], **fields: Any) -> Answer:
    """Prefills ``prompt`` and stores ranges of it."""
    purpose = fields.pop("purpose", "encode")
    fields.setdefault("context", "header" if purpose == "encode" else "")
    answer = engine.one(prompt, client.request(purpose, capture=ranges, **fields), max_tokens=1)
    wait_until(lambda: not engine.side._capturing)
    return answer


def wait_until(done: Callable[[], Any], seconds: float = 20.0) -> None:
    """Without a step of the engine."""
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until, "it does not come to pass"
        time.sleep(0.002)


def encode_fact(engine: Engine, client: Client, header: list[int], fact: list[int]) -> str:
    """Encodes a fact behind the header; returns its key."""
    context = _core.context_id("header", np.asarray(header, np.int32), [])
    prompt = header + fact
    wanted = client.range(prompt, len(header), len(prompt), "header", context)
    capture(engine, client, prompt, [wanted])
    return wanted["key"]


def first_layer_rows(engine: Engine, begin: int, end: int, ask: Callable[[], Any]) -> tuple[Any, np.ndarray, np.ndarray]:
    """What ``ask`` returns, which sends one request, and keys and values [T, H, D] of its tokens begin to end - 1 in
    the first layer, as they are in the cache afterwards."""
    import torch
    from inferscale.vllm.layout import split_slots

    engine.llm.reset_prefix_cache()
    tables: list[list[int]] = []
    allocated = engine.side.allocated

    def spy(request: Any, block_ids: list[int], count: int) -> None:
        tables.append(list(block_ids))
        allocated(request, block_ids, count)

    engine.side.allocated = spy
    try:
        answer = ask()
    finally:
        engine.side.allocated = allocated
    slots = torch.from_numpy(split_slots(tables[0], 0, begin, end, BLOCK))
    key, value = engine.worker._reader.read(0, slots.to("cuda" if torch.cuda.is_available() else "cpu"))
    return answer, key.float().cpu().numpy(), value.float().cpu().numpy()
