"""The rules. Each takes a Tree and yields (file, line, message); tidy_test.py shows for each that it can fail."""
import fnmatch
import os
import re
import shutil
import subprocess
from pathlib import Path

import sources

RULES = {}


def rule(function):
    RULES[function.__name__.replace("_", "-")] = function
    return function


# Order of the folders of src/: a folder may use itself and those before it.
LAYERS = ["base", "model", "kernels", "kv", "connector", "catalog", "retrieval", "prompt", "engine", "memory", "server", "cli"]
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def includes(tree, name):
    text = tree.text(name)
    for match in INCLUDE.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match.group(1), match.group(2)


@rule
def layers(tree):
    """An include that points down the list of folders; a public header that shows an internal or foreign one."""
    for name in tree.match(*sources.CPP_SUFFIXES, under="src/"):
        own = name.split("/")[1]
        for line, quote, path in includes(tree, name):
            target = path.split("/")[0]
            if quote == '"' and f"src/{path}" in tree.names and target not in LAYERS:
                yield name, line, f"{target} has no place in the list of folders ({' '.join(LAYERS)})"
            elif quote == '"' and target in LAYERS and own in LAYERS and LAYERS.index(target) > LAYERS.index(own):
                yield name, line, f"{own} may not use {target}: it stands further down ({' '.join(LAYERS)})"
    for name in tree.match(".h", under="include/"):
        for line, quote, path in includes(tree, name):
            if (quote == '"' and not path.startswith("inferscale/")) or (quote == "<" and re.search(r"[./]", path)):
                yield name, line, f"public headers include the standard library and each other only, not {path}"


SIZE_LIMITS = [  # (what, limit in lines, files)
    ("root CMakeLists.txt", 200, lambda n: n == "CMakeLists.txt"),
    ("test", 600, lambda n: n.startswith(("tests/", "fuzz/")) and n.endswith(sources.CPP_SUFFIXES + (".py", ".sh"))),
    ("header", 300, lambda n: n.endswith((".h", ".cuh"))),
    ("source", 400, lambda n: n.endswith((".cc", ".cu", ".py", ".sh")) or n == "run"),
]


@rule
def file_size(tree):
    """A file over its limit: sources 400 lines, headers 300, tests 600."""
    for name in tree.files:
        for what, limit, applies in SIZE_LIMITS:
            if applies(name):
                count = len(tree.lines(name))
                if count > limit:
                    yield name, limit + 1, f"{count} lines; a {what} has at most {limit}: split it by what it is about"
                break


FUNCTION_LIMIT = 70
LISTED_LIMIT = 120
EXCEPTIONS = "tests/tidy/exceptions.txt"


class Exceptions:
    """The entries of one rule in the list of exceptions: {(file, subject): (line of the list, reason)}."""

    def __init__(self, tree, wanted):
        self.entries, self.used = {}, set()
        for number, line in enumerate(tree.lines(EXCEPTIONS), 1):
            if line.strip() and not line.startswith("#"):
                name, file, subject, reason = (line.split(None, 3) + ["", "", ""])[:4]
                if name == wanted:
                    self.entries[file, subject] = (number, reason)

    def allow(self, file, subject):
        self.used.add((file, subject))
        return (file, subject) in self.entries

    def findings(self):
        for (file, subject), (number, reason) in self.entries.items():
            if (file, subject) not in self.used:
                yield EXCEPTIONS, number, f"{file} does not need this for {subject} any more: remove the entry"
            elif not reason:
                yield EXCEPTIONS, number, f"no reason given for {subject}"


@rule
def function_size(tree):
    """A function over 70 lines that the list of exceptions does not explain (with a reason: 120)."""
    exceptions = Exceptions(tree, "function-size")
    functions = [(name, item) for name in tree.match(*sources.CPP_SUFFIXES)
                 for item in sources.cpp_functions(tree.code(name))]
    functions += [(name, item) for name in tree.match(".py") for item in sources.python_functions(tree.text(name))]
    for name, (function, first, last) in functions:
        length = last - first + 1
        if length <= FUNCTION_LIMIT:
            continue
        if not exceptions.allow(name, function):
            yield name, first, (f"{function} has {length} lines, over {FUNCTION_LIMIT}: split it, "
                                f"or say why in {EXCEPTIONS}")
        elif length > LISTED_LIMIT:
            yield name, first, f"{function} has {length} lines: even with a reason {LISTED_LIMIT} is the most"
    yield from exceptions.findings()


CHECK = re.compile("INFERSCALE_CHECK_LAUNCH|cudaGetLastError")


@rule
def kernel_launch(tree):
    """A kernel launch that is not followed by its check."""
    for name in tree.match(".cu", ".cuh"):
        lines = tree.code(name).splitlines()
        for number, line in enumerate(lines, 1):
            if "<<<" in line and not CHECK.search("\n".join(lines[number - 1:number + 5])):
                yield name, number, "a launch without cudaGetLastError() or INFERSCALE_CHECK_LAUNCH right after it"


MARK = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b(?!\s*\(#\d+\))")


@rule
def open_ends(tree):
    """A note of unfinished work without the number of its issue."""
    for name in tree.files:
        if name.endswith(sources.CPP_SUFFIXES + (".py", ".sh", ".cmake", ".txt", ".md")) or name in ("run", ".ci/run"):
            for number, line in enumerate(tree.lines(name), 1):
                match = MARK.search(line)
                if match:
                    yield name, number, f"{match.group(1)} without an issue: write {match.group(1)}(#12)"


MANNERS = [
    ("print", "prints: use base/log.h", re.compile(
        r"(?<![\w:.>])(?:std::)?(?:v?f?printf|f?puts|putchar|perror)\s*\(|std::(?:cout|cerr|clog)\b|fmt::print\b")),
    ("abort", "ends the process: return a Status", re.compile(
        r"(?<![\w:.>])(?:std::)?(?:abort|_?exit|_Exit|quick_exit|terminate)\s*\(|\bGGML_(?:ASSERT|ABORT)\b")),
    ("throw", "throws: return a Status", re.compile(r"\bthrow\b")),
]


@rule
def manners(tree):
    """Library code that prints, ends the process or throws (src/ outside src/cli)."""
    exceptions = Exceptions(tree, "manners")
    for name in tree.match(*sources.CPP_SUFFIXES, under="src/"):
        if name.startswith("src/cli/"):
            continue
        for number, line in enumerate(tree.code(name).splitlines(), 1):
            for subject, what, pattern in MANNERS:
                if pattern.search(line) and not exceptions.allow(name, subject):
                    yield name, number, f"library code {what}"
    yield from exceptions.findings()


HOSTS = [f"{a}.{b}" for a, b in [("pypi", "org"), ("pythonhosted", "org"), ("debian", "org"), ("npmjs", "org"),
                                 ("crates", "io"), ("golang", "org")]]
PLACES = ["/" + place + "/" for place in ("work", "tmp/x", "root", "home/user")]


@rule
def words(tree):
    """A registry's host name, or a path of somebody's machine."""
    banned = re.compile("|".join(re.escape(word) for word in HOSTS + PLACES), re.IGNORECASE)
    boundary = re.compile(r"[\w.)}]")
    for name in tree.files:
        if name == "LICENSE":
            continue
        for number, line in enumerate(tree.lines(name), 1):
            for match in banned.finditer(line):
                inner = match.group(0).startswith("/") and match.start() and boundary.match(line[match.start() - 1])
                if not inner:
                    yield name, number, f"{match.group(0)} has no place in the project"


MAX_BYTES = 1 << 20


@rule
def junk(tree):
    """Models, archives, build products and anything over 1 MiB in the tree."""
    banned = re.compile(r"\.(gguf|safetensors|whl|gz|zip|o|a|so|pyc|orig|rej|swp|log)$")
    for name in tree.files:
        size = (tree.root / name).stat().st_size
        if banned.search(name):
            yield name, 1, "does not belong in the sources"
        elif size > MAX_BYTES:
            yield name, 1, f"{size} bytes: over 1 MiB; make it when it is needed"


@rule
def formatting(tree):
    """C++ that clang-format 14 would change (skipped, and said, where it is not installed)."""
    formatter = shutil.which("clang-format-14")
    if formatter is None:
        print("tidy: formatting not checked: clang-format 14 is not installed")
        return
    files = tree.match(*sources.CPP_SUFFIXES)
    if not files:
        return
    done = subprocess.run([formatter, "--dry-run", *files], cwd=tree.root, capture_output=True, text=True, check=False)
    seen = set()
    for match in re.finditer(r"^(.+?):(\d+):\d+: (?:warning|error): ", done.stderr, re.MULTILINE):
        if match.group(1) not in seen:
            seen.add(match.group(1))
            yield match.group(1), int(match.group(2)), "not formatted: ./run format"


def expand_braces(text):
    match = re.search(r"\{([^{}]*)\}", text)
    if not match:
        return [text]
    return [path for part in match.group(1).split(",")
            for path in expand_braces(text[:match.start()] + part.strip() + text[match.end():])]


def exists(tree, written, folder):
    """Is there, from the root or from the document's own folder, what the document writes (braces: each, *: any)?"""
    def there(path):
        return path in tree.names or path in tree.folders or ("*" in path and any(
            fnmatch.fnmatch(name, path) for name in tree.names | tree.folders))
    paths = expand_braces(re.sub(r":\d+$", "", written))
    return any(all(there(os.path.normpath(os.path.join(start, path))) for path in paths) for start in ("", folder))


LINK = re.compile(r"\]\(([^)\s]+)\)")
PATH = re.compile(r"^(?:\./)?[\w.\-]+(?:/[\w.\-{}*,]+)*/?(?::\d+)?$")
PLACEHOLDER = re.compile(r"/[A-Z]{2,}(?:/|$)")
IN_COMMENT = re.compile(r"\b(?:docs|tests|scripts|src|bench|cmake)/[\w./\-]*\w\.(?:md|txt|py|sh|h|cc)\b")


def named_paths(tree, doc):
    """(line, path) of what a document calls a path: a link, or a word of code that starts with a folder of the root."""
    top = {name.split("/")[0] for name in tree.files if "/" in name}
    for number, line in enumerate(tree.lines(doc), 1):
        for target in LINK.findall(line):
            target = target.split("#")[0]
            if target and "://" not in target and not target.startswith("mailto:"):
                yield number, target
        code = re.findall(r"`([^`]+)`", line) if "`" in line else []
        for word in [word for span in code or [line] for word in span.split()]:
            word = word.strip(".,;:()\"'|")
            is_path = PATH.match(word) and "/" in word and not PLACEHOLDER.search(word)
            if is_path and word.removeprefix("./").split("/")[0] in top:
                yield number, word


@rule
def named_files(tree):
    """A path named in a document, or in a comment, that does not exist."""
    for doc in tree.match(".md"):
        if doc == "CHANGELOG.md":  # tells of what was, too
            continue
        for line, path in named_paths(tree, doc):
            if not exists(tree, path, os.path.dirname(doc)):
                yield doc, line, f"{path} does not exist"
    for name in tree.match(*sources.CPP_SUFFIXES):
        for line, comment in sources.comments(tree.text(name)):
            for path in IN_COMMENT.findall(comment):
                if not exists(tree, path, ""):
                    yield name, line, f"{path} does not exist"


INDEX_FILES = re.compile(r"(^|/)(README\.md|CMakeLists\.txt|conftest\.py|pyproject\.toml)$|^[^/]+$|^\.ci/run$"
                         r"|^tests/(python|vllm)/test_\w+\.py$")  # pytest finds its tests by their names


def mentioned(tree, name, where):
    """Is the file's name, or for data the folder it lies in, written in one of the files `where`?"""
    path = Path(name)
    stem = re.sub(r"_(test|bench|fuzz|cpu|cuda)$", "", path.stem)
    names = {path.name, path.stem, stem}
    folders = [str(parent) for parent in path.parents if "/" in str(parent)]
    code = name.endswith(sources.CPP_SUFFIXES + (".sh", ".py", ".md"))
    for other in where:
        if other != name and (names & tree.words(other) or
                              (not code and any(folder in tree.text(other) for folder in folders))):
            return True
    return False


@rule
def unused_files(tree):
    """A source that no CMakeLists.txt names, a header nothing includes, a document or script nothing names."""
    included = {path for name in tree.match(*sources.CPP_SUFFIXES) for _, _, path in includes(tree, name)}
    documents = tree.match(".md")
    others = [name for name in tree.files if tree.text(name)]
    for name in tree.files:
        path = Path(name)
        if INDEX_FILES.search(name) or name.startswith("tests/install/consumer/"):
            continue
        if name.endswith((".cc", ".cu")):
            lists = [str(parent / "CMakeLists.txt") for parent in path.parents]
            named = any(path.name in tree.words(entry) for entry in tree.match("CMakeLists.txt"))
            if not named and not mentioned(tree, name, [entry for entry in lists if entry in tree.names]):
                yield name, 1, "no CMakeLists.txt names it"
        elif name.endswith((".h", ".cuh")):
            if not any(name == wanted or name.endswith("/" + wanted) for wanted in included):
                yield name, 1, "nothing includes it"
        elif name.endswith(".md"):
            if not mentioned(tree, name, documents):
                yield name, 1, "no document links to it"
        elif not mentioned(tree, name, others):
            yield name, 1, "nothing names it"
