# shellcheck shell=sh disable=SC2154
# Sourced by `run` and the scripts beside it, which set `repo` to the root of the sources first.
# Everything that is fetched or built once lives under $cache, outside the build folders. A finished thing is renamed
# into its place, so what exists is whole; work in progress lives in $cache/work and belongs to the holder of a lock.

cache=${INFERSCALE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/inferscale}
work=
watcher=

# A progress line; INFERSCALE_STEP ("[2/5]") goes before it.
say() { printf '%s%s\n' "${INFERSCALE_STEP:+$INFERSCALE_STEP }" "$*"; }

# fail CODE MESSAGE
fail() {
  code=$1
  shift
  printf 'inferscale: %s\n' "$*" >&2
  exit "$code"
}

stop_watching() {
  [ -n "$watcher" ] || return 0
  kill "$watcher" 2>/dev/null
  wait "$watcher" 2>/dev/null
  watcher=
  printf '\r\033[K'
}

clean_up() {
  stop_watching
  [ -z "$work" ] || rm -rf "$work"
}

# clean_up_on_exit: removes $work (if set) however the script ends.
clean_up_on_exit() {
  trap clean_up EXIT
  trap 'exit 129' HUP
  trap 'exit 130' INT
  trap 'exit 143' TERM
}

# lock NAME FD: waits until no other process holds the lock; held until the script ends or FD is closed.
lock() {
  mkdir -p "$cache/locks" || fail 6 "cannot create $cache; set INFERSCALE_CACHE to a folder that can be written"
  eval "exec $2>\"\$cache/locks/\$1\""
  flock -n "$2" && return 0
  say "$1: another process is at it, waiting for it to finish"
  flock "$2"
}

# fresh_work NAME: an empty folder in $work. Call it with the lock held: what an earlier, killed run left is removed.
fresh_work() {
  work=$cache/work/$1
  rm -rf "$work"
  mkdir -p "$work"
}

# On a terminal, shows the last line of a log in place until stop_watching.
watch_log() {
  [ -t 1 ] || return 0
  (
    trap 'exit 0' TERM INT
    while sleep 2; do
      printf '\r\033[K    %.70s' "$(tail -n 1 "$1" 2>/dev/null | tr -d '\r' | tr '\t' ' ')"
    done
  ) &
  watcher=$!
}

# run_logged LOG COMMAND...: output goes to LOG; on failure its end is shown and the script exits with the same code.
run_logged() {
  log=$1
  shift
  mkdir -p "$(dirname "$log")"
  watch_log "$log"
  "$@" >>"$log" 2>&1
  status=$?
  stop_watching
  [ "$status" -eq 0 ] && return 0
  printf 'inferscale: this failed with code %s: %s\n' "$status" "$*" >&2
  printf '%s\n' "--- end of $log" >&2
  tail -n 30 "$log" >&2
  exit "$status"
}

# Sets tools_python to a Python with the packages of requirements/tools.txt, in a virtual environment of our own.
provide_tools() {
  requirements=$repo/scripts/requirements/tools.txt
  key=$( { python3 -c 'import platform, sys; print(sys.version, sys.executable, platform.machine())'; cat "$requirements"; } | sha256sum | cut -c1-12)
  tools_python=$cache/tools/$key/bin/python
  "$tools_python" -c '' 2>/dev/null && return 0
  caller_work=$work
  lock tools 8
  if ! "$tools_python" -c '' 2>/dev/null; then
    say "Python tools (gguf, numpy): installing into $cache/tools"
    fresh_work tools
    tools_log=$cache/logs/tools.log
    mkdir -p "$cache/logs" "$cache/tools"
    : >"$tools_log"
    run_logged "$tools_log" python3 -m venv "$work"
    run_logged "$tools_log" "$work/bin/python" -m pip --disable-pip-version-check --no-input install \
      --require-hashes --only-binary :all: -r "$requirements"
    rm -rf "${cache:?}/tools/$key"
    mv "$work" "$cache/tools/$key"
  fi
  exec 8>&-
  work=$caller_work
}

# pip_download REQUIREMENTS_FILE INTO LOG [PIP_OPTION...]: exactly the pinned files, without their dependencies.
pip_download() {
  download_requirements=$1
  download_into=$2
  download_log=$3
  shift 3
  run_logged "$download_log" "$tools_python" -m pip --disable-pip-version-check --no-input download \
    --no-deps --require-hashes --dest "$download_into" "$@" -r "$download_requirements"
}
