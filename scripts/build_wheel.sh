#!/bin/sh
# Builds the wheel of the Python package into build/wheel, for the Python that it is given:
#   build_wheel.sh PYTHON [--install]   --install also puts it into PYTHON's environment, if it is not the one there
# PYTHON needs scikit-build-core and nanobind (scripts/provide_vllm.sh makes such environments). Needs the packages of
# install_packages.sh. What is compiled stays in build/python, so that a second build takes seconds.
set -u
repo=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd) || exit 1
. "$repo/scripts/common.sh"

{ [ $# -eq 1 ] || { [ $# -eq 2 ] && [ "$2" = --install ]; }; } || fail 2 "usage: build_wheel.sh PYTHON [--install]"
python=$1
folder=$repo/build/wheel
log=$repo/build/logs/wheel.log
mkdir -p "$folder" "$repo/build/logs"
clean_up_on_exit
exec 9>"$repo/build/wheel.lock"
flock -n 9 || { say "another build of the wheel is running, waiting for it"; flock 9; }
: >"$log"

tag=$("$python" -c 'import sys; print(sys.implementation.cache_tag)') || fail 2 "$python does not run"
rm -f "$folder"/inferscale-*.whl
run_logged "$log" env CCACHE_BASEDIR="$repo" CCACHE_NOHASHDIR=true CMAKE_GENERATOR=Ninja \
  CMAKE_BUILD_PARALLEL_LEVEL="${JOBS:-$(nproc)}" SKBUILD_CMAKE_DEFINE="INFERSCALE_WERROR=${INFERSCALE_WERROR:-OFF}" \
  "$python" -m build --wheel --no-isolation --outdir "$folder" \
  -Cbuild-dir="$repo/build/python-$tag" -Ccmake.build-type=Release "$repo/python"
wheel=$(echo "$folder"/inferscale-*.whl)
say "wheel: $wheel"

if [ $# -eq 2 ]; then
  provide_tools
  site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
  sum=$(sha256sum "$wheel" | cut -d' ' -f1)
  if [ "$(cat "$site/inferscale/installed-wheel" 2>/dev/null)" != "$sum" ]; then
    run_logged "$log" "$(dirname "$tools_python")/uv" pip install --quiet --no-cache --offline --no-deps --reinstall \
      --python "$python" "$wheel"
    printf '%s\n' "$sum" >"$site/inferscale/installed-wheel"
  fi
fi
