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
# (build/release/bin/inferscale), SHAPE (llama-3.1-8b), SECONDS_SERVING (420), MODEL (a folder with weights and tokeniser),
# LOCOMO (locomo10.json), EVAL (further arguments of `inferscale eval locomo`), EMBEDDER (GGUF of the embedding model).
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repo=$(cd "$here/../.." && pwd)
[ $# -ge 2 ] || { sed -n '2,18s/^# \{0,1\}//p' "$0"; exit 2; }
out=$(mkdir -p "$1" && cd "$1" && pwd)
shift
python=${PYTHON:-python3}
cuda_bin=${CUDA_BIN:-$repo/build/cuda/bin}
inferscale=${INFERSCALE:-$repo/build/release/bin/inferscale}
shape=${SHAPE:-llama-3.1-8b}
home=$out/home
failed=0

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

# serve FOLDER FLAG...: a vLLM server on port 8123 whose connector's data directory is that of $home. Waits until it answers.
serve() {
  local folder=$1
  shift
  mkdir -p "$home/vllm"
  local connector='{"kv_connector":"InferScaleConnector","kv_connector_module_path":"inferscale.vllm","kv_role":"kv_both",
    "kv_load_failure_policy":"fail","kv_connector_extra_config":{"data_dir":"'$home'/vllm","disk_budget":0,
    "host_budget":"'${HOST_BUDGET:-24GiB}'","gpu_budget":"'${GPU_BUDGET:-16GiB}'","pinned_budget":"'${PINNED_BUDGET:-8GiB}'","store_codec":"'${CODEC:-auto}'"}}'
  setsid "$python" -m vllm.entrypoints.cli.main serve "$folder" --served-model-name model --port 8123 --host 127.0.0.1 \
    --dtype "${DTYPE:-bfloat16}" --max-model-len 4096 --max-logprobs 1024 --kv-transfer-config "$connector" "$@" \
    >"$out/server.log" 2>&1 &
  server=$!
  for _ in $(seq 300); do
    "$python" -c 'import urllib.request as u; u.urlopen("http://127.0.0.1:8123/health", timeout=2)' 2>/dev/null && break
    kill -0 "$server" 2>/dev/null || { note "the server ended: $(tail -n 3 "$out/server.log")"; return 1; }
    sleep 1
  done
  note "server: $(grep -h -i 'inferscale' "$out/server.log" | tail -n 1 | cut -c1-200)"
}

stop_server() { kill -- "-$server" 2>/dev/null; sleep 2; kill -9 -- "-$server" 2>/dev/null; }

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
    --rounds "${ROUNDS:-150}" --ttft-seconds 60 --facts 1000 --encode-seconds 15 --cell-seconds 4 \
    --users "${USERS:-10,25,50,75,100}" --rates "${RATES:-10,20,40,80,100,120,140,160,200,240}" \
    --parts "${PARTS:-smoke,facts,tiers,ttft,breakdown,encode,throughput,arrivals,pinned,profile}"
}

small_tier() {
  timed "small-tier-$shape" 150 "$python" "$here/vllm_bench.py" --shape "$shape" --out "$out/small-tier-$shape.json" \
    --seconds 130 --counts 50 --facts 1000 --encode-seconds 15 --cell-seconds 4 --users 25,50,100 \
    --gpu-budget 2GiB --pinned-budget 6GiB --parts smoke,facts,encode,throughput
}

http() {
  local folder=$out/served-$shape
  timed http-model 120 "$python" "$here/shapes.py" "$shape" "$folder" --tokenizer "$MODEL"
  serve "$folder" --gpu-memory-utilization 0.5 || { failed=1; return; }
  timed http-ttft "${SECONDS_HTTP:-120}" env INFERSCALE_HOME="$home" "$inferscale" bench ttft --engine vllm=http://127.0.0.1:8123 \
    ${EMBEDDER:+--embedder "$EMBEDDER"} --k 0,5,10,20,50 --repeat "${ROUNDS_HTTP:-60}" --json --out "$out/http-$shape.json"
  stop_server
  rm -r "$folder"
}

evaluation() {
  serve "$MODEL" --gpu-memory-utilization 0.3 --api-server-count "${API_SERVERS:-8}" || { failed=1; return; }
  # shellcheck disable=SC2086 # words
  timed evaluation "${SECONDS_EVAL:-590}" env INFERSCALE_HOME="$home" "$inferscale" eval locomo --data "$LOCOMO" \
    --engine vllm=http://127.0.0.1:8123 ${EMBEDDER:+--embedder "$EMBEDDER"} --conversations 0 --at-once 8 \
    --work "$out/evaluation" --out "$out/eval.json" --json ${EVAL:-}
  stop_server
}

for group in "$@"; do
  case $group in
    suites | sanitizer | kernels | scan | serving | http | evaluation) "$group" ;;
    small-tier) small_tier ;;
    *) echo "no such group: $group" >&2; exit 2 ;;
  esac
done
exit "$failed"
