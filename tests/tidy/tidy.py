#!/usr/bin/env python3
"""Checks what a machine can check about the sources; CONTRIBUTING.md lists the rules.

  tidy.py [--root DIR] [--rule NAME]...   the rules of rules.py; exit code 1 when one finds something
  tidy.py --headers BUILD_DIR [--compiler g++]   every header compiles by itself
"""
import argparse
import sys
from pathlib import Path

import headers
import rules
import sources


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2])
    parser.add_argument("--rule", action="append", choices=sorted(rules.RULES))
    parser.add_argument("--headers", type=Path, metavar="BUILD_DIR")
    parser.add_argument("--compiler", default="g++")
    options = parser.parse_args()

    tree = sources.Tree(options.root)
    if options.headers:
        findings = headers.check(tree, options.headers, options.compiler, ["include/", "src/"])
    else:
        findings = []
        for name in options.rule or sorted(rules.RULES):
            findings += [(file, line, f"{message} [{name}]") for file, line, message in rules.RULES[name](tree)]
    for file, line, message in sorted(findings):
        print(f"{file}:{line}: {message}")
    print(f"tidy: {len(tree.files)} files, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
