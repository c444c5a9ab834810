#!/bin/bash
# Two GPUs of one host: the whole layer over NCCL (ep), and the benchmark through Ray (run --ray). No network.
set -uo pipefail
STEPS=${*:-install hopper ray kimi triton fp32 tests}
BUDGET=${BUDGET:-565}; KIT=$(dirname "$0"); PY=${PY:-python3}
W=/tmp/fleet; rm -rf "$W"; mkdir -p "$W" "$OUT"
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
export RAY_USAGE_STATS_ENABLED=0 RAY_memory_monitor_refresh_ms=0
export PYTHONUNBUFFERED=1 FIB_CACHE_PATH=/tmp/fib TVM_FFI_CACHE_DIR=${TVM_FFI_CACHE_DIR:-/tmp/tvm}
export PYTHONPATH=$PWD/scripts:$PWD
LAYER=full KIMI=kimi-k2-ep8 HOPPER=hopper_fused GPU=1 CHECK=64 DEFS="full deepseek-v3-ep16" P= S="hopper_fused hopper_fused_exact"
nvidia-smi -L > "$W/gpus.txt" 2>&1 || { LAYER=small KIMI=small HOPPER=triton_fused_v2 GPU=0 CHECK=1 DEFS="small small-renorm" P="--workloads 0 1 24" S=triton_fused_v2; }
cat "$W/gpus.txt" | cut -c1-60
stamp() { echo "== $* t=$SECONDS"; }
bring() { tar czf "$OUT/fleet.tgz" -C "$W" .; }
left() { (( SECONDS + $1 < BUDGET )) || { stamp "$2: left out, no time"; return 1; }; }
run() {  # NAME SECONDS COMMAND...
  local name=$1 limit=$2 begin=$SECONDS most=$((BUDGET + 10 - SECONDS)); shift 2
  limit=$((limit < most ? limit : most)); (( limit > 5 )) || { stamp "$name: left out, no time"; return 1; }
  timeout -k 5 "$limit" "$@" > "$W/$name.txt" 2>&1; local rc=$?
  stamp "$name rc=$rc $((SECONDS - begin)) s"
  grep -vE "^\s*$|PASSED|Warning|^\[[WI]" "$W/$name.txt" | tail -n "${LINES_SHOWN:-12}" | cut -c1-230; bring; return $rc
}
ep() {  # NAME SOLUTION GEOMETRY ARGUMENTS...
  local name=$1 solution=$2 geometry=$3; shift 3
  run "$name" 100 "$PY" -m harness ep --definition "$geometry" --solution "$solution" --ranks 2 --timeout 60 --check-tokens "$CHECK" --output "$W/$name.jsonl" ${T:+--tokens $T} "$@"
}
install() {
  [ $GPU = 1 ] || return 0
  mkdir -p /tmp/tvm; cp -r "$KIT"/tvm/* /tmp/tvm/
  (xz -dc -T4 "$KIT/ray.txz" | tar x -C "$($PY -c "import sysconfig; print(sysconfig.get_paths()['purelib'])")") &
  $PY -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --break-system-packages "$KIT"/whl/*.whl 2>&1 | grep -v WARN | tail -3
  wait
  local site; site=$($PY -c "import sysconfig; print(sysconfig.get_paths()['purelib'])")/moe_fp8_block_scale-0.1.0.dist-info
  mkdir -p "$site"; printf 'Metadata-Version: 2.1\nName: moe-fp8-block-scale\nVersion: 0.1.0\n' > "$site/METADATA"
  nvidia-smi topo -m > "$W/topology.txt" 2>&1; head -3 "$W/topology.txt" | cut -c1-50
  ls "$TVM_FFI_CACHE_DIR" | wc -l; stamp installed
  (nice $PY -m harness workloads $DEFS > "$W/workloads.txt" 2>&1; nice $PY -c 'import ray; print(ray.__version__)' >> "$W/workloads.txt" 2>&1) &
}
hopper() {
  T="1 8 64 512 4096 16384" ep ep-$LAYER-$HOPPER $HOPPER $LAYER && return
  grep -E "PASSED|FAILED" "$W/ep-$LAYER-$HOPPER.txt" | cut -c1-150 | tail -30; LINES_SHOWN=40
  NCCL_DEBUG=WARN TORCH_CPP_LOG_LEVEL=INFO ep ep-again $HOPPER $LAYER --no-graph --tokens 8 --chunks 2; tail -c 3000 "$W/ep-$LAYER-$HOPPER.txt"; bring; exit 1
}
dies() {
  left 40 dies || return
  $PY -m harness ep --definition $LAYER --solution $HOPPER --ranks 2 --timeout 60 --no-graph --check-tokens $CHECK --output "$W/ep-dies.jsonl" > "$W/ep-dies.txt" 2>&1 & local job=$! rank
  for _ in $(seq 160); do sleep 0.2; grep -qE "^(gather|exchange) " "$W/ep-dies.txt" && break; done
  rank=$(pgrep -P $job -f spawn_main | tail -1); kill -9 "$rank"; local begin=$SECONDS
  wait $job; stamp "dies: rc=$? (wanted 1) $((SECONDS - begin)) s after the kill"; tail -n 3 "$W/ep-dies.txt" | cut -c1-200; bring
}
kimi() { left 40 kimi && T="1 8 64 512 4096 16384" ep ep-$KIMI-$HOPPER $HOPPER $KIMI; }
triton() { left 40 triton && T="1 8 64 512 4096 16384" ep ep-$LAYER-triton_fused_v2 triton_fused_v2 $LAYER; }
fp32() { left 30 fp32 && T="1 8 64 512 4096 16384" ep ep-$LAYER-$HOPPER-fp32 $HOPPER $LAYER --sum-in fp32; }
torchrun() {
  left 30 torchrun && run ep-torchrun 60 "$PY" -m torch.distributed.run --standalone --local-addr 127.0.0.1 --nproc-per-node 2 -m harness ep \
    --definition $LAYER --solution $HOPPER --timeout 60 --check-tokens $((CHECK / 8 + 1)) --tokens 64 --no-graph --output "$W/ep-torchrun.jsonl"
}
tests() { left 60 tests && LINES_SHOWN=6 run tests 90 "$PY" -m pytest -q -m gpu -p no:cacheprovider tests/evaluation/test_ep.py tests/evaluation/test_fleet.py; }
ray() {
  left 150 ray || return
  LINES_SHOWN=4 run ray-two 160 "$PY" -m harness run --ray --definition $DEFS --solutions $S $P --output "$W/two.jsonl"
  CUDA_VISIBLE_DEVICES=0 LINES_SHOWN=3 run ray-none 230 "$PY" -m harness run --definition $DEFS --solutions $S $P --output "$W/one.jsonl" & local job=$!
  CUDA_VISIBLE_DEVICES=1 LINES_SHOWN=3 run ray-of-one 230 "$PY" -m harness run --ray --definition $DEFS --solutions $S $P --output "$W/ray-of-one.jsonl"
  wait $job
  $PY "$KIT/same.py" "$W"
}
for step in $STEPS; do $step; done
stamp end; bring
