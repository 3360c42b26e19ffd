"""eval: a tiny evaluation from end to end, its report, and what it refuses."""
import json
import subprocess
import sys
import unittest

from cli_case import SOURCE, CliCase

TINY = ("--cases", 1, "--facts", 16, "--questions", 1, "-k", "4", "--answer-tokens", 3)


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

    def test_people_get_a_table(self):
        reply = self.run_cli("eval", "synthetic", *TINY, "--arms", "header", "--no-floor", data="")
        self.assertEqual(reply.code, 0, reply.err)
        for word in (b"header top_j=0 k=4", b"text k=4", b"none k=4", b"KL first"):
            self.assertIn(word, reply.out)
        self.assertNotIn(b"floor", reply.out)

    def test_what_is_refused(self):
        self.fails(2, "kInvalidArgument", "eval", "synthetic", "--arms", "headers", data="")
        self.fails(2, "kInvalidArgument", "eval", "synthetic", "--arms", "header,header", data="")
        self.fails(2, "kInvalidArgument", "eval", "synthetic", "--facts", 16, "--questions", 8, data="")
        self.fails(2, "kInvalidArgument", "eval", "synthetic", "--judge", "ftp://x", "--judge-model", "m", data="")
        self.fails(2, "kInvalidArgument", "eval", "locomo", data="")
        self.fails(3, "kNotFound", "eval", "locomo", data=self.root / "missing.json")
        self.fails(2, "kInvalidArgument", "eval", "locomo", data=self.write("other.json", b"[1, 2]"))


if __name__ == "__main__":
    unittest.main()
