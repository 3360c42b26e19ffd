#!/bin/sh
# scripts/demo.sh BINARY [--k N] [--rounds N]: imports the project's own conversation and asks six questions three ways.
# Called by `./run demo`, which builds and fetches first. Keeps nothing but build/demo, which every run starts anew.
set -u
repo=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd) || exit 1
. "$repo/scripts/common.sh"

[ $# -ge 1 ] && [ -x "$1" ] || fail 2 "usage: scripts/demo.sh BINARY [--k N] [--rounds N]; build it with ./run build"
binary=$1
shift
demo=$repo/examples/demo
data=$repo/build/demo

rm -rf "$data"
mkdir -p "$repo/build" || fail 6 "cannot write to $repo/build"
say "Importing a conversation of two friends over a year, and what is worth remembering of it."
"$binary" import "$demo/conversation.jsonl" --facts "$demo/facts.jsonl" --scope user=mara --data "$data" \
  || fail $? "the import failed"
say "Asking six questions: without memory, with the facts as text, with the facts injected."
exec python3 "$repo/scripts/demo_table.py" "$@" "$binary" "$data" "$demo/questions.jsonl"
