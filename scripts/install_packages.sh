#!/bin/sh
# Installs the Debian packages that building and testing need, those that are missing only:
#   install_packages.sh [PACKAGE...]   the list below, and PACKAGE... besides
# As root, or where `sudo -n` works, it installs them; otherwise it prints the one line to run and exits with code 69.
set -u
repo=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd) || exit 1
. "$repo/scripts/common.sh"

wanted="g++ cmake ninja-build ccache pkg-config libhwy-dev nlohmann-json3-dev libcli11-dev libspdlog-dev libfmt-dev
  libsqlite3-dev libxxhash-dev libssl-dev libboost1.81-dev libgtest-dev libgmock-dev libbenchmark-dev $*"
# A Python from elsewhere that can make virtual environments will do.
python3 -c 'import ensurepip, venv' 2>/dev/null || wanted="$wanted python3 python3-venv"

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  for tool in g++ cmake ninja pkg-config python3 flock; do
    command -v "$tool" >/dev/null || fail 69 "no $tool found. This is not a Debian system: install the equivalents of" $wanted
  done
  say "packages: not a Debian system; the build will say if a library is missing"
  exit 0
fi

# shellcheck disable=SC2016,SC2086 # dpkg-query's own format, and words
installed=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' $wanted 2>/dev/null | sed -n 's/ installed$//p')
missing=
for package in $wanted; do
  printf '%s\n' "$installed" | grep -qxF -- "$package" || missing="$missing $package"
done
if [ -z "$missing" ]; then
  say "packages: all there"
  exit 0
fi

as_root=
if [ "$(id -u)" -ne 0 ]; then
  as_root="sudo -n"
  if ! sudo -n true 2>/dev/null; then
    say "packages: missing, and installing needs root. Run this once, then the same command again:"
    printf '  sudo apt-get install -y%s\n' "$missing"
    exit 69
  fi
fi

say "packages: installing$missing"
clean_up_on_exit
log=$cache/logs/packages.log
mkdir -p "$cache/logs"
: >"$log"
apt_get="$as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300"
# A fresh machine has no package lists yet, an old one may have stale ones: the second try has new lists.
# shellcheck disable=SC2086 # words
if ! $apt_get install --no-install-recommends $missing >>"$log" 2>&1; then
  run_logged "$log" $apt_get update
  run_logged "$log" $apt_get install --no-install-recommends $missing
fi
