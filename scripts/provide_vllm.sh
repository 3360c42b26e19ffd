#!/bin/sh
# Makes the virtual environment with vLLM's CPU build that the tests of the connector run in, once for each version:
#   provide_vllm.sh [VERSION]                makes it unless it is there, and says where it is
#   provide_vllm.sh --print-root [VERSION]   prints its folder and does nothing else; exit code 3 when it is not there yet
#   provide_vllm.sh --python                 makes the small one without vLLM, for the tests of the Python package alone
# VERSION (or INFERSCALE_VLLM_VERSION) is one that scripts/requirements has a file of pins for; default: the newest.
# For Python 3.11 on x86-64, as the pins are. torch is made to load without CUDA (stub_cuda_libraries.py): CPU only.
set -u
repo=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd) || exit 1
. "$repo/scripts/common.sh"

pins=$repo/scripts/requirements
usage="usage: provide_vllm.sh [--print-root] [VERSION] | --python [--print-root]"
print_root=
name=vllm-${INFERSCALE_VLLM_VERSION:-0.32.0}
for argument in "$@"; do
  case $argument in
    --print-root) print_root=yes ;;
    --python) name=python ;;
    -*) fail 2 "$usage" ;;
    *) name=vllm-$argument ;;
  esac
done
[ -s "$pins/$name.txt" ] || fail 2 "no pins for $name: scripts/requirements has $(cd "$pins" && echo vllm-*.txt)"

# What the environment is made of; it is made anew when one of these changes.
identity=$(cat "$pins/$name.txt" "$pins/python.txt" "$repo/scripts/stub_cuda_libraries.py" | sha256sum | cut -c1-12)
root=$cache/$name
there() { [ "$(cat "$root/identity" 2>/dev/null)" = "$identity" ] && "$root/venv/bin/python" -c '' 2>/dev/null; }

if [ -n "$print_root" ]; then
  printf '%s\n' "$root"
  there || exit 3
  exit 0
fi

find_python() {
  for python in python3.11 python3 /usr/bin/python3; do
    "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null && return 0
  done
  fail 69 "the pins of $name are for Python 3.11, and there is none in PATH"
}

# install FILE...: exactly what the files pin. uv takes half a minute where pip takes minutes.
install() {
  files=
  for file in "$@"; do files="$files -r $pins/$file"; done
  # shellcheck disable=SC2086 # options
  run_logged "$log" env UV_CACHE_DIR="$cache/uv" UV_NO_CONFIG=1 UV_HTTP_TIMEOUT=180 "$(dirname "$tools_python")/uv" pip install \
    --python "$work/venv/bin/python" --no-deps --require-hashes --only-binary :all: --link-mode hardlink --compile-bytecode $files
}

make_environment() {
  # Relocatable: it is made elsewhere than where it will stand.
  run_logged "$log" "$(dirname "$tools_python")/uv" venv --quiet --relocatable --python "$python" "$work/venv"
  if [ "$name" = python ]; then
    install python.txt
  else
    install "$name.txt" python.txt
    site=$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    run_logged "$log" "$python" -B "$repo/scripts/stub_cuda_libraries.py" "$site"
    run_logged "$log" "$work/venv/bin/python" -B -c 'import torch; assert torch.ones(2).sum() == 2 and not torch.cuda.is_available()'
  fi
  printf '%s\n' "$identity" >"$work/identity"
}

if ! there; then
  [ "$(uname -m)" = x86_64 ] || fail 69 "the pins of $name are for x86-64, this is $(uname -m)"
  find_python
  clean_up_on_exit
  lock "$name" 9
  if ! there; then
    say "$name: making its virtual environment, $([ "$name" = python ] && echo seconds || echo "2 to 3 minutes, 2.4 GB")"
    log=$cache/logs/$name.log
    mkdir -p "$cache/logs"
    : >"$log"
    provide_tools
    fresh_work "$name"
    make_environment
    # Removing so many files takes a while: out of the way first.
    rm -rf "$work.old"
    [ ! -e "$root" ] || mv "$root" "$work.old"
    mv "$work" "$root"
    rm -rf "$work.old"
  fi
fi
say "$name: $root/venv"
