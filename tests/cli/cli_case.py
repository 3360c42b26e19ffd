"""What the tests of the command line share: the binary, a data directory for each test, small models.

Environment: INFERSCALE_BINARY, MAKE_RANDOM_MODEL (set by ctest), INFERSCALE_TEST_MODELS (a folder with the packaged
models; only the tests labelled `model` need it).
"""
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

BINARY = os.environ.get("INFERSCALE_BINARY", "build/release/bin/inferscale")
SOURCE = Path(__file__).resolve().parents[2]
DEMO = SOURCE / "examples" / "demo"

_models = None


def random_model(family="llama", name=None):
    """A small random model, made once for all tests of this process."""
    global _models
    if _models is None:
        _models = tempfile.TemporaryDirectory(prefix="inferscale-models-")
    path = Path(_models.name) / f"{family}-{name or 'as-is'}.gguf"
    if not path.exists():
        command = [os.environ["MAKE_RANDOM_MODEL"], str(path), family] + ([name] if name else [])
        subprocess.run(command, check=True)
    return path


class Reply:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    @property
    def json(self):
        lines = [line for line in self.out.decode().splitlines() if line]
        if len(lines) != 1:
            raise AssertionError(f"stdout is not one line of JSON: {self.out!r} (stderr {self.err!r})")
        return json.loads(lines[0])


class CliCase(unittest.TestCase):
    """Runs the binary on a fresh data directory, with a small random model and without an embedding model."""

    maxDiff = None

    def setUp(self):
        self.root = Path(tempfile.mkdtemp(prefix="inferscale-cli-"))
        self.addCleanup(shutil.rmtree, self.root, ignore_errors=True)
        self.data = self.root / "data"
        self.env = {"PATH": os.environ["PATH"], "HOME": str(self.root), "INFERSCALE_CACHE": str(self.root / "cache"),
                    "INFERSCALE_EMBEDDER": "none", "LC_ALL": "C.UTF-8"}
        for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "LD_LIBRARY_PATH"):
            if name in os.environ:
                self.env[name] = os.environ[name]

    def use_random_model(self):
        self.env["INFERSCALE_MODEL"] = str(random_model())

    def command(self, *arguments, data=None):
        # One thread: the models are tiny, and threads that wait for each other spin.
        place = [] if data == "" else ["--data", str(data or self.data)]
        return [BINARY, *place, "--threads", "1", *map(str, arguments)]

    def run_cli(self, *arguments, data=None, stdin=b"", timeout=280):
        run = subprocess.run(self.command(*arguments, data=data), env=self.env, input=stdin, capture_output=True,
                             timeout=timeout, check=False)
        return Reply(run.returncode, run.stdout, run.stderr)

    def ok(self, *arguments, **options):
        """Runs a command with --json that must work; gives its document."""
        reply = self.run_cli(*arguments, "--json", **options)
        self.assertEqual(reply.code, 0, (arguments, reply.out, reply.err))
        return reply.json

    def fails(self, exit_code, code, *arguments, **options):
        """Runs a command that must fail, both ways of output; gives the message."""
        plain = self.run_cli(*arguments, **options)
        self.assertEqual(plain.code, exit_code, (arguments, plain.out, plain.err))
        self.assertIn(f"inferscale: {code}: ".encode(), plain.err)
        as_json = self.run_cli(*arguments, "--json", **options)
        self.assertEqual(as_json.code, exit_code, (arguments, as_json.out, as_json.err))
        error = as_json.json["error"]
        self.assertEqual(error["code"], code)
        return error["message"]

    def write(self, name, content):
        path = self.root / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def fields(self, document, **types):
        """Checks that the fields are there with their types; float takes int too."""
        for name, kind in types.items():
            self.assertIn(name, document)
            accepted = (int, float) if kind is float else kind
            self.assertIsInstance(document[name], accepted, (name, document[name]))
            if kind in (int, float):
                self.assertNotIsInstance(document[name], bool)

    def facts(self, *options):
        """All facts of the scope, as (text, event time, sources)."""
        found, cursor = [], ""
        while True:
            page = self.ok("list", "--limit", 1000, *(["--cursor", cursor] if cursor else []), *options)
            found += [(f["text"], f["event_time"], tuple(f["source_turns"])) for f in page["facts"]]
            cursor = page["next_cursor"]
            if not cursor:
                return found

    def start(self, *arguments, **options):
        process = subprocess.Popen(self.command(*arguments), env=self.env, stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
        self.addCleanup(self._stop, process)
        return process

    @staticmethod
    def _stop(process):
        if process.poll() is None:
            process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            stream.close()

    def signal_while_working(self, process, number, after):
        """Sends a signal once the data directory is there and `after` seconds have passed."""
        deadline = time.monotonic() + 60
        while not (self.data / "catalog.sqlite").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(after)
        self.assertIsNone(process.poll(), "it had ended before the signal came")
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
        return Reply(process.returncode, out, err)


INTERRUPT = signal.SIGINT
KILL = signal.SIGKILL


def chat_lines(count, words=""):
    return "".join(json.dumps({"role": "user", "name": "Mara", "id": f"d{i}", "content": f"Fact number {i}. {words}",
                               "time": f"2025-{i % 12 + 1:02}-{i % 28 + 1:02}T10:00:00Z"}) + "\n"
                   for i in range(count))
