"""The report of evaluations: the tables of a made-up result, its plots, and what unfit files are told."""
import copy
import json
import os
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPT = HERE.parent.parent / "scripts" / "eval_report.py"
RESULT = HERE / "eval_report" / "result.json"
GOLDEN = HERE / "eval_report" / "report.golden.txt"


def python_with_matplotlib():
    """This Python, or the system's, as `./run report` looks for it; None when neither has it."""
    for python in (sys.executable, "/usr/bin/python3"):
        try:
            if subprocess.run([python, "-c", "import matplotlib"], capture_output=True, check=False).returncode == 0:
                return python
        except OSError:
            pass
    return None


PLOTTER = python_with_matplotlib()
PLOTS = ["kl-context", "kl-k", "kl-cost", "rows"]


class EvalReportTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.result = json.loads(RESULT.read_text(encoding="utf-8"))

    def report(self, *files, plots=True):
        environment = dict(os.environ)
        if not plots:  # a matplotlib that cannot be imported
            (self.folder / "matplotlib.py").write_text("raise ImportError\n")
            environment["PYTHONPATH"] = str(self.folder)
        return subprocess.run([PLOTTER if plots else sys.executable, "-B", SCRIPT, *files, "--out", self.folder / "out"], text=True,
                              capture_output=True, check=False, env=environment, timeout=120)

    def report_of(self, result, name="result.json"):
        path = self.folder / name
        path.write_text(json.dumps(result), encoding="utf-8")
        return self.report(path, plots=False)

    def markdown(self):
        return (self.folder / "out" / "report.md").read_text(encoding="utf-8")

    def test_tables_without_matplotlib(self):
        done = self.report(RESULT, plots=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("no matplotlib", done.stderr)
        self.assertEqual(self.markdown(), GOLDEN.read_text(encoding="utf-8"))
        self.assertEqual([path.name for path in (self.folder / "out").iterdir()], ["report.md"])

    @unittest.skipIf(PLOTTER is None, "matplotlib is not installed")
    def test_plots_are_svg_and_the_same_each_time(self):
        done = self.report(RESULT)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.markdown().split("\n![")[0].rstrip(), GOLDEN.read_text(encoding="utf-8").rstrip())
        first = {}
        for plot in PLOTS:
            file = self.folder / "out" / f"result-{plot}.svg"
            self.assertIn(f"]({file.name})", self.markdown())
            self.assertEqual(xml.etree.ElementTree.parse(file).getroot().tag, "{http://www.w3.org/2000/svg}svg")
            first[plot] = file.read_bytes()
        self.assertIn(b"window:8", first["kl-context"])
        self.assertEqual(self.report(RESULT).returncode, 0)
        for plot in PLOTS:
            self.assertEqual((self.folder / "out" / f"result-{plot}.svg").read_bytes(), first[plot])

    @unittest.skipIf(PLOTTER is None, "matplotlib is not installed")
    def test_no_plots_of_what_was_not_measured(self):
        self.result["arms"] = [arm for arm in self.result["arms"] if arm["kind"] != "inject"]
        del self.result["rows"]
        path = self.folder / "bare.json"
        path.write_text(json.dumps(self.result))
        done = self.report(path)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([file.name for file in (self.folder / "out").iterdir()], ["report.md"])

    def test_several_files_are_several_sections(self):
        other = copy.deepcopy(self.result)
        other["model"] = "another-1B"
        path = self.folder / "other.json"
        path.write_text(json.dumps(other))
        done = self.report(RESULT, path, plots=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("## made-up-135M: ", self.markdown())
        self.assertIn("## another-1B: ", self.markdown())

    def test_names_arms_that_are_missing(self):
        self.result["arms"] = [arm for arm in self.result["arms"] if arm["kind"] == "inject"]
        self.assertEqual(self.report_of(self.result).returncode, 0)
        line = next(line for line in self.markdown().splitlines() if line.startswith("Arms not measured: "))
        for arm in ("none", "text k=5", "floor k=50", "header top_j=4 k=5", "window:8 scale=0.9 top_j=0 k=5"):
            self.assertIn(arm, line)

    def test_unknown_values_are_dashes(self):
        self.result["arms"][4]["metrics"]["kl_reference"] = {"mean": None, "low": None, "high": None}
        self.result["arms"][4]["ttft_ms"] = None
        self.assertEqual(self.report_of(self.result).returncode, 0)

    def test_says_what_is_missing_and_where(self):
        def without(*path):
            result = copy.deepcopy(self.result)
            holder = result
            for key in path[:-1]:
                holder = holder[key]
            del holder[path[-1]]
            return result
        for result, message in (
                (without("arms"), "\"arms\" is missing"), (without("schema"), "\"schema\" is missing"),
                (without("arms", 2, "top_j"), "arms[2]: \"top_j\" is missing"),
                (without("arms", 1, "metrics", "f1", "low"), "arms[1].metrics.f1: \"low\" is missing"),
                (without("encoding", 0, "facts"), "encoding[0]: \"facts\" is missing"),
                (without("rows", 0, "k_rel"), "rows[0]: \"k_rel\" is missing"),
                ({**self.result, "schema": 2}, "schema 2"), ({**self.result, "arms": []}, "there is none"),
                ({**self.result, "arms": [7]}, "arms[0]: is no object"), ([], "is no object"),
                ({**self.result, "rows": [{"context": "x", "k_rel": [[1], [1, 2]], "v_rel": [[1]]}]}, "no table")):
            done = self.report_of(result)
            self.assertEqual(done.returncode, 2, message)
            self.assertIn(message, done.stderr)
            self.assertNotIn("Traceback", done.stderr)
            self.assertFalse((self.folder / "out" / "report.md").exists())

    def test_files_that_are_none(self):
        path = self.folder / "broken.json"
        for content in (b"", b"{", b"\xff\xfe", b"[" * 100_000):
            path.write_bytes(content)
            done = self.report(path, plots=False)
            self.assertEqual(done.returncode, 2)
            self.assertIn("broken.json", done.stderr)
            self.assertNotIn("Traceback", done.stderr)
        self.assertEqual(self.report(self.folder / "absent.json", plots=False).returncode, 2)


if __name__ == "__main__":
    unittest.main()
