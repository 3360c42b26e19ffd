"""export, and import of what it wrote."""
import json
import os
import subprocess
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

    def test_salvage_of_a_damaged_end(self):
        lines = self.file.read_bytes().splitlines(keepends=True)
        for end in (b"", b"garbage\n", lines[-1].replace(b'"lines":401', b'"lines":400')):
            self.file.write_bytes(b"".join(lines[:-1]) + end)
            self.fails(5, "kDataLoss", "import", self.file, "--no-wait", data=self.other)
            reply = self.run_cli("import", self.file, "--dry-run", "--salvage", "--json", data=self.other)
            self.assertEqual((reply.code, reply.json["facts_added"]), (5 if end != b"garbage\n" else 2, 200))
            for error in reply.json["errors"]:
                self.assertLess(error["item"], len(lines))

    def test_never_into_the_data_directory(self):
        link = self.root / "link"
        link.symlink_to(self.data)
        before = {path.name: path.stat().st_ino for path in self.data.iterdir()}
        secret = (self.data / "secret").read_bytes()
        for target in (self.data / "catalog.sqlite", self.data / "secret", link / "secret", self.data / "new.jsonl",
                       self.data / "kv" / "new.jsonl", self.root / "nowhere" / ".." / "data" / "new.jsonl"):
            with self.subTest(target=target):
                message = self.fails(2, "kInvalidArgument", "export", "--output", target)
                self.assertIn(str(target), message)
                self.assertIn("data directory", message)
        elsewhere = self.root / "elsewhere"
        (self.data / "kv").rename(elsewhere)
        (self.data / "kv").symlink_to(elsewhere)
        message = self.fails(2, "kInvalidArgument", "export", "--output", elsewhere / "new.jsonl")
        self.assertIn("data directory", message)
        (self.data / "kv").unlink()
        elsewhere.rename(self.data / "kv")
        for name, inode in before.items():
            if (self.data / name).exists() or not name.endswith(("-wal", "-shm")):
                self.assertEqual((self.data / name).stat().st_ino, inode, name)
        self.assertEqual((self.data / "secret").read_bytes(), secret)
        self.assertEqual(list(self.data.rglob("*.part-*")) + list(self.data.rglob("new.jsonl")), [])
        self.assertTrue(self.ok("verify")["ok"])

    def test_directories_and_links_are_refused(self):
        self.assertIn("directory", self.fails(2, "kInvalidArgument", "export", "--output", self.root))
        kept = self.write("kept.jsonl", "kept")
        for name, target in (("to-file", kept), ("to-secret", self.data / "secret"), ("to-nothing", self.root / "new")):
            link = self.root / name
            link.symlink_to(target)
            self.fails(2, "kInvalidArgument", "export", "--output", link)
            self.assertTrue(link.is_symlink())
        self.assertEqual(kept.read_bytes(), b"kept")
        self.assertFalse((self.root / "new").exists())
        self.assertEqual(list(self.root.glob("*.part-*")), [])

    def test_pipes_and_devices_are_written(self):
        fifo = self.root / "fifo"
        os.mkfifo(fifo)
        link = self.root / "link-to-fifo"
        link.symlink_to(fifo)
        for target in (fifo, link):
            process = self.start("export", "--output", target)
            with open(fifo, "rb") as reader:
                self.assertEqual(reader.read().split(b"\n", 1)[1], self.file.read_bytes().split(b"\n", 1)[1])
            self.assertEqual(process.wait(timeout=60), 0)
            self.assertTrue(fifo.is_fifo())
        self.assertTrue(link.is_symlink())
        null = self.root / "link-to-null"  # what a link to a device leads to, a user may write
        null.symlink_to("/dev/null")
        for target in ("/dev/null", null):
            self.assertEqual(self.ok("export", "--output", target)["facts"], 200)
        self.assertTrue(Path("/dev/null").is_char_device() and null.is_symlink())

    def test_named_stdout_keeps_what_stands_there(self):
        for name in ("-", "/dev/stdout"):
            kept = self.write("appended", "before\n")
            with open(kept, "ab") as out:
                subprocess.run(self.command("export", "--output", name), env=self.env, stdout=out, check=True)
            self.assertEqual(kept.read_bytes().split(b"\n", 2)[0::2],
                             [b"before", self.file.read_bytes().split(b"\n", 1)[1]])

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
