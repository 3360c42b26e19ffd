"""What the rules read: the project's files, C++ without comments and strings, and where functions begin and end."""
import ast
import functools
import os
import re
import subprocess
from pathlib import Path

CPP_SUFFIXES = (".h", ".cc", ".cu", ".cuh")
SKIPPED_DIRS = {".git", "build", "__pycache__", ".cache"}


class Tree:
    """The files of a project: what git tracks or would add, or every file below a folder that is no git checkout."""

    def __init__(self, root):
        self.root = Path(root).resolve()
        self.files = sorted(self._list())
        self.names = set(self.files)
        self.folders = {str(parent) for name in self.files for parent in Path(name).parents if str(parent) != "."}

    def _list(self):
        if (self.root / ".git").exists():
            listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=self.root,
                                    capture_output=True, text=True, check=True).stdout.split("\0")
            return [name for name in set(listed) if name and (self.root / name).is_file()]
        found = []
        for folder, folders, names in os.walk(self.root):
            folders[:] = [name for name in folders if name not in SKIPPED_DIRS]
            found += [str((Path(folder) / name).relative_to(self.root)) for name in names]
        return found

    def match(self, *suffixes, under=""):
        return [name for name in self.files if name.endswith(suffixes) and name.startswith(under)]

    @functools.lru_cache(maxsize=None)
    def text(self, name):
        """The content, or "" for a file that is not UTF-8 text."""
        try:
            return (self.root / name).read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError):
            return ""

    def lines(self, name):
        return self.text(name).splitlines()

    @functools.lru_cache(maxsize=None)
    def code(self, name):
        """C++ with comments, literals and preprocessor lines blanked out; lines keep their numbers."""
        return strip_cpp(self.text(name))

    @functools.lru_cache(maxsize=None)
    def words(self, name):
        """Every file-name-like word of the text."""
        return frozenset(re.findall(r"[\w.\-+]*\w", self.text(name)))


_TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/'                                 # comments
    r'|R"(?P<delimiter>[^()\\ ]{0,16})\(.*?\)(?P=delimiter)"'  # raw strings
    r'|"(?:\\.|[^"\\\n])*"'                               # strings
    r"|(?<![\w'])'(?:\\.|[^'\\\n])+'"                     # characters, but no digit separators
    r'|^[ \t]*\#(?:[^\n\\]|\\.|\\\n)*', re.DOTALL | re.MULTILINE)  # preprocessor lines


def strip_cpp(text):
    def blank(match):
        found = match.group(0)
        lines = "\n" * found.count("\n")
        return '""' + lines if found[0] in "\"'R" else " " + lines
    return _TOKEN.sub(blank, text)


def comments(text):
    """(line number, text) of every comment of a C++ file."""
    for match in _TOKEN.finditer(text):
        if match.group(0).startswith(("//", "/*")):
            first = text.count("\n", 0, match.start()) + 1
            for offset, line in enumerate(match.group(0).splitlines()):
                yield first + offset, line


_CONTAINER = re.compile(r'(?:inline\s+)?namespace\b|extern\s*""|(?:typedef\s+)?(?:class|struct|union|enum)\b')
_PREFIX = re.compile(
    r"^\s*(?:template\s*<[^{}]*?>\s*(?=[\w\[])|\[\[[^\]]*\]\]\s*|(?:public|private|protected)\s*:\s*)+")
_MEMBER_INIT = re.compile(r"\)\s*(?:noexcept\s*)?:[^:].*[\w>]\s*$", re.DOTALL)
_NAME = re.compile(r"([~\w:]*operator\s*[^\s\w(]+|[~\w:]*operator\s*\(\)|[~\w:]+)\s*\(")


def _kind(head):
    """What the brace after `head` opens: "container", "function" or "other" (an initialiser)."""
    bare = _PREFIX.sub("", head).strip()
    bare = re.sub(r"\balignas\s*\([^)]*\)|\[\[[^\]]*\]\]|__attribute__\s*\(\([^)]*\)\)", "", bare)
    if _CONTAINER.match(bare) and "(" not in bare.split(":", 1)[0]:
        return "container"
    if _MEMBER_INIT.search(bare) and not re.search(r"\b(const|override|noexcept|final)\s*$", bare):
        return "other"
    if "(" not in bare or re.search(r"(?<![=!<>])=\s*$", bare):
        return "other"
    return "function"


def cpp_functions(code):
    """(name, first line, last line) of every function defined in stripped C++; a lambda belongs to what holds it."""
    found = []
    opened = []  # (kind, head position, name) of every open brace
    head = 0
    parens = 0
    for position, char in enumerate(code):
        in_function = any(kind != "container" for kind, _, _ in opened)
        if char == "(":
            parens += 1
        elif char == ")":
            parens -= 1
        elif char == "{":
            kind = "other" if parens or in_function else _kind(code[head:position])
            name = _NAME.search(_PREFIX.sub("", code[head:position])) if kind == "function" else None
            opened.append((kind, head, name.group(1) if name else "?"))
            if kind == "container":
                head = position + 1
        elif char == "}" and opened:
            kind, begin, name = opened.pop()
            if kind == "function":
                begin += len(code[begin:]) - len(code[begin:].lstrip())
                found.append((name, code.count("\n", 0, begin) + 1, code.count("\n", 0, position) + 1))
            if kind != "other":
                head = position + 1
        elif char == ";" and not parens and not in_function:
            head = position + 1
    return found


def python_functions(text):
    return [(node.name, node.lineno, node.end_lineno) for node in ast.walk(ast.parse(text))
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
