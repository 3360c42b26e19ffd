"""Few blocks and a small token budget: chunks, preemption, aborts, failures. Each ends in right tokens,
or at worst in an error of that request."""

from __future__ import annotations

import pytest
from harness import FACTS, HEADER, QUESTION, Client, capture, difference

EXACT = 1e-3
BLOCKS = 26
LOADED = 120  # tokens of the record that most tests inject


@pytest.fixture(scope="module")
def engine(engines, tmp_path_factory):
    return engines.get(
        tmp_path_factory.mktemp("data"), max_num_batched_tokens=64, max_model_len=512,
        num_gpu_blocks_override=BLOCKS, max_num_seqs=8,
    )


@pytest.fixture(scope="module")
def client(engine):
    return Client.of(engine)


@pytest.fixture(scope="module")
def prompt(engine):
    return engine.ids(HEADER + "".join(FACTS) + QUESTION)


@pytest.fixture(scope="module")
def key(engine, client, prompt):
    """A record of most of the prompt, captured over several chunks of 64 tokens."""
    wanted = client.range(prompt, 0, LOADED)
    answer = capture(engine, client, prompt, [wanted], client_salt="lifecycle")
    assert engine.control.get(f"/v1/trace?request={answer.reply['request']}")["captured"] == [wanted["key"]]
    return wanted["key"]


@pytest.fixture
def fresh(engine):
    """An empty prefix cache, and nothing left behind afterwards."""
    assert engine.llm.reset_prefix_cache()
    yield
    assert engine.side._requests == {} and engine.side._loads == []
    assert not engine.scheduler.running and not engine.scheduler.waiting
    assert engine.llm.reset_prefix_cache(), "blocks are still in use"


def free_blocks(engine):
    return engine.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()


def test_chunked_prefill_behind_an_injection(engine, client, prompt, key, fresh):
    plain = engine.one(prompt)
    engine.llm.reset_prefix_cache()
    answer = engine.one(prompt, client.request(inject=[key], client_salt="chunks"))
    assert answer.injected == LOADED
    assert answer.tokens == plain.tokens and difference(answer, plain) <= EXACT


def test_a_capture_over_chunks_and_cached_blocks(engine, client, prompt, fresh):
    """The second capture finds its first blocks in the prefix cache and its end in two chunks."""
    salt = "spans"
    capture(engine, client, prompt[:100], [], client_salt=salt)
    wanted = client.range(prompt, 10, len(prompt) - 2, "header", "22" * 16)
    answer = capture(engine, client, prompt, [wanted], client_salt=salt)
    assert answer.reply["local_hit"] == 96
    again = client.range(prompt, 0, 10)
    capture(engine, client, prompt, [again], client_salt="spans-2")
    engine.llm.reset_prefix_cache()
    plain = engine.one(prompt)
    injected = engine.one(prompt, client.request(inject=[again["key"], wanted["key"]], client_salt="spans-3"))
    assert injected.injected == len(prompt) - 2
    assert injected.tokens == plain.tokens and difference(injected, plain) <= EXACT


def test_injected_rows_are_not_captured_as_computed(engine, client, prompt, key, fresh):
    """Neither in the request that injects them, nor when they come back from the prefix cache."""
    over = client.range(prompt, 100, 140, "header", "77" * 16)
    behind = client.range(prompt, LOADED, 140, "header", "78" * 16)
    both = [over, behind]
    own = engine.one(prompt, client.request(inject=[key], capture=both, client_salt="rows"))
    assert own.injected == LOADED and own.fallbacks == {"capture_injected": 1}
    cached = engine.one(prompt, client.request(capture=both, client_salt="rows"))
    assert cached.reply["local_hit"] == 128 and cached.fallbacks == {"capture_injected": 1}
    assert engine.control.get(f"/v1/trace?request={cached.reply['request']}")["captured"] == [behind["key"]]
    # The block in which the injected rows end is filled, and found, only by what is generated.
    short = prompt[: LOADED + 4]
    first = engine.one(short, client.request(inject=[key], client_salt="tail"), max_tokens=20)
    assert first.injected == LOADED
    longer = short + first.tokens
    over = client.range(longer, 110, 126, "header", "79" * 16)
    later = engine.one(longer, client.request(capture=[over], client_salt="tail"))
    assert later.reply["local_hit"] == 128 and later.fallbacks == {"capture_injected": 1}


def test_preempted_requests_load_again(engine, client, prompt, key, fresh):
    count = 6
    sampling = {"max_tokens": 70}
    solo = engine.one(prompt, client.request(inject=[key], client_salt="solo"), **sampling)
    engine.llm.reset_prefix_cache()
    before = engine.side.totals().get("readmitted", 0)
    requests = [
        (prompt, client.request(inject=[key], client_salt=f"preempt-{i}")) for i in range(count)
    ]
    answers = engine.generate(requests, **sampling)
    assert engine.side.totals().get("readmitted", 0) > before, "nobody was preempted"
    for answer in answers:
        assert answer.injected == LOADED
        assert answer.tokens == solo.tokens and difference(answer, solo) <= EXACT
    twice = [a for a in answers if len(a.reply["admissions"]) > 1]
    assert twice and any(sum(e["injected"] for e in a.reply["admissions"]) > LOADED for a in twice)


def start(engine, prompt, request, **sampling):
    """Adds a request without running it; returns its id."""
    from vllm import SamplingParams

    name = f"manual-{next(engine.names)}"
    arguments = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True} | sampling
    arguments["extra_args"] = {"kv_transfer_params": {"inferscale": request["params"]}}
    engine.llm.llm_engine.add_request(
        name, {"prompt_token_ids": prompt, "cache_salt": request["salt"]}, SamplingParams(**arguments)
    )
    return name


def run_out(engine):
    outputs = []
    while engine.llm.llm_engine.has_unfinished_requests():
        outputs += engine.llm.llm_engine.step()
    return outputs


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_abort(engine, client, prompt, key, fresh, steps):
    before = free_blocks(engine)
    request = client.request(inject=[key], client_salt=f"abort-{steps}")
    name = start(engine, prompt, request)
    for _ in range(steps):
        engine.llm.llm_engine.step()
    engine.llm.llm_engine.abort_request([name])
    run_out(engine)
    assert free_blocks(engine) == before
    trace = engine.control.get(f"/v1/trace?request={request['name']}")
    assert trace["finished"] and trace["injected"] == (LOADED if steps else 0)


def test_several_sequences_of_one_request(engine, client, prompt, key, fresh):
    from vllm import SamplingParams

    request = client.request(inject=[key], client_salt="n")
    output = engine.llm.generate(
        [{"prompt_token_ids": prompt, "cache_salt": request["salt"]}],
        SamplingParams(n=3, temperature=0.9, max_tokens=8, ignore_eos=True,
                       extra_args={"kv_transfer_params": {"inferscale": request["params"]}}),
        use_tqdm=False,
    )[0]
    assert len(output.outputs) == 3 and all(len(o.token_ids) == 8 for o in output.outputs)
    trace = engine.control.get(f"/v1/trace?request={request['name']}")
    assert trace["injected"] == LOADED and trace["finished"]


def test_identical_prompts_at_once(engine, client, prompt, key, fresh):
    plain = engine.one(prompt)
    engine.llm.reset_prefix_cache()
    answers = engine.generate(
        [(prompt, client.request(inject=[key], client_salt="same")) for _ in range(3)]
    )
    assert answers[0].injected == LOADED
    for answer in answers:
        assert answer.tokens == plain.tokens and difference(answer, plain) <= EXACT


def test_different_loads_in_one_step(engine, client, prompt, key, fresh):
    """One composition serves all: each request gets its own rows."""
    wanted = client.range(prompt, 0, 20)
    capture(engine, client, prompt, [wanted], client_salt="short")
    engine.llm.reset_prefix_cache()
    other = prompt[:LOADED] + engine.ids("\nWhat is the cat called?<|im_end|>\n<|im_start|>assistant\n")
    alone = [engine.one(prompt), engine.one(other)]
    engine.llm.reset_prefix_cache()
    answers = engine.generate([
        (prompt, client.request(inject=[wanted["key"]], client_salt="step-1")),
        (other, client.request(inject=[key], client_salt="step-2")),
        (prompt, client.request(inject=[key], client_salt="step-3")),
    ])
    assert [a.injected for a in answers] == [20, LOADED, LOADED]
    for answer, expected in zip(answers, [alone[0], alone[1], alone[0]]):
        assert answer.tokens == expected.tokens and difference(answer, expected) <= EXACT


def break_jobs(engine, monkeypatch, broken):
    """Lets ``broken(job)`` happen between the match of a load and its place in the step."""
    side = engine.side
    real = side._load_job

    def planned(tracked):
        job = real(tracked)
        broken(job)
        return job

    monkeypatch.setattr(side, "_load_job", planned)


def test_a_record_that_is_gone_between_match_and_load(engine, client, prompt, monkeypatch, fresh):
    """That request fails and is told so; the other one of the step, and the next ones, do not."""
    lost, kept = client.range(prompt, 0, 40), client.range(prompt, 0, 60)
    capture(engine, client, prompt, [lost, kept], client_salt="lost")
    plain = engine.one(prompt)
    engine.llm.reset_prefix_cache()
    store = engine.worker._records.store
    with monkeypatch.context() as patch:
        break_jobs(engine, patch, lambda job: store.erase([lost["key"]]))
        request = client.request(inject=[lost["key"]], client_salt="lost-1")
        bad, good = engine.generate([
            (prompt, request),
            (prompt, client.request(inject=[kept["key"]], client_salt="lost-2")),
        ])
    assert bad.finish == "error" and bad.tokens == []
    assert good.injected == 60 and good.tokens == plain.tokens and difference(good, plain) <= EXACT
    trace = engine.control.get(f"/v1/trace?request={request['name']}")
    assert "KeyError" in trace["failed"]
    after = engine.one(prompt, client.request(inject=[lost["key"]], client_salt="lost-1"))
    assert after.fallbacks == {"record_missing": 1} and after.cached == 0
    assert after.tokens == plain.tokens and difference(after, plain) <= EXACT


def test_a_failed_load_of_an_aborted_request_leaves_no_block(engine, client, prompt, monkeypatch, fresh):
    """vLLM evicts the blocks of requests that still run; ours are evicted in any case."""
    wanted = client.range(prompt, 0, 70)
    capture(engine, client, prompt, [wanted], client_salt="gone")
    engine.llm.reset_prefix_cache()
    store = engine.worker._records.store
    request = client.request(inject=[wanted["key"]], client_salt="gone-1")
    real = engine.worker._path.load
    name = start(engine, prompt, request)

    def aborted(jobs):
        store.erase([wanted["key"]])
        core_id = jobs[0].request_id
        engine.llm.llm_engine.abort_request([name])
        from vllm.v1.request import RequestStatus

        engine.scheduler.finish_requests(core_id, RequestStatus.FINISHED_ABORTED)
        real(jobs)

    with monkeypatch.context() as patch:
        patch.setattr(engine.worker._path, "load", aborted)
        run_out(engine)
    after = engine.one(prompt, client.request(inject=[wanted["key"]], client_salt="gone-1"))
    assert after.cached == 0 and after.fallbacks == {"record_missing": 1}


def test_an_exception_in_the_worker(engine, client, prompt, key, monkeypatch, fresh):
    def broken(jobs):
        raise RuntimeError("injected by the test")

    with monkeypatch.context() as patch:
        patch.setattr(engine.worker._path, "load", broken)
        answer = engine.one(prompt, client.request(inject=[key], client_salt="broken"))
    assert answer.finish == "error"
    plain = engine.one(prompt)
    after = engine.one(prompt, client.request(inject=[key], client_salt="broken"))
    assert after.injected == LOADED and after.tokens == plain.tokens


@pytest.mark.parametrize("hook", ["on_new_request", "matched_tokens", "allocated", "build_meta", "finished"])
def test_an_exception_in_a_hook_of_the_scheduler(engine, client, prompt, key, monkeypatch, hook):
    """Stopped at the hook and counted; no tokens are claimed whose rows nobody loads."""
    plain = engine.one(prompt)
    engine.llm.reset_prefix_cache()
    before = sum(engine.connector.faults.counts().values())

    def broken(*arguments):
        raise RuntimeError("injected by the test")

    with monkeypatch.context() as patch:
        patch.setattr(engine.side, hook, broken)
        answer = engine.one(prompt, client.request(inject=[key], client_salt=f"hook-{hook}"))
    assert sum(engine.connector.faults.counts().values()) > before
    if hook in ("allocated", "build_meta"):  # tokens were promised already
        assert answer.finish == "error" and answer.tokens == []
    else:
        assert answer.tokens == plain.tokens and difference(answer, plain) <= EXACT
    engine.llm.reset_prefix_cache()
    engine.side._requests.clear()
    engine.side._loads.clear()
    after = engine.one(prompt, client.request(inject=[key], client_salt=f"hook-{hook}"))
    assert after.injected == LOADED and after.tokens == plain.tokens


def test_erase_while_a_request_runs(engine, prompt, fresh):
    """What is being answered finishes; the next request, and the next one with the old epoch, are text."""
    client = Client.of(engine, {"tenant": "acme", "user": "eve", "agent": "", "run": ""})
    wanted = client.range(prompt, 0, 100)
    capture(engine, client, prompt, [wanted], client_salt="erase")
    plain = engine.one(prompt, max_tokens=20)
    engine.llm.reset_prefix_cache()
    start(engine, prompt, client.request(inject=[wanted["key"]], client_salt="erase-1"), max_tokens=20)
    for _ in range(6):
        engine.llm.llm_engine.step()
    receipt = engine.control.post(
        "/v1/erase", {"tenant": "acme", "user": "eve", "epoch": 2, "all": True}
    )
    assert receipt["records"] == 1 and receipt["ranks"] == 1
    finished = [output for output in run_out(engine) if output.finished]
    assert list(finished[0].outputs[0].token_ids) == plain.tokens
    stale = engine.one(prompt, client.request(inject=[wanted["key"]], client_salt="erase-1"))
    assert stale.injected == 0 and stale.cached == 0 and stale.fallbacks == {"stale_epoch": 1}
    assert stale.reply["refused"] == [wanted["key"]]
    client.epoch = 2
    after = engine.one(prompt, client.request(inject=[wanted["key"]], client_salt="erase-1"))
    assert after.fallbacks == {"record_missing": 1} and after.cached == 0


def test_a_capture_of_an_erased_owner_is_not_taken(engine, prompt, fresh):
    """The erasure comes between the chunks of the prefill, before the range is complete."""
    client = Client.of(engine, {"tenant": "acme", "user": "frank", "agent": "", "run": ""})
    wanted = client.range(prompt, 0, LOADED)
    request = client.request("encode", context="header", capture=[wanted], client_salt="late")
    start(engine, prompt, request, max_tokens=1)
    engine.llm.llm_engine.step()
    engine.control.post("/v1/erase", {"tenant": "acme", "user": "frank", "epoch": 2, "all": True})
    run_out(engine)
    trace = engine.control.get(f"/v1/trace?request={request['name']}")
    assert trace["captured"] == [] and trace["fallbacks"] == [{"reason": "stale_epoch", "count": 1}]
    assert not engine.worker._records.store.contains(wanted["key"])


def test_a_capture_in_flight_when_its_owner_is_erased(engine, prompt, monkeypatch, fresh):
    """Planned, then erased on all ranks, then carried out: the rank remembers the erasure."""
    client = Client.of(engine, {"tenant": "acme", "user": "grace", "agent": "", "run": ""})
    wanted = client.range(prompt, 0, 60)
    real = engine.worker.save

    def erased_first(meta):
        if meta.captures:
            engine.control.post(
                "/v1/erase", {"tenant": "acme", "user": "grace", "epoch": 2, "all": True}
            )
        real(meta)

    with monkeypatch.context() as patch:
        patch.setattr(engine.worker, "save", erased_first)
        capture(engine, client, prompt, [wanted], client_salt="flight")
    assert not engine.worker._records.store.contains(wanted["key"])
    assert not engine.side.book.ready(wanted["key"])


def test_a_missed_erasure_is_made_up_for(engine, prompt, fresh):
    """A request with a later epoch than is known: all of the owner's records go, it is text meanwhile."""
    client = Client.of(engine, {"tenant": "acme", "user": "heidi", "agent": "", "run": ""})
    wanted = client.range(prompt, 0, 60)
    capture(engine, client, prompt, [wanted], client_salt="ahead")
    client.epoch = 5
    answer = engine.one(prompt, client.request(inject=[wanted["key"]], client_salt="ahead"))
    assert answer.injected == 0 and answer.fallbacks == {"epoch_ahead": 1}
    with engine.side.eraser._lock:
        pass
    assert engine.side.epochs.epoch(("acme", "heidi")) == 5
    assert not engine.worker._records.store.contains(wanted["key"])


def test_the_store_is_full(engine, client, prompt, monkeypatch, tmp_path, fresh):
    """Counted, and the request itself is not touched."""
    from inferscale import _core
    from inferscale.vllm.store import RankRecords

    worker = engine.worker
    tiny = _core.RecordStore(str(tmp_path), 1 << 16, 1 << 16, worker._spec, "f32", 0, 1, 512)
    wanted = client.range(prompt, 0, 80)
    with monkeypatch.context() as patch:
        patch.setattr(worker._path, "_records", RankRecords(tiny))
        answer = capture(engine, client, prompt, [wanted], client_salt="full")
    tiny.close()
    assert answer.finish == "length"
    trace = engine.control.get(f"/v1/trace?request={answer.reply['request']}")
    assert trace["captured"] == [] and trace["fallbacks"] == [{"reason": "capture_store_full", "count": 1}]
    assert engine.side.totals()["fallback:capture_store_full"] == 1


def test_prompt_log_probabilities_are_served_as_text(engine, client, prompt, key, fresh):
    """They need every token of the prompt to be computed."""
    request = client.request(inject=[key], client_salt="prompt-logprobs")
    answer = engine.one(prompt, request, prompt_logprobs=1)
    assert answer.injected == 0 and answer.fallbacks == {"prompt_logprobs": 1}
