"""Three hundred requests, eight at once, few blocks; aborts, deletes and captures meanwhile. Every answer
that is finished is the one that a request on its own gives, injected as the trace says."""

from __future__ import annotations

import random

import pytest
from harness import HEADER, QUESTION, Client, capture

REQUESTS = 300
AT_ONCE = 8
TIE = 1e-3  # of log-probabilities: closer than this, either token is right
TOKENS = 6

pytestmark = pytest.mark.slow

NAMES = ["Anna", "Boris", "Clara", "Dilan", "Edith", "Fausto"]


@pytest.fixture(scope="module")
def engine(engines, tmp_path_factory):
    return engines.get(
        tmp_path_factory.mktemp("data"), max_num_batched_tokens=128, max_model_len=512,
        num_gpu_blocks_override=36, max_num_seqs=AT_ONCE,
    )


class Stress:
    def __init__(self, engine):
        self.engine = engine
        self.random = random.Random(20)
        self.client = Client.of(engine, {"tenant": "acme", "user": "stress", "agent": "", "run": ""})
        self.header = engine.ids(HEADER)
        self.question = engine.ids(QUESTION)
        self.facts = [
            engine.ids(f"- {name} has the locker number {7 * i + j} and likes the colour {colour}.\n")
            for i, name in enumerate(NAMES)
            for j, colour in enumerate(["red", "green"])
        ]
        self.running: dict[str, dict] = {}
        self.done: list[dict] = []
        self.aborted = self.deleted = 0
        self.capture_all()

    def ranges(self, index):
        prompt = self.header + self.facts[index]
        return prompt, self.client.range(prompt, len(self.header), len(prompt), "header", "55" * 16)

    def capture_all(self):
        prompt = self.header + self.facts[0]
        self.context = self.client.range(prompt, 0, len(self.header))
        salt = f"all-{next(self.engine.names)}"
        capture(self.engine, self.client, prompt, [self.context], client_salt=salt)
        for index in range(len(self.facts)):
            prompt, wanted = self.ranges(index)
            capture(self.engine, self.client, prompt, [wanted], client_salt=salt)

    def submit(self, prompt, request, kind):
        from vllm import SamplingParams

        name = f"s-{next(self.engine.names)}"
        sampling = SamplingParams(
            temperature=0.0, max_tokens=TOKENS if kind == "ask" else 1, ignore_eos=True, logprobs=2,
            extra_args={"kv_transfer_params": {"inferscale": request["params"]}},
        )
        self.engine.llm.llm_engine.add_request(
            name, {"prompt_token_ids": prompt, "cache_salt": request["salt"]}, sampling
        )
        self.running[name] = {"prompt": prompt, "name": request["name"], "kind": kind,
                              "inject": request["params"]["inject"]}

    def ask(self):
        chosen = self.random.sample(range(len(self.facts)), self.random.randint(2, 7))
        prompt = self.header + [t for i in chosen for t in self.facts[i]] + self.question
        keys = [self.context["key"], *(self.ranges(i)[1]["key"] for i in chosen)]
        if self.random.random() < 0.15:
            keys = []
        self.submit(prompt, self.client.request(inject=keys, client_salt=f"{self.random.random()}"), "ask")

    def encode(self):
        prompt, wanted = self.ranges(self.random.randrange(len(self.facts)))
        request = self.client.request("encode", context="header", capture=[wanted],
                                      client_salt=f"{self.random.random()}")
        self.submit(prompt, request, "encode")

    def delete(self):
        key = self.ranges(self.random.randrange(len(self.facts)))[1]["key"]
        self.client.epoch += 1
        self.engine.control.post("/v1/erase", {"tenant": "acme", "user": "stress",
                                               "epoch": self.client.epoch, "keys": [key]})
        self.deleted += 1

    def abort(self):
        name = self.random.choice(sorted(self.running))
        self.engine.llm.llm_engine.abort_request([name])
        del self.running[name]
        self.aborted += 1

    def step(self):
        for output in self.engine.llm.llm_engine.step():
            if output.finished and output.request_id in self.running:
                entry = self.running.pop(output.request_id)
                entry["tokens"] = list(output.outputs[0].token_ids)
                entry["finish"] = output.outputs[0].finish_reason
                self.done.append(entry)

    def run(self):
        started = 0
        while started < REQUESTS or self.running:
            while started < REQUESTS and len(self.running) < AT_ONCE:
                self.encode() if self.random.random() < 0.15 else self.ask()
                started += 1
            if self.random.random() < 0.02 and self.running:
                self.abort()
            if self.random.random() < 0.015:
                self.delete()
            self.step()
        while self.engine.llm.llm_engine.has_unfinished_requests():
            self.step()


def oracle_request(stress, injected, inject):
    """One request that is text, or injects exactly this many tokens; and how many that are."""
    keys, reach = [], 0
    lengths = {stress.ranges(i)[1]["key"]: len(fact) for i, fact in enumerate(stress.facts)}
    lengths[stress.context["key"]] = len(stress.header)
    while reach < injected:
        keys.append(inject[len(keys)])
        reach += lengths[keys[-1]]
    assert reach == injected, "what was injected ends in the middle of a record"
    return stress.client.request(inject=keys, client_salt=f"oracle-{next(stress.engine.names)}")


def oracle(stress, cases, inject):
    """The answer of each case; four at once, which need no preemption."""
    answers, cases = {}, list(cases)
    for at in range(0, len(cases), 4):
        part = cases[at : at + 4]
        requests = [(list(ids), oracle_request(stress, n, inject[(ids, n)])) for ids, n in part]
        for case, answer in zip(part, stress.engine.generate(requests, max_tokens=TOKENS, logprobs=2)):
            assert answer.injected == case[1] and len(answer.reply["admissions"]) == 1
            answers[case] = answer
    return answers


def agrees(tokens, expected):
    for mine, theirs, step in zip(tokens, expected.tokens, expected.steps):
        best = sorted(step.values(), reverse=True)
        if best[0] - best[1] <= TIE:
            return True
        if mine != theirs:
            return False
    return True


def test_stress(engine):
    stress = Stress(engine)
    before = engine.side.totals()
    stress.run()
    totals = engine.side.totals()
    assert totals.get("readmitted", 0) > before.get("readmitted", 0), "nobody was preempted"
    assert stress.aborted and stress.deleted
    assert engine.connector.faults.counts() == {}
    assert engine.side._requests == {}
    stress.capture_all()
    finished, inject, failed, mixed = [], {}, 0, 0
    for entry in stress.done:
        if entry["kind"] != "ask":
            continue
        trace = engine.control.get(f"/v1/trace?request={entry['name']}")
        if entry["finish"] == "error":
            assert trace["failed"], trace
            failed += 1
            continue
        if min(e["local_hit"] + e["injected"] for e in trace["admissions"]) < trace["injected"]:
            mixed += 1  # preempted, and a record was erased meanwhile: its tokens saw different things
            continue
        case = (tuple(entry["prompt"]), trace["injected"])
        inject[case] = entry["inject"]
        finished.append((case, entry["tokens"], trace))
    known = oracle(stress, inject, inject)
    for case, tokens, trace in finished:
        assert agrees(tokens, known[case]), (trace, tokens, known[case].tokens)
    assert len(finished) > REQUESTS // 2 and failed + mixed < REQUESTS // 10, (len(finished), failed, mixed)
    assert sum(1 for _, injected in known if injected) > REQUESTS // 4
