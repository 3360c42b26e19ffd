#!/usr/bin/env python3
"""Shows for every rule that it finds what it is there for, and leaves alone what is right."""
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

import headers
import rules
import sources

MARKER = "TO" + "DO"
HOST = "py" + "pi.org"


def body(lines):
    return "".join(f"  step({i});\n" for i in range(lines))


class RuleTest(unittest.TestCase):
    def tree(self, files):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        for name, text in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(text, bytes):
                path.write_bytes(text)
            else:
                path.write_text(textwrap.dedent(text))
        return sources.Tree(folder)

    def findings(self, name, files):
        return sorted(rules.RULES[name](self.tree(files)))

    def finds(self, name, files, file, words, line=None):
        found = self.findings(name, files)
        self.assertTrue(any(f == file and words in message and line in (None, at) for f, at, message in found),
                        f"{name} did not report {file}: {words}; it found {found}")

    def accepts(self, name, files):
        self.assertEqual(self.findings(name, files), [])


class LayersTest(RuleTest):
    def test_include_that_points_down(self):
        self.finds("layers", {"src/kv/a.cc": '#include <x>\n#include "engine/engine.h"\n'}, "src/kv/a.cc",
                   "kv may not use engine", 2)

    def test_folder_outside_the_list(self):
        self.finds("layers", {"src/kv/a.cc": '#include "misc/a.h"\n', "src/misc/a.h": ""}, "src/kv/a.cc", "misc")

    def test_public_header_shows_internals_or_libraries(self):
        for include in ('"base/file.h"', "<fmt/core.h>", "<sqlite3.h>"):
            self.finds("layers", {"include/inferscale/a.h": f"#include {include}\n"}, "include/inferscale/a.h", "public")

    def test_upwards_public_and_library_includes_are_right(self):
        self.accepts("layers", {
            "src/kv/a.cc": '#include "base/file.h"\n#include "kv/a.h"\n#include "inferscale/status.h"\n#include "hwy/x.h"\n',
            "include/inferscale/a.h": '#include <span>\n#include "inferscale/status.h"\n'})


class SizeTest(RuleTest):
    def test_files(self):
        for name, limit in (("src/kv/a.cc", 400), ("src/kv/a.h", 300), ("tests/unit/a_test.cc", 600),
                            ("tests/support/a.h", 600), ("CMakeLists.txt", 200), ("scripts/a.sh", 400)):
            self.finds("file-size", {name: "\n" * (limit + 1)}, name, f"at most {limit}")
            self.accepts("file-size", {name: "\n" * limit})

    def test_functions(self):
        long = "int f(int a) {\n" + body(69) + "}\n"
        self.finds("function-size", {"src/a.cc": "\n\n" + long}, "src/a.cc", "f has 71 lines", 3)
        self.accepts("function-size", {"src/a.cc": "int f(int a) {\n" + body(68) + "}\n"})
        self.finds("function-size", {"a.py": "def f():\n" + body(70).replace(";", "")}, "a.py", "f has 71 lines")

    def test_exceptions_need_a_reason_a_use_and_have_a_bound(self):
        long = {"src/a.cc": "int f(int a) {\n" + body(69) + "}\n"}
        self.accepts("function-size", {**long, rules.EXCEPTIONS: "function-size src/a.cc f one state machine\n"})
        self.finds("function-size", {**long, rules.EXCEPTIONS: "function-size src/a.cc f\n"}, rules.EXCEPTIONS, "no reason")
        self.finds("function-size", {rules.EXCEPTIONS: "function-size src/a.cc g why\n"}, rules.EXCEPTIONS, "remove")
        self.finds("function-size", {"src/a.cc": "int f() {\n" + body(130) + "}\n",
                                     rules.EXCEPTIONS: "function-size src/a.cc f why\n"}, "src/a.cc", "120")

    def test_how_functions_are_found(self):
        code = sources.strip_cpp(textwrap.dedent('''\
            namespace a { namespace {
            struct S : B<int(int)> { int m() const { return '{'; } int x = {}; };
            constexpr int kTable[] = {1, 2};
            #define M(x) { x
            S::S(int a) : x_{a}, y_(b) {
              run([](int) { return 1'000; });
            }
            template <typename T> requires (sizeof(T) > 1)
            auto S::operator()(T t) -> T { return R"({{)"; }
            enum class E { kA };
            TEST(Suite, Name) { if (x) { y(); } }
            }}
            void g(V v = {}) {}
        '''))
        found = [(name, last - first + 1) for name, first, last in sources.cpp_functions(code)]
        self.assertEqual([n for n, _ in found][0], "m")
        self.assertEqual(dict(found)["S::S"], 3)
        self.assertEqual(dict(found)["TEST"], 1)
        self.assertIn("g", dict(found))
        self.assertEqual(len(found), 5, found)


class TextTest(RuleTest):
    def test_kernel_launch(self):
        launch = "void f() {\n  k<<<1, 2>>>(a);\n"
        self.finds("kernel-launch", {"src/kernels/a_cuda.cu": launch + "}\n"}, "src/kernels/a_cuda.cu", "launch", 2)
        self.accepts("kernel-launch", {"src/kernels/a_cuda.cu": launch + "  return check(cudaGetLastError());\n}\n"})

    def test_open_ends(self):
        self.finds("open-ends", {"src/a.cc": f"// {MARKER}: later\n"}, "src/a.cc", "without an issue", 1)
        self.accepts("open-ends", {"src/a.cc": f"// {MARKER}(#12): later\n"})

    def test_manners(self):
        for line in ('std::printf("x");', 'fprintf(stderr, "x");', "std::cerr << 1;", "std::abort();", "exit(1);",
                     "throw 1;", 'puts("x");', "GGML_ASSERT(x);"):
            self.finds("manners", {"src/kv/a.cc": f"void f() {{\n  {line}\n}}\n"}, "src/kv/a.cc", "library code", 2)
            self.accepts("manners", {"src/cli/a.cc": f"void f() {{\n  {line}\n}}\n"})
        self.accepts("manners", {"src/kv/a.cc": '// never throw\nvoid f() { log("abort()"); snprintf(b, 1, "x"); }\n'})
        self.accepts("manners", {"src/kv/a.cc": "void f() { abort(); }\n", rules.EXCEPTIONS: "manners src/kv/a.cc abort why\n"})
        self.finds("manners", {rules.EXCEPTIONS: "manners src/kv/a.cc abort why\n"}, rules.EXCEPTIONS, "remove")

    def test_words(self):
        for word in (HOST, "/ro" + "ot/x", "in /wo" + "rk/main", "/tm" + "p/x/llama"):
            self.finds("words", {"docs/a.md": f"\n{word}\n"}, "docs/a.md", "no place", 2)
        self.accepts("words", {"a.sh": 'rm "$cache/wo' + 'rk/x"; ls a/ro' + 'ot/b\n'})

    def test_junk(self):
        self.finds("junk", {"models/a.gguf": b"GGUF"}, "models/a.gguf", "does not belong")
        self.finds("junk", {"a.bin": b"0" * (rules.MAX_BYTES + 1)}, "a.bin", "1 MiB")
        self.accepts("junk", {"a.bin": b"0" * rules.MAX_BYTES})

    @unittest.skipUnless(shutil.which("clang-format-14"), "clang-format 14 is not installed")
    def test_formatting(self):
        style = {".clang-format": "BasedOnStyle: Google\n"}
        self.finds("formatting", {**style, "src/a.cc": "int f( ){return 1;}\n"}, "src/a.cc", "not formatted")
        self.accepts("formatting", {**style, "src/a.cc": "int f() { return 1; }\n"})


class FilesTest(RuleTest):
    def test_paths_in_documents(self):
        there = {"src/kv/a.cc": "", "docs/b.md": ""}
        for text in ("see `src/kv/gone.cc`", "see [it](gone.md)", "```\nsrc/kv/gone.cc\n```", "`src/{kv,gone}/a.cc`",
                     "`src/gone*/a.cc`"):
            self.finds("named-files", {**there, "docs/a.md": text}, "docs/a.md", "does not exist")
        self.accepts("named-files", {**there, "docs/a.md": textwrap.dedent("""\
            `src/kv/`, `src/kv/a.cc:12`, `src/{kv}/a.cc`, `src/*/a.cc`, [b](b.md#part), [b](../docs/b.md), `a/b`,
            [site](https://example.org/x), `build/release/bin/x`, `docs/b.md`
            """)})
        self.finds("named-files", {"src/kv/a.cc": "// See docs/gone.md.\n"}, "src/kv/a.cc", "docs/gone.md")

    def test_unused_files(self):
        self.finds("unused-files", {"src/kv/a.cc": "", "src/kv/CMakeLists.txt": "b.cc"}, "src/kv/a.cc", "CMakeLists")
        self.finds("unused-files", {"src/kv/a.h": ""}, "src/kv/a.h", "includes")
        self.finds("unused-files", {"docs/a.md": "", "README.md": "x"}, "docs/a.md", "links")
        self.finds("unused-files", {"scripts/a.sh": "", "run": "x"}, "scripts/a.sh", "names")
        self.finds("unused-files", {"tests/golden/v1/a.bin": "x"}, "tests/golden/v1/a.bin", "names")
        self.finds("unused-files", {"tests/vllm/helper.py": "", "python/test_a.py": ""}, "tests/vllm/helper.py", "names")
        self.finds("unused-files", {"python/inferscale/a.py": ""}, "python/inferscale/a.py", "names")
        self.accepts("unused-files", {
            "README.md": "[a](docs/a.md)", "docs/a.md": "x", "run": "scripts/a.sh", "scripts/a.sh": "",
            "src/kv/CMakeLists.txt": "a.cc", "src/kv/a.cc": '#include "kv/a.h"', "src/kv/a.h": "x",
            "tests/golden/v1/a.bin": "x", "tests/unit/a_test.cc": '"tests/golden/v1"',
            "tests/vllm/test_a.py": "import helper", "tests/vllm/helper.py": "", "python/pyproject.toml": "",
            "tests/unit/CMakeLists.txt": "foreach(name a) ${name}_test.cc"})


class HeadersTest(RuleTest):
    def test_header_that_needs_another_before_it(self):
        tree = self.tree({"src/kv/a.h": "#pragma once\ninline std::size_t f() { return 0; }\n",
                          "src/kv/b.h": "#pragma once\n#include <cstddef>\ninline std::size_t g() { return 0; }\n",
                          "compile_commands.json": "[]"})
        for _ in range(2):  # a failure is not remembered as passed
            found = headers.check(tree, tree.root, "c++", ["src/"])
            self.assertEqual([name for name, _, _ in found], ["src/kv/a.h"])


class ProgramTest(RuleTest):
    def run_tidy(self, files):
        program = Path(__file__).with_name("tidy.py")
        return subprocess.run([sys.executable, program, "--root", self.tree(files).root], capture_output=True, text=True,
                              check=False)

    def test_exit_code(self):
        self.assertEqual(self.run_tidy({"README.md": "x\n"}).returncode, 0)
        failed = self.run_tidy({"README.md": f"{MARKER}\n"})
        self.assertEqual(failed.returncode, 1)
        self.assertIn("README.md:1: ", failed.stdout)


if __name__ == "__main__":
    unittest.main()
