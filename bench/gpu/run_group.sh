#!/usr/bin/env bash
# Runs whole groups of measurements on a machine with a GPU; JSON and logs go to a folder. Nothing is built or fetched.
#
#   bench/gpu/run_group.sh OUT GROUP...
#
#   suites      the CUDA suites                          sanitizer  those that are short under compute-sanitizer
#   kernels     kernels_cuda_bench, and torch's operations   scan   the vector scan, and Jasper beside it where it is importable
#   serving     vLLM in one process, random weights (SHAPE): TTFT, throughput, arrivals, pinned memory, a profile
#   small-tier  the same throughput with more records than the GPU's tier holds
#   http        `inferscale bench ttft` through a vLLM server with random weights: TTFT, and QTFT with retrieval
#   evaluation  `inferscale eval locomo` through a vLLM server, with the weights of MODEL, in bfloat16
#
# Environment: PYTHON (python3 that has vllm, torch and inferscale), CUDA_BIN (build/cuda/bin), INFERSCALE
# (build/release/bin/inferscale), SHAPE (llama-3.1-8b), BLOCK_SIZE (vLLM's own), PARTS and SECONDS_SERVING (420) of serving, CODEC of
# the servers' records (auto), MODEL (a folder with weights and tokeniser), LOCOMO (locomo10.json), EVAL (further arguments of
# `inferscale eval locomo`), EMBEDDER (GGUF of the embedding model), SERVERS (1: how many share the conversations of the evaluation,
# each with API_SERVERS front ends, 8; what one plans and serves is one process's work). `--distractors 0` in EVAL halves its requests.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repo=$(cd "$here/../.." && pwd)
check=
[ "${1:-}" = --check ] && { check=yes; shift; } # of the arguments, and nothing else
case ${1:-} in "" | -*) sed -n '2,18s/^# \{0,1\}//p' "$0"; exit 2 ;; esac
[ $# -ge 2 ] || { echo "$1: give groups, too; without arguments this says which there are" >&2; exit 2; }
for group in "${@:2}"; do
  case $group in
    suites | sanitizer | kernels | scan | serving | small-tier | http | evaluation) ;;
    *) echo "no such group: $group" >&2; exit 2 ;;
  esac
done
for name in SERVERS API_SERVERS; do
  [[ ${!name-1} =~ ^[1-9][0-9]?$ ]] || { echo "$name must be a number from 1 to 99, not ${!name}" >&2; exit 2; }
done
[[ ${BLOCK_SIZE:-0} =~ ^[0-9]+$ ]] || { echo "BLOCK_SIZE must be a number of tokens, not $BLOCK_SIZE" >&2; exit 2; }
case ${CODEC:-auto} in
  auto | f32 | f16 | bf16 | q8 | fp8_e4m3 | q4) ;;
  *) echo "CODEC is none of auto, f32, f16, bf16, q8, fp8_e4m3 and q4: $CODEC" >&2; exit 2 ;;
esac
[ -z "$check" ] || exit 0
out=$(mkdir -p "$1" && cd "$1" && pwd) || exit 1
shift
python=${PYTHON:-python3}
cuda_bin=${CUDA_BIN:-$repo/build/cuda/bin}
inferscale=${INFERSCALE:-$repo/build/release/bin/inferscale}
shape=${SHAPE:-llama-3.1-8b}
failed=0
servers=()

note() { echo "[$SECONDS s] $*"; }

# timed NAME LIMIT COMMAND...: output goes to OUT/NAME.log, whose last line is shown.
timed() {
  local name=$1 limit=$2
  shift 2
  timeout --kill-after=10 "$limit" "$@" >"$out/$name.log" 2>&1
  local code=$?
  ((code == 0)) || failed=1
  note "$name: code $code; $(grep -v '^ *$' "$out/$name.log" | tail -n 1 | cut -c1-300)"
}

trap stop_servers EXIT
trap 'exit 130' INT TERM

# serve N FOLDER FLAG...: starts the Nth vLLM server, with the data directory of $out/home-N for its connector.
serve() {
  local n=$1 folder=$2 data=$out/home-$1/vllm block=()
  shift 2
  if healthy "$n"; then
    note "port $((8122 + n)) is taken: end what listens there"
    return 1
  fi
  mkdir -p "$data"
  [ "${BLOCK_SIZE:-0}" = 0 ] || block=(--block-size "$BLOCK_SIZE")
  local connector='{"kv_connector":"InferScaleConnector","kv_connector_module_path":"inferscale.vllm","kv_role":"kv_both",
    "kv_load_failure_policy":"fail","kv_connector_extra_config":{"data_dir":"'$data'","disk_budget":0,
    "host_budget":"'${HOST_BUDGET:-24GiB}'","gpu_budget":"'${GPU_BUDGET:-16GiB}'","pinned_budget":"'${PINNED_BUDGET:-8GiB}'","store_codec":"'${CODEC:-auto}'"}}'
  # One part for each message: vLLM 0.26 may reuse the first of several while it is sent (docs/vllm.md).
  VLLM_MSGPACK_ZERO_COPY_THRESHOLD=$((1 << 30)) setsid "$python" -m vllm.entrypoints.cli.main serve "$folder" --served-model-name model --port "$((8122 + n))" --host 127.0.0.1 \
    --dtype "${DTYPE:-bfloat16}" --max-model-len 4096 --max-logprobs 1024 "${block[@]}" \
    --kv-transfer-config "$connector" "$@" \
    >"$out/server-$n.log" 2>&1 &
  servers[n]=$!
}

healthy() {
  "$python" -c "import urllib.request as u; u.urlopen('http://127.0.0.1:$((8122 + $1))/health', timeout=2)" 2>/dev/null
}

# serving_now N: waits until the Nth server answers.
serving_now() {
  for _ in $(seq 300); do
    if healthy "$1"; then
      note "server $1: $(grep -h -i 'inferscale' "$out/server-$1.log" | tail -n 1 | cut -c1-200)"
      return 0
    fi
    kill -0 "${servers[$1]:-0}" 2>/dev/null || break
    sleep 1
  done
  note "server $1 does not answer: $(tail -n 3 "$out/server-$1.log")"
  failed=1
  return 1
}

stop_servers() {
  [ "${#servers[@]}" -gt 0 ] || return 0
  for signal in TERM KILL; do
    for server in "${servers[@]}"; do kill -s "$signal" -- "-$server" 2>/dev/null; done
    sleep 2
  done
  servers=()
}

# client NAME N SECONDS ARGUMENT...: the program against the Nth server.
client() {
  local name=$1 n=$2 limit=$3
  shift 3
  timed "$name" "$limit" env INFERSCALE_HOME="$out/home-$n" "$inferscale" "$@" --engine "vllm=http://127.0.0.1:$((8122 + n))" \
    ${EMBEDDER:+--embedder "$EMBEDDER"} --json
}

suites() {
  for suite in "$cuda_bin"/*_test; do
    timed "suite-$(basename "$suite")" 120 "$suite" --gtest_brief=1
  done
}

sanitizer() {
  for tool in memcheck racecheck; do
    for suite in cuda_capture_test cuda_page_memory_test cuda_device_test; do
      [ -x "$cuda_bin/$suite" ] || continue
      timed "$tool-$suite" 90 compute-sanitizer --tool "$tool" --error-exitcode 9 "$cuda_bin/$suite" --gtest_brief=1
    done
  done
}

kernels() {
  timed kernels 90 "$cuda_bin/kernels_cuda_bench" --rounds 150 --out "$out/kernels.json"
  timed torch 60 "$python" "$repo/bench/cuda/torch_baseline.py" --out "$out/torch.json"
}

scan() {
  timed jasper "${SECONDS_SCAN:-140}" "$python" "$repo/bench/cuda/jasper_compare.py" --out "$out/jasper.json" \
    --scan-binary "$cuda_bin/kernels_cuda_bench" --seconds "$((${SECONDS_SCAN:-140} - 30))" --step-seconds 60 \
    --builds l2:1.2,ip:0.83 --rounds 60
}

serving() {
  timed "serving-$shape" "$((${SECONDS_SERVING:-420} + 40))" "$python" "$here/vllm_bench.py" --shape "$shape" \
    --out "$out/serving-$shape.json" --seconds "${SECONDS_SERVING:-420}" --counts "${COUNTS:-0,5,50}" \
    --rounds "${ROUNDS:-150}" --block-size "${BLOCK_SIZE:-0}" --codec "${CODEC:-auto}" --ttft-seconds 60 --facts 1000 --encode-seconds 15 --cell-seconds 4 \
    --users "${USERS:-10,25,50,75,100}" --rates "${RATES:-10,20,40,80,100,120,140,160,200,240}" \
    --parts "${PARTS:-smoke,facts,tiers,ttft,breakdown,encode,throughput,arrivals,pinned,profile}"
}

small_tier() {
  timed "small-tier-$shape" 150 "$python" "$here/vllm_bench.py" --shape "$shape" --out "$out/small-tier-$shape.json" \
    --seconds 130 --counts 50 --facts 1000 --encode-seconds 15 --cell-seconds 4 --users 25,50,100 \
    --block-size "${BLOCK_SIZE:-0}" --codec "${CODEC:-auto}" --gpu-budget 2GiB --pinned-budget 6GiB --parts smoke,facts,encode,throughput
}

http() {
  local folder=$out/served-$shape
  timed http-model 120 "$python" "$here/shapes.py" "$shape" "$folder" --tokenizer "$MODEL"
  serve 1 "$folder" --gpu-memory-utilization 0.5 && serving_now 1 && client http-ttft 1 "${SECONDS_HTTP:-120}" bench ttft --warm --k 0,5,10,20,50 --repeat "${ROUNDS_HTTP:-60}" \
    --out "$out/http-$shape.json"
  stop_servers
  rm -r "$folder"
}

# The conversations of LoCoMo that the Nth of so many servers asks about.
share_of() {
  "$python" -c 'import json, sys
ids = [each["sample_id"] for each in json.load(open(sys.argv[1]))]
print(",".join(ids[int(sys.argv[2]) - 1 :: int(sys.argv[3])]))' "$LOCOMO" "$1" "$2"
}

# ask N WORK CONVERSATIONS FILE
ask() {
  local more
  read -r -a more <<<"${EVAL:-}"
  client "evaluation-$1" "$1" "${SECONDS_EVAL:-590}" eval locomo --data "$LOCOMO" --conversations "$3" --at-once 8 \
    --work "$2" --out "$4" "${more[@]}"
}

evaluation() {
  local n=${SERVERS:-1} gpus cases
  cases=$("$python" -c 'import json, sys; print(len(json.load(open(sys.argv[1]))))' "$LOCOMO") || { failed=1; return; }
  n=$((n < cases ? n : cases))
  gpus=$(nvidia-smi -L 2>/dev/null | wc -l)
  gpus=$((gpus > 0 ? gpus : 1))
  for i in $(seq "$n"); do
    # Four on one GPU answered 430 requests a second together, one alone 243. So much memory for each: what
    # servers that start together measure of what is free is wrong.
    export CUDA_VISIBLE_DEVICES=$(((i - 1) % gpus))
    serve "$i" "$MODEL" --gpu-memory-utilization 0.1 --kv-cache-memory-bytes $((8 << 30)) --disable-uvicorn-access-log \
      --api-server-count "${API_SERVERS:-8}" || { failed=1; return; }
  done
  for i in $(seq "$n"); do serving_now "$i" || { stop_servers; return; }; done
  local asking=()
  for i in $(seq "$n"); do
    ask "$i" "$out/evaluation-$i" "$(share_of "$i" "$n")" "$out/eval-$i.json" &
    asking+=($!)
  done
  wait "${asking[@]}"
  # What all have found, in one log: the report of all asks nothing again.
  mkdir -p "$out/evaluation"
  for i in $(seq "$n"); do
    [ "$i" = 1 ] && head -n 1 "$out/evaluation-1/results.jsonl"
    tail -n +2 "$out/evaluation-$i/results.jsonl"
  done >"$out/evaluation/results.jsonl"
  local whole=yes
  for i in $(seq "$n"); do [ -s "$out/eval-$i.json" ] || whole=; done
  if [ -n "$whole" ]; then
    ask 1 "$out/evaluation" 0 "$out/eval.json"
  else
    note "not all was asked: evaluation/results.jsonl has what was, and goes on from there as --work of \`inferscale eval\`"
    failed=1
  fi
  stop_servers
}

for group in "$@"; do
  "${group//-/_}"
done
exit "$failed"
