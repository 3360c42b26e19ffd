#!/usr/bin/env python3
"""Makes a CUDA build of torch loadable without CUDA: stub_cuda_libraries.py SITE_PACKAGES [--cc gcc]

Package registries have torch for CUDA only. It computes on the CPU as any other, but does not load unless the CUDA libraries that it is
linked with are found. This puts one small library into torch/lib that defines every symbol torch takes from them, each a
function that answers "no device", and a link to it under the name of each missing library. For the CPU only: the same
torch cannot use a GPU any more.
"""
import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

STUB = "libinferscale_no_cuda.so"
MISSING = re.compile(r"lib(cu|nccl|nv)")  # how CUDA's libraries are called ...
FUNCTION = re.compile(r"(__)?(cu|nccl|nv)")  # ... and their functions
NO_DEVICE = 100  # cudaErrorNoDevice, CUDA_ERROR_NO_DEVICE
MESSAGE = re.compile(r"Error(String|Name)|_error_string", re.IGNORECASE)  # these return text, where a number would be read
SYMBOL = re.compile(r"^\s*\d+:\s+\S+\s+\S+\s+(?P<type>\S+)\s+(?P<bind>\S+)\s+\S+\s+(?P<section>\S+)\s+(?P<name>\S+)", re.MULTILINE)
VERSION_FILE = re.compile(r"File: (\S+)|Name: (\S+)\s+Flags")


def readelf(option: str, path: Path) -> str:
    return subprocess.run(["readelf", "--wide", option, str(path)], capture_output=True, text=True, check=True).stdout


def needed_libraries(path: Path) -> set:
    return set(re.findall(r"\(NEEDED\).*\[(.+)\]", readelf("--dynamic", path)))


def versions_by_library(path: Path) -> dict:
    """{version name: library} of the versioned symbols that the file takes from elsewhere."""
    text = readelf("--version-info", path).partition("Version needs section")[2]
    found, library = {}, ""
    for file, name in VERSION_FILE.findall(text):
        library = file or library
        if name:
            found[name] = library
    return found


def collect(folder: Path) -> tuple:
    """The missing libraries, and the (symbol, version or "") that the files of the folder take from them."""
    missing, wanted, defined = set(), set(), set()
    files = sorted(path for path in folder.iterdir() if ".so" in path.name and not path.is_symlink() and path.name != STUB)
    present = {path.name for path in files}
    for path in files:
        missing |= {name for name in needed_libraries(path) if MISSING.match(name) and name not in present}
        versions = versions_by_library(path)
        for symbol in SYMBOL.finditer(readelf("--dyn-syms", path)):
            name, _, version = symbol["name"].partition("@")
            version = version.lstrip("@")
            if symbol["section"] != "UND":
                defined.add(name)
            elif version and MISSING.match(versions.get(version, "")):
                wanted.add((name, version))
            elif not version and symbol["bind"] == "GLOBAL" and FUNCTION.match(name):
                wanted.add((name, ""))
    return missing, {(name, version) for name, version in wanted if version or name not in defined}


def source(symbols: set) -> str:
    lines = ["#include <stddef.h>", f"static size_t no_device(void) {{ return {NO_DEVICE}; }}",
             'static const char* no_message(void) { return "this torch was made to compute on the CPU only"; }']
    for name in sorted({name for name, _ in symbols}):
        target, result = ("no_message", "const char*") if MESSAGE.search(name) else ("no_device", "size_t")
        lines.append(f'{result} {name}(void) __attribute__((alias("{target}")));')
    return "\n".join(lines) + "\n"


def version_script(symbols: set) -> str:
    by_version = {}
    for name, version in sorted(symbols):
        by_version.setdefault(version, []).append(name)
    by_version.pop("", None)  # these stay without a version
    return "".join(f"{version} {{ global: {'; '.join(names)}; }};\n" for version, names in by_version.items())


def make(folder: Path, compiler: str) -> tuple:
    """Builds the stub into the folder; the number of libraries and of symbols that it stands for."""
    missing, symbols = collect(folder)
    if not missing:
        return 0, 0
    names = [name for name, _ in symbols]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"wanted in several versions: {' '.join(sorted(twice))}")
    with tempfile.TemporaryDirectory() as scratch:
        code, script = Path(scratch, "stub.c"), Path(scratch, "stub.map")
        code.write_text(source(symbols))
        script.write_text(version_script(symbols))
        subprocess.run([compiler, "-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{STUB}",
                        *([f"-Wl,--version-script,{script}"] if script.stat().st_size else []),
                        "-o", str(folder / STUB), str(code)], check=True)
    for name in missing:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(STUB)
    return len(missing), len(symbols)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site_packages", type=Path)
    parser.add_argument("--cc", default="gcc")
    arguments = parser.parse_args()
    try:
        libraries, symbols = make(arguments.site_packages / "torch" / "lib", arguments.cc)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        print(f"stub_cuda_libraries: {error}", file=sys.stderr)
        return 1
    print(f"stub_cuda_libraries: {libraries} libraries, {symbols} symbols")
    return 0


if __name__ == "__main__":
    sys.exit(main())
