"""export, and import of what it wrote."""
import json
import os
import time
import unittest
from pathlib import Path

from cli_case import KILL, CliCase, chat_lines


class Export(CliCase):
    def setUp(self):
        super().setUp()
        self.ok("import", self.write("chat.jsonl", chat_lines(200)), "--no-wait")
        fact = self.ok("list", "--limit", 1)["facts"][0]["id"]
        self.ok("update", fact, "--text", "Something else", "--no-wait")
        self.file = self.root / "out.jsonl"
        document = self.ok("export", "--output", self.file)
        self.fields(document, output=str, turns=int, facts=int, versions=int)
        self.assertEqual((document["turns"], document["facts"], document["versions"]), (200, 200, 1))
        self.other = self.root / "other"

    def body(self, data=None):
        """An export without its header, whose time differs."""
        return self.run_cli("export", data=data).out.split(b"\n", 1)[1]

    def test_round_trip(self):
        self.assertEqual(self.file.stat().st_mode & 0o777, 0o600)
        self.assertEqual(list(self.root.glob("*.part-*")), [])
        report = self.ok("import", self.file, "--no-wait", data=self.other)
        self.fields(report, format=str, versions=int, renamed=int, dry_run=bool)
        self.assertEqual((report["format"], report["turns"], report["facts_added"], report["versions"]),
                         ("inferscale", 200, 200, 1))
        self.assertEqual(self.body(self.other), self.body())
        again = self.ok("import", self.file, "--format", "inferscale", "--no-wait", data=self.other)
        self.assertEqual((again["facts_added"], again["facts_existing"]), (0, 200))
        self.assertEqual(self.body(self.other), self.body())
        for line in self.file.read_text().splitlines():
            json.loads(line)

    def test_dry_run_and_another_scope(self):
        dry = self.ok("import", self.file, "--dry-run", data=self.other)
        self.assertEqual((dry["facts_added"], dry["dry_run"]), (200, True))
        self.assertEqual(self.facts("--data", self.other), [])
        moved = self.ok("import", self.file, "--no-wait", "--scope", "user=kim")
        self.assertEqual((moved["facts_added"], moved["renamed"]), (200, 200))

    def test_damage(self):
        whole = self.file.read_bytes()
        self.file.write_bytes(whole[: len(whole) // 2])
        message = self.fails(5, "kDataLoss", "import", self.file, "--no-wait", data=self.other)
        self.assertIn("--salvage", message)
        reply = self.run_cli("import", self.file, "--no-wait", "--salvage", "--json", data=self.other)
        self.assertEqual(reply.code, 5)
        self.assertGreater(reply.json["turns"], 0)
        self.assertEqual(reply.json["errors"][0]["code"], "kDataLoss")
        self.file.write_bytes(whole)
        self.assertEqual(self.ok("import", self.file, "--no-wait", data=self.other)["errors"], [])
        self.assertEqual(self.body(self.other), self.body())

    def test_killed_in_the_middle(self):
        """Whole steps stay, and the same command goes on from there."""
        self.ok("import", self.write("more.jsonl", chat_lines(6000, "Much more.")), "--no-wait")
        self.ok("export", "--output", self.file)
        here, self.data = self.data, self.other
        process = self.start("import", self.file, "--no-wait", "--json")
        self.signal_while_working(process, KILL, 0.1)
        found = self.ok("verify")
        self.assertTrue(found["ok"], found["problems"])
        before = found["counts"]["facts"]
        report = self.ok("import", self.file, "--no-wait")
        self.assertEqual(report["facts_existing"], before)
        self.assertEqual(report["errors"], [])
        self.assertEqual(self.body(self.other), self.body(here))

    def test_conflicts(self):
        self.ok("import", self.file, "--no-wait", data=self.other)
        fact = self.ok("list", "--limit", 1, data=self.other)["facts"][0]["id"]
        self.ok("update", fact, "--text", "Changed over there", "--no-wait", data=self.other)
        reply = self.run_cli("import", self.file, "--no-wait", "--json", data=self.other)
        self.assertEqual(reply.code, 8)
        self.assertEqual([e["code"] for e in reply.json["errors"]], ["kConflict"])
        self.assertIn("line 202", reply.json["errors"][0]["message"])

    def test_usage(self):
        self.fails(2, "kInvalidArgument", "import", self.root / "chat.jsonl", "--dry-run")
        self.assertEqual(self.run_cli("export", "--json").code, 2)
        self.assertEqual(self.run_cli("export", "--output", self.root / "nowhere" / "x").code, 6)


class CoreFiles(CliCase):
    def test_none_are_written(self):
        self.use_random_model()
        process = self.start("chat")
        limit = None
        deadline = time.monotonic() + 30
        while limit != "0" and time.monotonic() < deadline:  # until its first line of code has run
            limits = Path(f"/proc/{process.pid}/limits").read_text(encoding="ascii")
            limit = limits.split("Max core file size")[1].split()[0]
        self.assertEqual(limit, "0")
        process.stdin.close()
        process.stdin = open(os.devnull, "wb")
        process.wait(timeout=60)


if __name__ == "__main__":
    unittest.main()
