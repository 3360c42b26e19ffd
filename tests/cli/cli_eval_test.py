"""eval: a tiny evaluation from end to end, its report, and what it refuses."""
import http.server
import json
import subprocess
import sys
import threading
import unittest

from cli_case import SOURCE, CliCase

TINY = ("--cases", 1, "--facts", 16, "--questions", 1, "-k", "4", "--answer-tokens", 3)


class FakeJudge(http.server.BaseHTTPRequestHandler):
    """Finds every second answer right, and says nothing that can be read to every third question."""

    asked = []

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append((self.path, self.headers.get("Authorization"), request))
        said = "maybe" if len(self.asked) % 3 == 0 else "true" if len(self.asked) % 2 else "false"
        body = json.dumps({"choices": [{"message": {"role": "assistant", "content": said}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Eval(CliCase):
    def setUp(self):
        super().setUp()
        self.use_random_model()

    def arm(self, document, name):
        found = [arm for arm in document["arms"] if arm["name"] == name]
        self.assertEqual(len(found), 1, [arm["name"] for arm in document["arms"]])
        return found[0]

    def test_from_end_to_end(self):
        out, work = self.root / "eval.json", self.root / "work"
        arms = "header,names:2@1,window:2,header+joint_first=64"
        document = self.ok("eval", "synthetic", *TINY, "--arms", arms, "--compare-rows", 1, "--work", work, "--out", out,
                           data="")
        self.assertEqual(document["schema"], 1)
        self.assertEqual(document["set"], {"name": "synthetic", "cases": 6, "questions": 6, "seed": 1})
        for kind in ("none", "text", "floor"):
            self.assertEqual(self.arm(document, f"{kind} k=4")["questions"], 6)
        self.assertEqual(self.arm(document, "facts k=4")["questions"], 1)
        for arm in document["arms"]:
            if arm["kind"] == "inject":
                self.assertEqual(arm["questions"], 6)
                self.assertGreater(arm["tokens"]["injected"], 0)
        # Rows of a joint prefill are that prefill: what is left is one rounding of records to f16.
        joint = self.arm(document, "header+joint_first=64 top_j=0 k=4")["by_category"]
        self.assertLess(max(joint[kind]["kl_first"] for kind in joint if kind != "pronoun"), 1e-4)
        self.assertEqual({entry["context"] for entry in document["encoding"]}, {"header", "names:2", "window:2"})
        self.assertEqual({rows["context"] for rows in document["rows"]}, {"header", "names:2", "window:2"})
        self.assertEqual(json.loads(out.read_text()), document)
        self.assertEqual(list((work / "memories").glob("*")), [], "memories go when a case is done")

        again = self.ok("eval", "synthetic", *TINY, "--arms", arms, "--compare-rows", 1, "--work", work, data="")
        self.assertEqual(again["arms"], document["arms"])
        self.fails(8, "kConflict", "eval", "synthetic", *TINY, "--seed", 2, "--work", work, data="")

        report = subprocess.run([sys.executable, "-B", SOURCE / "scripts" / "eval_report.py", out, "--out",
                                 self.root / "report"], capture_output=True, check=False)
        self.assertEqual(report.returncode, 0, report.stderr)
        text = (self.root / "report" / "report.md").read_text(encoding="utf-8")
        for name in ("header", "names:2", "window:2"):
            self.assertIn(name, text)

    def test_wrong_answers_are_part_of_what_a_log_is_of(self):
        pets = ("a cat", "a dog")
        data = self.write("locomo.json", json.dumps([{
            "sample_id": "conv-1",
            "conversation": {"speaker_a": "Ann", "speaker_b": "Bo", "session_1_date_time": "1:56 pm on 8 May, 2023", "session_1": [
                {"speaker": "Ann", "dia_id": f"D1:{i}", "text": f"I have {pet}."} for i, pet in enumerate(pets)]},
            "observation": {"session_1_observation": {"Ann": [[f"Ann has {pet}.", f"D1:{i}"] for i, pet in enumerate(pets)]}},
            "qa": [{"question": f"Which pet is number {i}?", "answer": pet, "evidence": [f"D1:{i}"], "category": 4}
                   for i, pet in enumerate(pets)],
        }]).encode())
        tiny = ("--k", "2", "--answer-tokens", 2, "--arms", "header", "--no-floor", "--work", self.root / "work")
        without = self.ok("eval", "locomo", *tiny, "--distractors", 0, data=data)
        self.assertNotIn("margin", self.arm(without, "text k=2")["metrics"])
        self.assertIn("--distractors 0", without["command"])
        self.fails(8, "kConflict", "eval", "locomo", *tiny, data=data)

    def test_people_get_a_table(self):
        reply = self.run_cli("eval", "synthetic", *TINY, "--arms", "header", "--no-floor", data="")
        self.assertEqual(reply.code, 0, reply.err)
        for word in (b"header top_j=0 k=4", b"text k=4", b"none k=4", b"KL first"):
            self.assertIn(word, reply.out)
        self.assertNotIn(b"floor", reply.out)

    def test_a_judge_at_an_endpoint(self):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), FakeJudge)
        self.addCleanup(server.server_close)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.shutdown)
        FakeJudge.asked.clear()
        self.env["JUDGE_KEY"] = "not for the command line"
        document = self.ok("eval", "synthetic", *TINY, "--arms", "header", "--no-floor", "--judge",
                           f"http://127.0.0.1:{server.server_address[1]}", "--judge-model", "fake", "--judge-prompt", "paper",
                           "--judge-key-env", "JUDGE_KEY", data="")
        self.assertEqual(len(FakeJudge.asked), 12, "text and header, of six questions")
        for path, key, request in FakeJudge.asked:
            self.assertEqual((path, key), ("/v1/chat/completions", "Bearer not for the command line"))
            self.assertEqual((request["model"], request["temperature"], request["max_tokens"]), ("fake", 0, 4))
            self.assertIn("exactly one lowercase word: true or false", request["messages"][0]["content"])
        judged = [self.arm(document, name)["judge"] for name in ("text k=4", "header top_j=0 k=4")]
        # Of twelve answers one by one: true, false, unread, false, true, unread, and again.
        self.assertEqual(sum(judge["unparsed"] for judge in judged), 4)
        self.assertAlmostEqual(sum(judge["accuracy"] for judge in judged) * 6, 4)
        self.fails(6, "kUnavailable", "eval", "synthetic", *TINY, "--arms", "header", "--judge", "http://127.0.0.1:9",
                   "--judge-model", "fake", data="")

    def test_what_is_refused(self):
        self.fails(2, "kInvalidArgument", "eval", "synthetic", "--arms", "headers", data="")
        self.fails(2, "kInvalidArgument", "eval", "synthetic", "--arms", "header,header", data="")
        self.fails(2, "kInvalidArgument", "eval", "synthetic", "--facts", 16, "--questions", 8, data="")
        self.fails(2, "kInvalidArgument", "eval", "synthetic", "--judge", "ftp://x", "--judge-model", "m", data="")
        self.fails(2, "kInvalidArgument", "eval", "locomo", data="")
        self.fails(3, "kNotFound", "eval", "locomo", data=self.root / "missing.json")
        self.fails(2, "kInvalidArgument", "eval", "locomo", data=self.write("other.json", b"[1, 2]"))

    def test_what_cannot_work_is_refused_before_anything_is_measured(self):
        for command in (("eval", "synthetic", *TINY), ("bench", "ttft"), ("bench", "encode"), ("bench", "store")):
            message = self.fails(3, "kNotFound", *command, "--out", self.root / "missing" / "out.json", data="")
            self.assertIn("--out", message)
            message = self.fails(2, "kInvalidArgument", *command, "--out", self.root, data="")
            self.assertIn("--out", message)
        server = ("--engine", "vllm=http://127.0.0.1:9")
        for option in (("--compare-rows", 1), ("--arms", "header+first=2")):
            message = self.fails(2, "kInvalidArgument", "eval", "synthetic", *TINY, *option, *server, data="")
            self.assertIn("embedded engine", message)
        self.assertIn("--at-once", self.fails(2, "kInvalidArgument", "eval", "synthetic", *TINY, "--at-once", 2, data=""))


if __name__ == "__main__":
    unittest.main()
