#!/usr/bin/env python3
"""Asks the demo's questions with `ask --compare` and prints one table of what came out.

usage: demo_table.py [--k N] [--rounds N] BINARY DATA_DIRECTORY QUESTIONS
"""
import argparse
import json
import statistics
import subprocess
import sys
import textwrap
import unicodedata

WIDTH = 100
# (title, width, right-aligned); widths and gaps add up to WIDTH.
COLUMNS = [("question (what is expected)", 28, False), ("answer with memory", 21, False),
           ("answer without memory", 20, False), ("text ms", 7, True), ("inj. ms", 7, True), ("faster", 7, True)]
GAP = "  "


def ask(arguments, question):
    """One comparison; None, with the reason on stderr, when it failed."""
    command = [arguments.binary, "ask", "--compare", "--json", "--data", arguments.data, "--scope", "user=mara",
               "--k", str(arguments.k), "--rounds", str(arguments.rounds), "--max-tokens", "32", "--", question]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    try:
        reply = json.loads(run.stdout)
    except ValueError:
        reply = {"error": {"code": f"exit {run.returncode}", "message": "no JSON came back"}}
    if run.returncode != 0 or "arms" not in reply:
        error = reply.get("error", {})
        print(f"{question}: {error.get('code')}: {error.get('message')}", file=sys.stderr)
        return None
    return reply


def columns_of(text):
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def cell_lines(text, width):
    return textwrap.wrap(" ".join(text.split()), width) or [""]


def print_row(cells):
    lines = [cell_lines(cell, width) for cell, (_, width, _) in zip(cells, COLUMNS)]
    for i in range(max(map(len, lines))):
        parts = []
        for column, (_, width, right) in zip(lines, COLUMNS):
            text = column[i] if i < len(column) else ""
            space = " " * (width - columns_of(text))
            parts.append(space + text if right else text + space)
        print(GAP.join(parts).rstrip())


def print_table(rows):
    print()
    print_row([title for title, _, _ in COLUMNS])
    print(GAP.join("-" * width for _, width, _ in COLUMNS))
    for number, (item, reply) in enumerate(rows):
        if number:
            print()
        arms = reply["arms"]
        text, inject = (arms[name]["timings_ms"]["ttft"] for name in ("text", "inject"))
        print_row([f"{item['question']} ({item['expect']})", arms["inject"]["answer"], arms["none"]["answer"],
                   f"{text:,.0f}", f"{inject:,.0f}", f"{text / inject:.1f} x"])


def holds(answer, expected):
    """Whether an answer has the expected words, articles aside."""
    words = expected.lower().removeprefix("the ").removeprefix("a ")
    return words in answer.lower()


def summary(rows, arguments):
    replies = [reply for _, reply in rows]

    def middle(pick):
        return statistics.median(map(pick, replies))

    def first_token(arm):
        return middle(lambda reply: reply["arms"][arm]["timings_ms"]["ttft"])

    def right(arm):
        return sum(holds(reply["arms"][arm]["answer"], item["expect"]) for item, reply in rows)

    def tokens(arm, kind):
        return middle(lambda reply: reply["arms"][arm]["tokens"][kind])

    n = len(rows)
    fallbacks = sorted({f["reason"] for reply in replies for f in reply["arms"]["inject"]["fallbacks"]})
    return [
        f"Each question had its {arguments.k} best facts in the prompt, {tokens('text', 'prompt'):.0f} tokens in all. "
        f"As text the model reads all but the header, {tokens('text', 'prefilled'):.0f} tokens, before its first word; "
        f"injected, it reads {tokens('inject', 'prefilled'):.0f} and finds {tokens('inject', 'injected'):.0f} ready.",
        f"So the first word came after {first_token('inject'):,.0f} ms instead of {first_token('text'):,.0f} "
        f"({first_token('text') / first_token('inject'):.1f} times sooner); without any memory it takes "
        f"{first_token('none'):,.0f} ms (medians).",
        f"The two prompts were the same, token for token, for {sum(r['same_token_ids'] for r in replies)} of {n} "
        f"questions, and the two answers word for word for {sum(r['greedy_equal'] for r in replies)} of {n}. "
        f"They may differ a little, since each fact was read apart from the others: "
        f"{middle(lambda r: r['kl_first_token']):.3f} nats of difference in the first word's probabilities, where the "
        f"engine's own rounding makes {middle(lambda r: r['kl_noise_floor']):.3f}.",
        f"Expected words in the answer: injected {right('inject')} of {n}, text {right('text')} of {n}, "
        f"without memory {right('none')} of {n}. (A model of 135 million parameters; it is small, not the memory.)",
        "Facts that went as text after all: " + (", ".join(fallbacks) if fallbacks else "none") + ".",
    ]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("binary")
    parser.add_argument("data")
    parser.add_argument("questions")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    with open(arguments.questions, encoding="utf-8") as file:
        items = [json.loads(line) for line in file if line.strip()]
    rows = []
    for number, item in enumerate(items, 1):
        if sys.stderr.isatty():
            print(f"\r  question {number} of {len(items)} ", end="", file=sys.stderr, flush=True)
        reply = ask(arguments, item["question"])
        if reply:
            rows.append((item, reply))
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    if rows:
        print_table(rows)
        print()
        for paragraph in summary(rows, arguments):
            print(textwrap.fill(paragraph, WIDTH, initial_indent="- ", subsequent_indent="  "))
    different = [item["question"] for item, reply in rows if not reply["same_token_ids"]]
    for question in different:
        print(f"not the same token ids: {question}", file=sys.stderr)
    return 0 if len(rows) == len(items) and not different else 1


if __name__ == "__main__":
    sys.exit(main())
