#!/bin/sh
# install_test.sh static|shared SOURCE_DIR BUILD_DIR WORK_DIR CXX CC
# Installs the core, of a static build that of BUILD_DIR, moves the installation, and builds and runs a project that uses it through
# find_package.
set -eu
kind=$1 source=$2 build=$3 work=$4 cxx=$5 cc=$6
here=$source/tests/install
version=$(head -n 1 "$source/VERSION")

fail() {
  printf 'install_test %s: %s\n' "$kind" "$*" >&2
  exit 1
}

rm -rf "$work"
mkdir -p "$work"
if [ "$kind" = shared ]; then
  build=$work/build
  cmake -S "$source" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON \
    -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_C_COMPILER="$cc" -DCMAKE_INSTALL_LIBDIR=lib \
    -DINFERSCALE_BUILD_APP=OFF -DINFERSCALE_BUILD_TESTS=OFF -DINFERSCALE_BUILD_BENCH=OFF
  cmake --build "$build"
fi
cmake --install "$build" --prefix "$work/installed"
mv "$work/installed" "$work/moved"

cmake -S "$here/consumer" -B "$work/consumer" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_C_COMPILER="$cc" -DCMAKE_PREFIX_PATH="$work/moved" -DWANTED_VERSION="$version"
cmake --build "$work/consumer"
printed=$("$work/consumer/consumer")
[ "$printed" = "inferscale $version" ] || fail "the consumer printed '$printed' instead of 'inferscale $version'"

for path in include/inferscale/version.h include/inferscale/status.h share/doc/inferscale/LICENSE; do
  [ -f "$work/moved/$path" ] || fail "$path was not installed"
done

if [ "$kind" = shared ]; then
  # Mangled names of functions, type information and virtual tables of namespace inferscale.
  library=$work/moved/lib/libinferscale_core.so
  [ -f "$library" ] || fail "no shared library was installed"
  exported=$(nm -D --defined-only "$library" | awk '{print $NF}')
  printf '%s\n' "$exported" | grep -q 10inferscale11parse_scope || fail "parse_scope is not exported"
  foreign=$(printf '%s\n' "$exported" | grep -Ev '^_Z(T[ISV])?N[KVRO]*10inferscale' || true)
  [ -z "$foreign" ] || fail "exported symbols outside namespace inferscale: $foreign"
  unmarked=$(nm -DC --defined-only "$library" | grep -E "anonymous|::detail::|::internal::" || true)
  [ -z "$unmarked" ] || fail "internal symbols are exported: $unmarked"
fi
rm -rf "$work"
