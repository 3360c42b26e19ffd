"""Compiles each header by itself: what includes it first must not have to include something else before."""
import concurrent.futures
import hashlib
import json
import os
import shlex
import subprocess

import rules
import sources


def flags_of(build):
    """The include paths and definitions that the project's own sources are compiled with, from the build folder."""
    kept = []
    for entry in json.loads((build / "compile_commands.json").read_text()):
        words = shlex.split(entry["command"])
        for index, word in enumerate(words):
            if word.startswith("-I") and word != "-I":
                kept.append(word)
            elif word == "-isystem":
                kept.append("-isystem" + words[index + 1])
    return sorted(set(kept))


def closure(tree, name, seen):
    """The header and the project's headers it includes, themselves and through others."""
    if name in seen:
        return seen
    seen.add(name)
    for _, _, path in rules.includes(tree, name):
        for candidate in (f"include/{path}", f"src/{path}", f"tests/{path}"):
            if candidate in tree.names:
                closure(tree, candidate, seen)
    return seen


def check(tree, build, compiler, folders):
    """Findings as the rules give them. What compiled before and is unchanged, with all it includes, is not tried again."""
    flags = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", *flags_of(build), f"-I{tree.root}/tests"]
    memory = build / "tidy_headers.json"
    try:
        passed = set(json.loads(memory.read_text()))
    except (OSError, ValueError):
        passed = set()
    base = hashlib.sha256(repr((compiler, flags)).encode())

    def key(name):
        digest = base.copy()
        for part in sorted(closure(tree, name, set())):
            digest.update(f"{part}\0{tree.text(part)}\0".encode())
        return digest.hexdigest()

    def compile_alone(name):
        return subprocess.run([compiler, *flags, "-x", "c++", "-include", str(tree.root / name), os.devnull],
                              capture_output=True, text=True, check=False)

    headers = {name: key(name) for folder in folders for name in tree.match(".h", under=folder)}
    todo = [name for name in headers if headers[name] not in passed]
    findings = []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, done in zip(todo, pool.map(compile_alone, todo)):
            if done.returncode:
                findings.append((name, 1, "does not compile by itself:\n" + done.stderr[:2000]))
    failed = {name for name, _, _ in findings}
    memory.write_text(json.dumps([value for name, value in headers.items() if name not in failed]))
    print(f"tidy: {len(headers)} headers, {len(todo)} compiled, {len(failed)} failed")
    return findings
