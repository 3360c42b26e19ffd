"""Tables (Markdown) and plots (SVG) of result files of `inferscale eval`:
    eval_report.py FILE.json... [--out DIR]
DIR (default: eval-report) gets report.md and the plots. Without matplotlib the tables come all the same.
Exit codes: 0 done; 2 a file cannot be read or lacks something, which is named."""
import argparse
import json
import math
import sys
from pathlib import Path

import eval_plots

SCHEMA = 1
METRICS = [  # (name, heading, digits)
    ("kl_first", "KL first", 4), ("kl_reference", "KL", 4), ("top1_reference", "top-1", 3),
    ("nll_minus_text", "NLL − text", 3), ("margin_minus_text", "margin − text", 3), ("rank1", "rank 1", 3),
    ("f1", "F1", 3)]
MAX_BYTES = 256 << 20
MAX_MISSING = 12  # arms that are named


class Unfit(Exception):
    """A result file that is not what it should be; the message names the place."""


def need(holder, key, kind, where):
    """holder[key] if it is of that kind (or a tuple of kinds), else Unfit."""
    if not isinstance(holder, dict):
        raise Unfit(f"{where}: is no object")
    if key not in holder:
        raise Unfit(f"{where}: \"{key}\" is missing")
    value = holder[key]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise Unfit(f"{where}.{key}: has the wrong type")
    return value


NUMBER = (int, float)
VALUE = (int, float, type(None))  # JSON has no NaN: null


def check_arm(arm, where):
    for key in ("name", "kind", "context", "cure"):
        need(arm, key, str, where)
    for key in ("top_j", "k", "questions"):
        need(arm, key, int, where)
    for name, metric in need(arm, "metrics", dict, where).items():
        for key in ("mean", "low", "high"):
            need(metric, key, VALUE, f"{where}.metrics.{name}")
    for name, means in need(arm, "by_category", dict, where).items():
        need(means, "questions", int, f"{where}.by_category.{name}")
    for key in ("prompt", "injected", "prefilled"):
        need(need(arm, "tokens", dict, where), key, VALUE, f"{where}.tokens")
    need(arm, "ttft_ms", VALUE, where)
    if "judge" in arm:
        need(arm["judge"], "accuracy", VALUE, f"{where}.judge")
        need(arm["judge"], "unparsed", int, f"{where}.judge")


def check_rows(rows, where):
    for key in ("k_rel", "v_rel"):
        matrix = need(rows, key, list, where)
        widths = {len(row) if isinstance(row, list) else -1 for row in matrix}
        if not matrix or len(widths) != 1 or widths & {-1, 0} or not all(
                isinstance(value, NUMBER) for row in matrix for value in row):
            raise Unfit(f"{where}.{key}: is no table of numbers")
    need(rows, "context", str, where)


def check(result):
    where = "result"
    if need(result, "schema", int, where) != SCHEMA:
        raise Unfit(f"schema {result['schema']} is not known, only {SCHEMA}")
    for key in ("machine", "model", "library", "command", "started"):
        need(result, key, str, where)
    need(need(result, "set", dict, where), "name", str, "set")
    for key in ("cases", "questions"):
        need(result["set"], key, int, "set")
    if not need(result, "arms", list, where):
        raise Unfit("arms: there is none")
    for index, arm in enumerate(result["arms"]):
        check_arm(arm, f"arms[{index}]")
    for index, row in enumerate(need(result, "encoding", list, where)):
        need(row, "context", str, f"encoding[{index}]")
        for key in ("facts", "own_tokens", "prefilled_tokens", "ms", "reach"):
            need(row, key, NUMBER, f"encoding[{index}]")
    for index, rows in enumerate(result.get("rows") or []):
        check_rows(rows, f"rows[{index}]")


def load(path):
    try:
        if path.stat().st_size > MAX_BYTES:
            raise Unfit(f"is larger than {MAX_BYTES} bytes")
        result = json.loads(path.read_text(encoding="utf-8"))
        check(result)
        return result
    except (OSError, UnicodeDecodeError, RecursionError, json.JSONDecodeError, Unfit) as error:
        raise Unfit(f"{path}: {error}") from error


def number(value, digits):
    if value is None or not math.isfinite(value):
        return "–"
    text = f"{value:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", "−")


def table(heading, rows):
    """Columns without any value are left out."""
    kept = [column for column in range(len(heading))
            if column == 0 or any(row[column] != "–" for row in rows)]
    def cell(text):
        return str(text).replace("|", "\\|").replace("\n", " ")
    lines = [[heading[column] for column in kept], ["---"] + ["--:"] * (len(kept) - 1)]
    lines += [[cell(row[column]) for column in kept] for row in rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def metric_cell(arm, name, digits):
    metric = arm["metrics"].get(name)
    if metric is None or metric["mean"] is None:
        return "–"
    text = number(metric["mean"], digits)
    if metric["low"] is not None and metric["high"] is not None:
        text += f" [{number(metric['low'], digits)}, {number(metric['high'], digits)}]"
    p = metric.get("p")
    return text if not isinstance(p, NUMBER) else f"{text} (p {number(p, 3)})"


def arms_table(result):
    heading = ["arm", "questions"] + [heading for _, heading, _ in METRICS]
    heading += ["judged %", "unparsed", "prompt tokens", "injected", "prefilled", "TTFT ms"]
    rows = []
    for arm in result["arms"]:
        judge = arm.get("judge")
        rows.append([arm["name"], arm["questions"]] + [metric_cell(arm, name, digits) for name, _, digits in METRICS] + [
            "–" if judge is None or judge["accuracy"] is None else number(100 * judge["accuracy"], 1),
            "–" if judge is None else judge["unparsed"],
            *(number(arm["tokens"][key], 0) for key in ("prompt", "injected", "prefilled")), number(arm["ttft_ms"], 1)])
    return table(heading, rows)


def category_table(result, metric):
    names = sorted({name for arm in result["arms"] for name, means in arm["by_category"].items()
                    if isinstance(means.get(metric), NUMBER)})
    if not names:
        return []
    rows = [[arm["name"]] + [number(arm["by_category"].get(name, {}).get(metric), 3) for name in names]
            for arm in result["arms"]]
    return table(["arm"] + names, rows)


def encoding_table(result):
    rows = []
    for row in result["encoding"]:
        facts = max(row["facts"], 1)
        rows.append([row["context"], row["facts"], number(row["own_tokens"] / facts, 1),
                     number(row["prefilled_tokens"] / facts, 1), number(row["ms"] / facts, 1),
                     number(row["reach"], 1)])
    return table(["context", "facts", "own tokens per fact", "prefilled per fact", "ms per fact",
                  "reach of a delete"], rows)


def missing_arms(result):
    """What a full grid of the measured contexts, top_j and k would have besides."""
    arms = result["arms"]
    have = {(arm["kind"], arm["k"]) for arm in arms}
    inject = [arm for arm in arms if arm["kind"] == "inject"]
    counts = sorted({arm["k"] for arm in inject})
    missing = [f"{kind} k={k}" for kind in ("text", "floor") for k in counts if (kind, k) not in have]
    if not any(arm["kind"] == "none" for arm in arms):
        missing.insert(0, "none")
    done = {(arm["context"], arm["cure"], arm["top_j"], arm["k"]) for arm in inject}
    for context, cure in sorted({(arm["context"], arm["cure"]) for arm in inject}):
        for top_j in sorted({arm["top_j"] for arm in inject}):
            for k in counts:
                if (context, cure, top_j, k) not in done:
                    missing.append(" ".join(filter(None, [context, cure, f"top_j={top_j} k={k}"])))
    return missing


def section(result, plots):
    about = result["set"]
    lines = [f"## {result['model']}: {about['name']}, {about['cases']} cases, {about['questions']} questions", ""]
    lines += [f"{result['machine']}; {result['library']}; {result['started']}.", "", f"    {result['command']}", ""]
    lines += ["Means with 95 % intervals over cases; p from a paired sign-flip test. KL and top-1 are against text with the",
              "same facts, along its answer; \"floor\" is text against itself under another batch shape.", ""]
    lines += arms_table(result) + [""]
    for metric, what in (("kl_reference", "KL along the text arm's answer"), ("f1", "Token F1"),
                         ("margin", "Margin over distractors"), ("rank1", "Gold answer likeliest"),
                         ("nll_gold", "NLL of the gold answer")):
        by_category = category_table(result, metric)
        if by_category:
            lines += [f"{what} by category:", ""] + by_category + [""]
    if result["encoding"]:
        lines += ["What encoding costs, and how many other facts' records go, on average, when one fact is deleted:", ""]
        lines += encoding_table(result) + [""]
    recall = result.get("recall")
    if isinstance(recall, dict) and recall:
        shown = ", ".join(f"{number(recall[k], 3)} at k={k}" for k in sorted(recall, key=lambda k: (len(k), k)))
        lines += [f"Evidence recall of retrieval: {shown}.", ""]
    missing = missing_arms(result)
    if missing:
        more = f"; and {len(missing) - MAX_MISSING} more" if len(missing) > MAX_MISSING else ""
        lines += ["Arms not measured: " + "; ".join(missing[:MAX_MISSING]) + more + ".", ""]
    for name, caption in plots:
        lines += [f"![{caption}]({name})", ""]
    return lines


def main(arguments):
    parser = argparse.ArgumentParser(prog="eval_report.py", description="Tables and plots of evaluations.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.json")
    parser.add_argument("--out", type=Path, default=Path("eval-report"), metavar="DIR")
    options = parser.parse_args(arguments)
    try:
        results = [load(path) for path in options.files]
        options.out.mkdir(parents=True, exist_ok=True)
        drawing = eval_plots.load_matplotlib()
        if drawing is None:
            print("eval_report: no matplotlib here: tables only, no plots", file=sys.stderr)
        lines = []
        for index, (path, result) in enumerate(zip(options.files, results)):
            stem = path.stem if len(results) == 1 else f"{index + 1}-{path.stem}"
            plots = eval_plots.draw(drawing, result, options.out, stem) if drawing else []
            lines += section(result, plots)
        (options.out / "report.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    except (Unfit, OSError) as error:
        print(f"eval_report: {error}", file=sys.stderr)
        return 2
    print(options.out / "report.md")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
