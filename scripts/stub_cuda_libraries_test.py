#!/usr/bin/env python3
"""Tests of stub_cuda_libraries.py on libraries of its own, linked as torch is. Needs gcc and binutils."""
import ctypes
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import stub_cuda_libraries as tool

CUDART = "int cudaGetDeviceCount(int* n) { *n = 1; return 0; } const char* cudaGetErrorString(int e) { return \"fine\"; }"
DRIVER = "int cuInit(int flags) { return 0; }"
TORCH = """
int cudaGetDeviceCount(int* n); const char* cudaGetErrorString(int e); int cuInit(int flags); int own(void);
int devices(void) { int n = 7; int error = cudaGetDeviceCount(&n); return error * 10 + n; }
int driver(void) { return cuInit(0); }
char first_letter(void) { return cudaGetErrorString(1)[0]; }
int from_the_other(void) { return own(); }
int __attribute__((weak)) cudaNotThere(void);
int weak_is_null(void) { return cudaNotThere == 0; }
"""
OTHER = "int own(void) { return 5; }"


class Stubs(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.site = Path(scratch.name)
        self.lib = self.site / "torch" / "lib"
        self.lib.mkdir(parents=True)

    def compile(self, name, code, *options):
        source = self.site / "source.c"
        source.write_text(code)
        subprocess.run(["gcc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", str(self.lib / name), str(source),
                        f"-L{self.lib}", "-Wl,-rpath,$ORIGIN", *options], check=True)

    def make_torch(self):
        versions = self.site / "cudart.map"
        versions.write_text("libcudart.so.13 { global: cudaGetDeviceCount; cudaGetErrorString; local: *; };\n")
        self.compile("libcudart.so.13", CUDART, f"-Wl,--version-script,{versions}")
        self.compile("libcuda.so.1", DRIVER)
        self.compile("libc10.so", OTHER)
        self.compile("libtorch.so", TORCH, "-Wl,--no-as-needed", "-l:libcudart.so.13", "-l:libcuda.so.1", "-l:libc10.so")
        (self.lib / "libcudart.so.13").unlink()
        (self.lib / "libcuda.so.1").unlink()

    def test_loads_and_finds_no_device(self):
        self.make_torch()
        with self.assertRaisesRegex(OSError, "libcud"):
            ctypes.CDLL(str(self.lib / "libtorch.so"))
        self.assertEqual(tool.make(self.lib, "gcc"), (2, 3))
        torch = ctypes.CDLL(str(self.lib / "libtorch.so"))
        self.assertEqual(torch.devices(), tool.NO_DEVICE * 10 + 7)
        self.assertEqual(torch.driver(), tool.NO_DEVICE)
        self.assertEqual(torch.first_letter(), ord("t"))
        self.assertEqual(torch.from_the_other(), 5)
        self.assertEqual(torch.weak_is_null(), 1)

    def test_again_is_the_same(self):
        self.make_torch()
        first = tool.make(self.lib, "gcc")
        self.assertEqual(tool.make(self.lib, "gcc"), first)

    def test_what_needs_no_cuda_is_left_alone(self):
        self.compile("libc10.so", OTHER)
        self.assertEqual(tool.make(self.lib, "gcc"), (0, 0))
        self.assertEqual([path.name for path in self.lib.iterdir()], ["libc10.so"])


if __name__ == "__main__":
    unittest.main()
