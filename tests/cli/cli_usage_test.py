"""Help, wrong usage, and what must hold for every command without a model."""
import json
import unittest

from cli_case import CliCase

COMMANDS = ["import", "add", "search", "ask", "chat", "list", "get", "update", "delete", "history", "stats", "doctor",
            "bench ttft", "bench encode", "calibrate", "reencode", "verify",
            "repair", "export", "version"]


class Help(CliCase):
    def test_every_command_has_help_with_an_example(self):
        for command in COMMANDS:
            with self.subTest(command):
                reply = self.run_cli(*command.split(), "--help")
                self.assertEqual(reply.code, 0)
                self.assertIn(f"Example:\n  inferscale {command}".encode(), reply.out)
                self.assertIn(b"--scope", reply.out)
                self.assertEqual(reply.err, b"")

    def test_root_help_lists_the_commands(self):
        out = self.run_cli("--help").out.decode()
        for command in COMMANDS:
            self.assertIn(f"\n  {command.split()[0]} ", out)

    def test_version(self):
        version = self.ok("version")["version"]
        self.assertRegex(version, r"^\d+\.\d+\.\d+")
        self.assertEqual(self.run_cli("--version").out.decode().strip(), version)

    def test_common_options_stand_before_or_after_the_command(self):
        before = self.run_cli("--json", "version")
        self.assertEqual(before.json, self.ok("version"))


class Usage(CliCase):
    def test_no_or_unknown_command(self):
        self.assertIn("use one of import, add", self.fails(2, "kInvalidArgument"))
        self.assertIn("use one of import, add", self.fails(2, "kInvalidArgument", "frobnicate"))
        self.assertIn("use one of ttft, encode", self.fails(2, "kInvalidArgument", "bench"))

    def test_messages_name_what_is_accepted(self):
        cases = [
            (["search", "x", "--k", "0"], ["--k", "1", "1000"]),
            (["search", "x", "--k", "many"], ["--k"]),
            (["import", "f", "--format", "csv"], ["auto", "openai", "mem0", "locomo"]),
            (["search"], ["query", "inferscale search --help"]),
            (["ask", "x", "--temperature", "9"], ["--temperature", "2"]),
            (["list", "--frobnicate"], ["--frobnicate"]),
            (["list", "--scope", "usr=a"], ["--scope"]),
            (["list", "--scope", "user="], ["--scope"]),
            (["list", "--host-budget", "lots"], ["--host-budget", "MiB"]),
            (["list", "--top-j", "some"], ["--top-j", "auto", "1000"]),
            (["update", "id"], ["--text", "--metadata", "--time"]),
            (["delete"], ["--all-in-scope"]),
            (["delete", "--all-in-scope"], ["--yes"]),
            (["delete", "a", "--all-in-scope", "--yes"], ["ids and --all-in-scope", "together"]),
            (["list", "--context", "window"], ["window"]),
            (["list", "--data", ""], ["--data", "empty"]),
            (["delete", "--filter", "{}"], ["--yes", "--dry-run"]),
            (["delete", "a", "--filter", "{}"], ["ids and --filter", "together"]),
        ]
        for arguments, words in cases:
            with self.subTest(" ".join(arguments)):
                message = self.fails(2, "kInvalidArgument", *arguments)
                for word in words:
                    self.assertIn(word, message)

    def test_log_level_words(self):
        self.env["INFERSCALE_LOG"] = "loud"
        self.assertIn("debug, info, warning, error, off", self.fails(2, "kInvalidArgument", "list"))

    def test_no_place_for_data(self):
        del self.env["HOME"]
        reply = self.run_cli("list", data="")
        self.assertEqual(reply.code, 2)
        self.assertIn(b"--data DIR", reply.err)

    def test_closed_output_is_an_error(self):
        import subprocess
        for arguments in (["version"], ["--help"], ["list", "--help"], ["list", "--json"]):
            with self.subTest(" ".join(arguments)), open("/dev/full", "wb") as full:
                run = subprocess.run(self.command(*arguments), env=self.env, stdout=full, stderr=subprocess.PIPE,
                                     check=False)
                self.assertEqual(run.returncode, 6)
                self.assertIn(b"could not be written", run.stderr)


class WithoutModels(CliCase):
    def test_commands_that_need_a_model_say_how_to_get_one(self):
        for command in (["ask", "x"], ["chat"], ["add", "a fact"], ["calibrate"], ["reencode"], ["bench", "ttft"]):
            with self.subTest(command[0]):
                message = self.fails(3, "kNotFound", *command)
                self.assertIn("./run setup", message)
                self.assertIn("--model", message)
        self.assertIn("/nowhere.gguf", self.fails(3, "kNotFound", "list", "--model", "/nowhere.gguf"))
        self.assertIn("/none.gguf", self.fails(3, "kNotFound", "list", "--embedder", "/none.gguf"))

    def test_everything_else_works(self):
        added = self.ok("add", "Mara lives in Graz", "--no-wait")
        self.assertEqual((added["facts_added"], added["facts_encoded"]), (1, 0))
        fact = added["ids"][0]
        self.assertEqual(self.ok("search", "Graz")["results"][0]["id"], fact)
        self.assertEqual(self.ok("get", fact)["text"], "Mara lives in Graz")
        self.assertEqual(self.ok("stats")["facts"], 1)
        self.assertEqual(len(self.ok("list")["facts"]), 1)
        self.assertTrue(self.ok("delete", fact)["verified"])

    def test_metadata_is_checked_first(self):
        self.assertIn("metadata", self.fails(2, "kInvalidArgument", "add", "x", "--no-wait", "--metadata", "[1]"))

    def test_doctor_names_what_is_missing(self):
        reply = self.run_cli("doctor", "--json")
        self.assertNotEqual(reply.code, 0)
        self.assertFalse(reply.json["ok"])
        self.assertTrue(any("model" in check["name"] and not check["ok"] for check in reply.json["checks"]))

    def test_several_models_are_listed(self):
        models = self.root / "cache" / "models"
        models.mkdir(parents=True)
        for name in ("a.gguf", "b.gguf"):
            (models / name).write_bytes(b"x")
        message = self.fails(2, "kInvalidArgument", "ask", "x")
        self.assertIn("a.gguf, b.gguf", message)

    def test_text_output_shows_no_control_characters(self):
        self.ok("add", "-", "--no-wait", stdin=b"red \x1b[31malert\x1b[0m \xe2\x80\xae here")
        for command in (["list"], ["search", "here"]):
            out = self.run_cli(*command).out
            self.assertIn(b"alert", out)
            self.assertNotIn(b"\x1b", out)
            self.assertNotIn("\u202e".encode(), out)
        document = self.run_cli("list", "--json").out
        self.assertTrue(json.loads(document))


if __name__ == "__main__":
    unittest.main()
