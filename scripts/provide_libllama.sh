#!/bin/sh
# Builds libllama (the embedded engine) once and keeps it outside the build folders:
#   provide_libllama.sh               builds it unless it is there, and says where it is
#   provide_libllama.sh --print-root  prints the folder where this machine's build belongs and does nothing else;
#                                     exit code 3 when it has not been built yet
# The source is the copy of llama.cpp inside a pinned Python source package. Only the library and its CPU backend are
# built, as position-independent static archives. INFERSCALE_LLAMA_CC and INFERSCALE_LLAMA_CXX choose the compilers.
set -u
repo=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd) || exit 1
. "$repo/scripts/common.sh"

version=0.5.0
package=llama_cpp_python-0.3.36
cc=${INFERSCALE_LLAMA_CC:-gcc}
cxx=${INFERSCALE_LLAMA_CXX:-g++}
# No OpenMP: its runtime is not instrumented and would make ThreadSanitizer report races that are none; and native
# code: both measured, see docs/building.md.
flags="-DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DCMAKE_POSITION_INDEPENDENT_CODE=ON
  -DCMAKE_INSTALL_LIBDIR=lib -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF
  -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_CURL=OFF -DLLAMA_BUILD_IS_DEV=OFF
  -DLLAMA_BUILD_NUMBER=0 -DLLAMA_BUILD_COMMIT=$package -DGGML_OPENMP=OFF -DGGML_NATIVE=ON -DGGML_CCACHE=OFF"
vocabularies="llama-bpe llama-spm qwen2 gpt-2 refact"

# Two machines (or compilers) share a build only if -march=native means the same to both: the predefined macros name
# every instruction set and the compiler's version.
build_key() {
  {
    cat "$repo/scripts/requirements/libllama.txt"
    printf '%s\n' "$flags" "$vocabularies"
    "$cxx" --version | head -n 1
    "$cxx" -march=native -dM -E -x c++ /dev/null 2>/dev/null || cat /proc/cpuinfo
  } | sha256sum | cut -c1-12
}

root=$cache/libllama/$version-$(build_key)

if [ "${1:-}" = --print-root ]; then
  printf '%s\n' "$root"
  [ -d "$root" ] || exit 3
  exit 0
fi
[ $# -eq 0 ] || fail 2 "usage: provide_libllama.sh [--print-root]"

launcher_flags() {
  command -v ccache >/dev/null || return 0
  printf '%s\n' "-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache"
}

build() {
  say "libllama $version: building once, about 4 minutes on 2 cores"
  pip_download "$repo/scripts/requirements/libllama.txt" "$work" "$log" --no-binary :all: --no-build-isolation
  run_logged "$log" tar -xzf "$work/$package.tar.gz" -C "$work" "$package/vendor/llama.cpp"
  source=$work/$package/vendor/llama.cpp
  # shellcheck disable=SC2046,SC2086 # the flags are words
  run_logged "$log" cmake -S "$source" -B "$work/build" -G Ninja $flags $(launcher_flags) \
    -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_INSTALL_PREFIX="$root"
  # Relative paths, so that ccache knows the objects again whichever folder the cache is in.
  run_logged "$log" env CCACHE_BASEDIR="$work" cmake --build "$work/build"
  run_logged "$log" env DESTDIR="$work/stage" cmake --install "$work/build"
  staged=$work/stage$root
  mkdir -p "$staged/share/vocab" "$staged/share/doc/llama.cpp"
  cp "$source/LICENSE" "$staged/share/doc/llama.cpp/"
  for name in $vocabularies; do
    run_logged "$log" cp "$source/models/ggml-vocab-$name.gguf" "$staged/share/vocab/"
  done
  mkdir -p "$cache/libllama"
  run_logged "$log" mv -T "$staged" "$root"
}

if [ ! -d "$root" ]; then
  clean_up_on_exit
  lock libllama 9
  if [ ! -d "$root" ]; then
    log=$cache/logs/libllama.log
    mkdir -p "$cache/logs"
    : >"$log"
    provide_tools
    fresh_work libllama
    build
  fi
fi
say "libllama: $root"
