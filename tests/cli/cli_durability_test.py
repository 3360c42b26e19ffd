"""Disks that are full or read-only, two processes at once, Ctrl-C and kill."""
import json
import os
import subprocess
import sys
import unittest

from cli_case import INTERRUPT, KILL, CliCase, chat_lines


def skipped(reason):
    """A skip that shows in every output."""
    print(f"SKIPPED: {reason}", file=sys.stderr, flush=True)
    raise unittest.SkipTest(reason)


class Disks(CliCase):
    def mount(self, options):
        """A file system in memory at self.data, unmounted at the end."""
        self.data.mkdir()
        if os.geteuid() != 0:
            skipped("mounting a small file system needs root")
        run = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", self.data], capture_output=True, check=False)
        if run.returncode != 0:
            skipped(f"mount is not permitted here: {run.stderr.decode().strip()}")
        self.addCleanup(subprocess.run, ["umount", "-l", self.data], check=False)

    def test_data_directory_below_a_file(self):
        file = self.write("file", "x")
        for command in (["list"], ["add", "x", "--no-wait"], ["stats"]):
            with self.subTest(command[0]):
                message = self.fails(6, "kUnavailable", *command, data=file / "data")
                self.assertIn(str(file), message)
        self.assertEqual(self.run_cli("doctor", data=file / "data").code, 6)

    def test_read_only_directory(self):
        self.mount("size=8m")
        self.ok("add", "Mara lives in Graz", "--no-wait")
        subprocess.run(["mount", "-o", "remount,ro", self.data], check=True)
        reply = self.run_cli("add", "Teo has a tortoise", "--no-wait", "--json")
        self.assertEqual(reply.code, 6, (reply.out, reply.err))
        self.assertIn(str(self.data), reply.json["error"]["message"])
        subprocess.run(["mount", "-o", "remount,rw", self.data], check=True)
        self.assertEqual([text for text, _, _ in self.facts()], ["Mara lives in Graz"])

    def test_full_directory(self):
        self.mount("size=3m")
        chat = self.write("chat.jsonl", chat_lines(4000, "Words and words and words to fill the disk with. " * 10))
        reply = self.run_cli("import", chat, "--no-wait", "--json")
        self.assertEqual(reply.code, 4, (reply.out[-500:], reply.err[-500:]))
        error = reply.json["error"]
        self.assertEqual(error["code"], "kResourceExhausted")
        self.assertIn("run it again", error["message"])
        listed = self.run_cli("list", "--json")  # works, or says that the disk is full
        self.assertIn(listed.code, (0, 4), listed.out)
        subprocess.run(["mount", "-o", "remount,size=64m", self.data], check=True)
        kept = self.facts()  # whole facts only
        for text, _, sources in kept:
            self.assertRegex(text, r"^Mara: ")
            self.assertEqual(len(sources), 1)
        self.assertEqual(self.ok("import", chat, "--no-wait")["errors"], [])
        self.assertEqual(self.facts()[:len(kept)], kept)
        self.assertEqual(self.ok("stats")["turns"], 4000)

    def test_nothing_is_lost_on_a_disk_without_a_free_byte(self):
        self.use_random_model()
        self.mount("size=4m")
        self.ok("add", "Mara lives in Graz", "--no-wait")
        filler = self.data / "filler"
        try:
            with open(filler, "wb") as file:
                while file.write(b"x" * 4096):
                    file.flush()
        except OSError:
            pass
        for command in (["ask", "Where does Mara live?", "--top-j", "0", "--max-tokens", "2"], ["add", "Teo has a tortoise"]):
            reply = self.run_cli(*command, "--json")
            self.assertIn(reply.code, (0, 4, 6), (reply.out, reply.err))
            if reply.code != 0:
                self.assertIn(str(self.data), reply.json["error"]["message"])
        filler.unlink()
        self.ok("add", "Teo has two tortoises")
        self.assertEqual(self.facts()[0][0], "Mara lives in Graz")
        reply = self.ok("ask", "Where does Mara live?", "--top-j", 0, "--k", 1, "--max-tokens", 2)
        self.assertEqual([fact["state"] for fact in reply["facts"]], ["injected"])


class TwoProcesses(CliCase):
    def test_the_second_is_refused(self):
        self.use_random_model()
        self.ok("add", "Mara lives in Graz", "--no-wait")
        chat = self.start("chat", "--top-j", "0", "--max-tokens", "2", "--json")
        chat.stdin.write(b"Where?\n")
        chat.stdin.flush()
        chat.stdout.readline()  # it is open now
        message = self.fails(8, "kConflict", "add", "x", "--no-wait")
        self.assertIn(str(self.data), message)
        self.assertEqual(self.run_cli("doctor").code, 8)
        chat.stdin.close()
        self.assertEqual(chat.wait(timeout=60), 0)
        self.assertEqual(len(self.facts()), 1)


class Interrupted(CliCase):
    """An import that is ended and started again must equal one that was not."""

    N_FACTS = 1500

    def setUp(self):
        super().setUp()
        self.use_random_model()
        self.chat = self.write("chat.jsonl", chat_lines(self.N_FACTS))
        self.importing = ["import", self.chat, "--context", "window:4", "--json"]

    def check_completed(self):
        self.ok(*self.importing)
        stats = self.ok("stats", "--context", "window:4")
        self.assertEqual((stats["facts"], stats["turns"], stats["facts_pending"]), (self.N_FACTS, self.N_FACTS, 0))
        expected = [(f"Mara: Fact number {i}.", f"2025-{i % 12 + 1:02}-{i % 28 + 1:02}T10:00:00Z", (f"d{i}",))
                    for i in range(self.N_FACTS)]
        self.assertEqual(self.facts(), expected)
        reply = self.ok("ask", "Which fact?", "--context", "window:4", "--top-j", 0, "--k", 3, "--max-tokens", 2)
        self.assertEqual([fact["state"] for fact in reply["facts"]], ["injected"] * 3)

    def test_ctrl_c(self):
        reply = self.signal_while_working(self.start(*self.importing), INTERRUPT, after=0.5)
        self.assertEqual(reply.code, 130, (reply.out, reply.err))
        document = reply.json
        self.assertIs(document["interrupted"], True)
        kept = self.ok("stats", "--context", "window:4")
        self.assertEqual((kept["turns"], kept["facts"]), (document["turns"], document["facts_added"]))
        self.check_completed()

    def test_ctrl_c_in_text_mode_says_how_to_go_on(self):
        importing = [argument for argument in self.importing if argument != "--json"]
        reply = self.signal_while_working(self.start(*importing), INTERRUPT, after=0.5)
        self.assertEqual(reply.code, 130)
        self.assertIn(b"run the same command again", reply.err)

    def test_ctrl_c_ends_a_reencode(self):
        self.ok(*self.importing)
        process = self.start("reencode", "--context", "log:2", "--json", "--progress")
        process.stderr.read(1)  # the first step of its progress
        process.send_signal(INTERRUPT)
        out, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 130, (out, err))
        document = json.loads(out)
        self.assertIs(document["interrupted"], True)
        self.assertEqual(document["context"], "log:2")
        self.assertEqual(self.ok("stats")["facts_pending"], self.N_FACTS - document["encoded"])
        reply = self.ok("ask", "Which fact?", "--top-j", 0, "--k", 3, "--max-tokens", 2)
        self.assertEqual([fact["state"] for fact in reply["facts"]], ["injected"] * 3)

    def test_kill(self):
        for after in (0.05, 0.3, 0.6):
            reply = self.signal_while_working(self.start(*self.importing), KILL, after=after)
            self.assertEqual(reply.code, -KILL)
        self.check_completed()

    def test_ctrl_c_ends_an_answer(self):
        self.ok("add", "Mara lives in Graz")
        asking = self.start("ask", "Where does Mara live?", "--top-j", "0", "--max-tokens", "8000", "--temperature", "1")
        asking.stdout.read(1)
        asking.send_signal(INTERRUPT)
        asking.communicate(timeout=60)
        self.assertEqual(asking.returncode, 130)

    def test_ctrl_c_ends_a_comparison_without_lines_of_the_engine(self):
        for i in range(20):
            self.ok("add", f"Mara's friend number {i} lives in Graz", "--no-wait")
        comparing = self.start("ask", "Who lives in Graz? " * 100, "--compare", "--rounds", "1000", "--top-j", "0",
                               "--k", "20", "--max-tokens", "2000")
        reply = self.signal_while_working(comparing, INTERRUPT, after=1.5)
        self.assertEqual(reply.code, 130)
        self.assertEqual([line for line in reply.err.splitlines() if b"inferscale: kUnavailable: interrupted" not in line], [])


if __name__ == "__main__":
    unittest.main()
