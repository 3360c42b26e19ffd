"""Real questions through a server: with the facts injected and with the facts as text the prompt has the same token ids.

Questions of the first LoCoMo conversation, which `INFERSCALE_LOCOMO` names the file of; without it the project's own
questions (examples/demo), and a line says so. `INFERSCALE_LOCOMO_QUESTIONS` is how many; 20 by default.
"""

from __future__ import annotations

import json
import os
import subprocess
import warnings
from pathlib import Path

import pytest
from recording_proxy import RecordingProxy
from test_client import PROGRAM

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples" / "demo"
LOCOMO = Path(os.environ.get("INFERSCALE_LOCOMO", ROOT.parent / "shared" / "data" / "locomo10.json"))
QUESTIONS = int(os.environ.get("INFERSCALE_LOCOMO_QUESTIONS", "20"))
K = 10


def data() -> tuple[list[str], list[str]]:
    """Words of the import command, and questions."""
    if LOCOMO.is_file():
        first = json.loads(LOCOMO.read_text())[0]
        questions = [entry["question"] for entry in first["qa"]][:QUESTIONS]
        return [str(LOCOMO), "--conversation", first["sample_id"]], questions
    warnings.warn(f"{QUESTIONS} LoCoMo checks skipped: no data; the project's own questions are checked", stacklevel=1)
    lines = (DEMO / "questions.jsonl").read_text().splitlines()
    return [str(DEMO / "conversation.jsonl"), "--facts", str(DEMO / "facts.jsonl")], [json.loads(l)["question"] for l in lines]


@pytest.mark.slow
@pytest.mark.timeout(1200 + 60 * QUESTIONS)
def test_the_same_tokens_in_text_and_injected(tmp_path_factory, start_server):
    folder = tmp_path_factory.mktemp("locomo") / "data"
    common = ["--data", str(folder), "--scope", "user=u", "--embedder", "none", "--context", "window:8", "--json"]

    def run(*words: str) -> dict:
        done = subprocess.run([str(PROGRAM), *words, *common], capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:])
        return json.loads(done.stdout)

    run("list")  # makes the directory and its secret
    config = {"kv_connector": "InferScaleConnector", "kv_connector_module_path": "inferscale.vllm", "kv_role": "kv_both",
              "kv_connector_extra_config": {"data_dir": str(folder / "vllm")}}
    server = start_server("locomo", {"--kv-transfer-config": json.dumps(config)})
    proxy = RecordingProxy(server.url)
    engine = ["--engine", f"vllm={proxy.url}"]
    source, questions = data()
    imported = run("import", *source, *engine)
    assert imported["facts_encoded"] == imported["facts_added"] > 0, imported
    injected = 0
    for question in questions:
        ask = ["ask", question, "--k", str(K), "--top-j", "0", "--max-tokens", "4", *engine]
        proxy.prompts.clear()
        answer = run(*ask)
        text = run(*ask, "--no-inject")
        sent = [entry for entry in proxy.prompts if entry[1].get("purpose") in ("inject", "text")]
        assert [params["purpose"] for _, params in sent[-2:]] == ["inject", "text"], question
        assert sent[-2][0] == sent[-1][0], question
        assert all(fact["state"] == "injected" for fact in answer["facts"]), (question, answer["fallbacks"])
        assert text["tokens"]["injected"] == 0 and len(text["facts"]) == len(answer["facts"])
        injected += len(answer["facts"])
    proxy.close()
    print(f"{len(questions)} questions, {injected} facts injected")
    assert injected >= len(questions)
