#!/bin/sh
# Provides CUDA's compiler where there is none, for the kernels of src/kernels/cuda:
#   provide_cuda.sh               says where one is; fetches the pinned one (105 MB) unless there is one
#   provide_cuda.sh --fetch       the same, but does not look for one of the machine's
#   provide_cuda.sh --print-root  prints the folder where the pinned one belongs and does nothing else; exit code 3 when it
#                                 is not there
# The machine's: nvcc in PATH or in /usr/local/cuda. The pinned one: NVIDIA's own wheels of CUDA 13.0, for x86-64.
set -u
repo=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd) || exit 1
. "$repo/scripts/common.sh"

pins=$repo/scripts/requirements/cuda.txt
root=$cache/cuda/$(sha256sum "$pins" | cut -c1-12)

if [ "${1:-}" = --print-root ]; then
  printf '%s\n' "$root"
  [ -x "$root/bin/nvcc" ] || exit 3
  exit 0
fi
[ $# -eq 0 ] || [ "$1" = --fetch ] || fail 2 "usage: provide_cuda.sh [--fetch | --print-root]"

if [ $# -eq 0 ]; then
  for nvcc in "$(command -v nvcc)" /usr/local/cuda/bin/nvcc; do
    [ -n "$nvcc" ] && [ -x "$nvcc" ] || continue
    say "CUDA: $nvcc, $("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')"
    exit 0
  done
fi

fetch() {
  say "CUDA: fetching its compiler, 105 MB"
  pip_download "$pins" "$work" "$log" --only-binary :all:
  mkdir -p "$work/unpacked"
  for wheel in "$work"/*.whl; do
    run_logged "$log" "$tools_python" -m zipfile -e "$wheel" "$work/unpacked"
  done
  toolkit=$work/unpacked/nvidia/cu13
  # Wheels keep no modes when they are unpacked so, and CMake looks for the libraries under another name.
  run_logged "$log" chmod -R a+rX "$toolkit"
  run_logged "$log" chmod a+x "$toolkit"/bin/* "$toolkit"/nvvm/bin/*
  run_logged "$log" ln -s lib "$toolkit/lib64"
  run_logged "$log" "$toolkit/bin/nvcc" --version
  mkdir -p "$cache/cuda"
  run_logged "$log" mv -T "$toolkit" "$root"
}

if [ ! -x "$root/bin/nvcc" ]; then
  [ "$(uname -m)" = x86_64 ] || fail 69 "the pins of CUDA are for x86-64, this is $(uname -m)"
  clean_up_on_exit
  lock cuda 9
  if [ ! -x "$root/bin/nvcc" ]; then
    log=$cache/logs/cuda.log
    mkdir -p "$cache/logs"
    : >"$log"
    provide_tools
    fresh_work cuda
    fetch
  fi
fi
say "CUDA: $root/bin/nvcc"
