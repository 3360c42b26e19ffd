#!/bin/sh
# Builds the wheel of the Python package, and unpacks it beside for the tests:
#   build_wheel.sh PYTHON   gives build/wheel/inferscale-*.whl, and build/site to put into PYTHONPATH
# PYTHON needs scikit-build-core and nanobind, as in the environments that provide_vllm.sh makes. Those are shared by all
# checkouts, so the package is not installed into them. What is compiled stays in build/python: again takes seconds.
set -u
repo=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd) || exit 1
. "$repo/scripts/common.sh"

[ $# -eq 1 ] || fail 2 "usage: build_wheel.sh PYTHON"
python=$1
headers='import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'
"$python" -c "$headers" || "$repo/scripts/install_packages.sh" python3-dev || exit $?

folder=$repo/build/wheel
log=$repo/build/logs/wheel.log
mkdir -p "$folder" "$repo/build/logs"
clean_up_on_exit
exec 9>"$repo/build/wheel.lock"
flock -n 9 || { say "another build of the wheel is running, waiting for it"; flock 9; }
: >"$log"

rm -f "$folder"/inferscale-*.whl
run_logged "$log" env CCACHE_BASEDIR="$repo" CCACHE_NOHASHDIR=true CMAKE_GENERATOR=Ninja \
  CMAKE_BUILD_PARALLEL_LEVEL="${JOBS:-$(nproc)}" "$python" -m build --wheel --no-isolation --outdir "$folder" \
  -Cbuild-dir="$repo/build/python" -Ccmake.build-type=Release -Ccmake.define.INFERSCALE_WERROR="${INFERSCALE_WERROR:-OFF}" \
  "$repo/python"
work=$repo/build/site.new
rm -rf "$work" "$repo/build/site"
run_logged "$log" "$python" -m zipfile -e "$folder"/inferscale-*.whl "$work"
mv "$work" "$repo/build/site"
say "wheel: $(echo "$folder"/inferscale-*.whl)"
