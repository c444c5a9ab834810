#!/bin/bash
# Two H200s of one host: the whole layer over NCCL (ep), and the benchmark through Ray (run --ray). No network.
#
# Before: the branch is what lies in the checkout whose tree travels; then, in its root,
#   mkdir -p .fleet && cp /work/wt/fleet-wheels/*.whl /work/wt/fleet-gpu2.sh .fleet/ && echo /.fleet/ >> .git/info/exclude
# Call: kind nvidia-h200-x2, carry [".fleet"], timeout_s 600, command: bash .fleet/fleet-gpu2.sh
# STEP...: only these, of those named below; default: all, in that order, until BUDGET seconds (460) are gone.
# What comes back: $OUT/fleet.tgz: a log a step, ep-*.jsonl, one.jsonl and two.jsonl. Afterwards, here:
#   cp ep-full-hopper_fused.jsonl docs/data/expert_parallel/nvidia_h200_x2_full_hopper_fused.jsonl   (the others alike)
#   moebench docs ep; then say in docs/fleet.md what has run.
# Without a GPU it is a rehearsal of the same commands on the small layer (KIT=... PY=python bash fleet-gpu2.sh).
set -uo pipefail
STEPS=${*:-install build triton dies hopper ray kimi fp32 torchrun reference}
BUDGET=${BUDGET:-460}; KIT=${KIT:-$(dirname "$0")}; PY=${PY:-python3}; OUT=${OUT:-$PWD/gpu2}
W=/tmp/fleet; mkdir -p "$W" "$OUT"
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1   # NVLink multicast off
export RAY_USAGE_STATS_ENABLED=0 RAY_memory_monitor_refresh_ms=0   # MemTotal grows as memory is used: no task is killed for it
export PYTHONUNBUFFERED=1 FIB_CACHE_PATH=${FIB_CACHE_PATH:-/tmp/fib} TVM_FFI_CACHE_DIR=${TVM_FFI_CACHE_DIR:-/tmp/tvm}
export PYTHONPATH=$PWD/scripts:$PWD${PYTHONPATH:+:$PYTHONPATH}
LAYER=full KIMI=kimi-k2-ep8 HOPPER=hopper_fused GPU=1 P="--warmup-runs 3 --iterations 20 --num-trials 2" CHECK=64
nvidia-smi -L > "$W/gpus.txt" 2>&1 || { LAYER=small KIMI=small HOPPER=triton_fused_v2 GPU=0 P="--workloads 16 19 24" CHECK=1; }
stamp() { echo "== $* t=$SECONDS"; }
bring() { tar czf "$OUT/fleet.tgz" -C "$W" .; }
left() { (( SECONDS + $1 < BUDGET )) || { stamp "$2: left out, no time"; return 1; }; }
run() {  # NAME SECONDS COMMAND...: log, status and time
  local name=$1 limit=$2 begin=$SECONDS most=$((BUDGET + 15 - SECONDS)); shift 2
  limit=$((limit < most ? limit : most)); (( limit > 5 )) || { stamp "$name: left out, no time"; return 1; }
  timeout -k 5 "$limit" "$@" > "$W/$name.txt" 2>&1; local rc=$?
  stamp "$name rc=$rc $((SECONDS - begin)) s"
  grep -vE "^\s*$|  PASSED  matched|Warning|^\[[WI]" "$W/$name.txt" | tail -n "${LINES_SHOWN:-14}" | cut -c1-200; bring; return $rc
}
ep() {  # NAME SOLUTION GEOMETRY ARGUMENTS...; once more without CUDA graphs where it fails
  local name=$1 solution=$2 geometry=$3; shift 3
  local command=("$PY" -m harness ep --definition "$geometry" --solution "$solution" --ranks 2 --timeout 100 --check-tokens "$CHECK" "$@")
  run "$name" 110 "${command[@]}" --output "$W/$name.jsonl" && return
  left 40 "$name, again" && run "$name-again" 100 "${command[@]}" --no-graph --output "$W/$name.jsonl"
}

install() {
  [ $GPU = 1 ] || return 0
  $PY -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --break-system-packages "$KIT"/*.whl 2>&1 | grep -v WARN | tail -3
  local site; site=$($PY -c "import sysconfig; print(sysconfig.get_paths()['purelib'])")/moe_fp8_block_scale-0.1.0.dist-info
  mkdir -p "$site"; printf 'Metadata-Version: 2.1\nName: moe-fp8-block-scale\nVersion: 0.1.0\n' > "$site/METADATA"
  nvidia-smi topo -m > "$W/topology.txt" 2>&1; head -4 "$W/topology.txt" | cut -c1-60
  $PY -c 'import torch, ray; print(torch.__version__, ray.__version__, torch.cuda.device_count(), torch.cuda.nccl.version())'
}
build() {  # hopper_fused for a rank of each layer in both forms, and for Ray's cells; nothing waits but `hopper`
  [ $GPU = 1 ] || return 0
  for pair in "full True" "full False" "kimi-k2-ep8 True" "kimi-k2-ep8 False"; do
    MAX_JOBS=6 nice $PY - $pair > "$W/build-${pair/ /-}.txt" 2>&1 <<'P' &
import sys
from flashinfer_bench.compile import BuilderRegistry
from harness.expert_parallel.layer import Layer
from harness.expert_parallel.local_part import packed_for
BuilderRegistry.get_instance().build(*packed_for("hopper_fused", Layer(sys.argv[1], 2), sys.argv[2] == "True"))
print("built")
P
  done
  MAX_JOBS=6 nice $PY -m harness pack --build hopper_fused hopper_fused_exact --definition full > "$W/build-full.txt" 2>&1 &
  nice $PY -m harness workloads full > "$W/workloads.txt" 2>&1 &
}
triton() { ep ep-$LAYER-triton_fused_v2 triton_fused_v2 $LAYER; }
hopper() { wait; stamp built; grep -hiE "error" "$W"/build-*.txt 2> /dev/null | cut -c1-200 | head -4; ep ep-$LAYER-$HOPPER $HOPPER $LAYER; }
kimi() { left 60 kimi && ep ep-$KIMI-$HOPPER $HOPPER $KIMI; }
fp32() { left 45 fp32 && ep ep-$LAYER-$HOPPER-fp32 $HOPPER $LAYER --sum-in fp32; }
reference() { left 40 reference && run ep-reference 80 "$PY" -m harness ep --definition $LAYER --ranks 2 --timeout 100 --check-tokens $((CHECK / 8 + 1)) --tokens 64 --no-graph --output "$W/ep-reference.jsonl"; }
torchrun() {
  left 40 torchrun && run ep-torchrun 80 "$PY" -m torch.distributed.run --standalone --local-addr 127.0.0.1 --nproc-per-node 2 -m harness ep \
    --definition $LAYER --solution triton_fused_v2 --timeout 100 --check-tokens $((CHECK / 8 + 1)) --tokens 64 --no-graph --output "$W/ep-torchrun.jsonl"
}
dies() {  # the job must end within seconds, status 1, one line that names the rank
  left 45 dies || return
  $PY -m harness ep --definition $LAYER --solution triton_fused_v2 --ranks 2 --timeout 100 --no-graph --output "$W/ep-dies.jsonl" > "$W/ep-dies.txt" 2>&1 & local job=$! rank
  for _ in $(seq 120); do sleep 0.25; grep -qE "^(gather|exchange) " "$W/ep-dies.txt" && break; done   # in the middle of the checks
  rank=$(pgrep -P $job -f spawn_main | tail -1); kill -9 "$rank"; local begin=$SECONDS
  wait $job; stamp "dies: rc=$? (wanted 1) $((SECONDS - begin)) s after the kill"; tail -n 3 "$W/ep-dies.txt" | cut -c1-200; bring
}
ray() {  # two GPUs, and beside each other, a GPU each: one GPU without Ray, and one through it
  left 100 ray || return
  local S="hopper_fused hopper_fused_exact"; [ $GPU = 1 ] || S=triton_fused_v2   # both built: no wall time holds a compiler
  LINES_SHOWN=9 run ray-two 150 "$PY" -m harness run --ray --definition $LAYER --solutions $S $P --output "$W/two.jsonl"
  CUDA_VISIBLE_DEVICES=0 LINES_SHOWN=9 run ray-none 150 "$PY" -m harness run --definition $LAYER --solutions $S $P --output "$W/one.jsonl" & local job=$!
  CUDA_VISIBLE_DEVICES=1 LINES_SHOWN=2 run ray-of-one 150 "$PY" -m harness run --ray --definition $LAYER --solutions $S $P --output "$W/ray-of-one.jsonl"
  wait $job
  left 20 ray-resume && LINES_SHOWN=3 run ray-resume 60 "$PY" -m harness run --ray --resume --definition $LAYER --solutions $S $P --output "$W/two.jsonl"
  $PY - "$W" <<'P'
import json, sys
from pathlib import Path
def load(name):
    traces = [json.loads(text) for text in Path(sys.argv[1], name).read_text().splitlines()]
    return {(t["solution"], t["workload"]["uuid"]): t["evaluation"] for t in traces}
one, two = load("one.jsonl"), load("two.jsonl")
same = {k: e["status"] for k, e in one.items()} == {k: e["status"] for k, e in two.items()}
print(f"same verdicts: {same}, of {len(one)} and {len(two)} cells")
print("hosts:", sorted({e["environment"]["libs"].get("host") for e in two.values()}))
ratios = sorted(two[k]["performance"]["latency_ms"] / one[k]["performance"]["latency_ms"] for k in one if k in two and two[k]["performance"] and (one[k]["performance"] or {}).get("latency_ms"))
if ratios:
    print("latency through Ray over that without: min %.3f median %.3f max %.3f" % (ratios[0], ratios[len(ratios) // 2], ratios[-1]))
P
}
for step in $STEPS; do $step; done
stamp end; bring
