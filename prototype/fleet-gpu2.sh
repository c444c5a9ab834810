#!/bin/bash
# Two GPUs of one host: expert parallelism over NCCL, then the benchmark through Ray. From the repository's root, with
# the environment active (moebench on PATH). About 10 minutes a part: PART=ep, PART=ray, or both by default.
# Results: $OUT (or ./gpu2): *.txt, ep-*.jsonl (copy those wanted to docs/data/expert_parallel/), traces.
set -uo pipefail
OUT=${OUT:-$PWD/gpu2}; mkdir -p "$OUT"
export NCCL_NVLS_ENABLE=0            # NVLink multicast off, as these machines want it
PART=${PART:-ep ray}
run() { local name=$1; shift; echo "== $name: $*"; ( time timeout "${LIMIT:-280}" "$@" ) > "$OUT/$name.txt" 2>&1; echo "rc $?"; tail -n 40 "$OUT/$name.txt"; }

if [[ $PART == *ep* ]]; then
  nvidia-smi topo -m | tee "$OUT/topology.txt"
  # 1. correctness with the reference alone: NCCL, both ways, no solution involved
  run ep-reference moebench ep --definition full --solution reference --check-tokens 16 --tokens 1 --output "$OUT/ep-reference.jsonl"
  # 2. solutions; 'exchange' is SKIPPED for one without the routed form on this branch. If a graph cannot be captured: --no-graph
  for s in triton_fused_v2 hopper_fused; do
    run ep-full-$s moebench ep --definition full --solution $s --output "$OUT/ep-full-$s.jsonl"
    run ep-full-$s-fp32 moebench ep --definition full --solution $s --sum-in fp32 --output "$OUT/ep-full-$s-fp32.jsonl"
  done
  run ep-kimi moebench ep --definition kimi-k2-ep8 --solution hopper_fused --output "$OUT/ep-kimi-hopper_fused.jsonl"
  # 3. under torchrun, and a rank that dies: the job must end within --timeout with one clear line
  run ep-torchrun torchrun --standalone --nproc-per-node 2 --no-python moebench ep --definition full --solution triton_fused_v2 --tokens 64 --output "$OUT/ep-torchrun.jsonl"
  moebench ep --definition full --solution triton_fused_v2 --timeout 60 --output "$OUT/ep-dies.jsonl" > "$OUT/ep-dies.txt" 2>&1 & job=$!
  sleep 40; rank=$(pgrep -P $job -f spawn_main | tail -1); echo "killing rank process $rank of $job"; kill -9 "$rank"
  ( time wait $job ) 2>&1 | grep real; wait $job; echo "rc $? (wanted 1)"; tail -n 5 "$OUT/ep-dies.txt"
fi

if [[ $PART == *ray* ]]; then
  python -c 'import ray' 2>/dev/null || pip install -q 'ray>=2.40'
  S="hopper_fused triton_fused_v2 cutlass_grouped"
  P="--warmup-runs 3 --iterations 20 --num-trials 1"
  moebench pack --build $S > "$OUT/build.txt" 2>&1          # so that no wall time holds a build
  CUDA_VISIBLE_DEVICES=0 run ray-one-gpu   moebench run --solutions $S $P --output "$OUT/one.jsonl"
  run ray-two      moebench run --ray --solutions $S $P --output "$OUT/two.jsonl"
  run ray-two-pin  moebench run --ray --pin --solutions $S $P --output "$OUT/two-pin.jsonl"
  CUDA_VISIBLE_DEVICES=0 run ray-of-one    moebench run --ray --solutions $S $P --output "$OUT/ray-of-one.jsonl"   # Ray's overhead
  run ray-resume   moebench run --ray --resume --solutions $S $P --output "$OUT/two.jsonl"                         # nothing left
  python - "$OUT" <<'P'
import json, sys
from pathlib import Path
def load(name):
    found = {}
    for text in Path(sys.argv[1], name).read_text().splitlines():
        t = json.loads(text); e = t["evaluation"]
        found[t["solution"], t["workload"]["axes"]["seq_len"]] = e["status"], e["performance"]["latency_ms"] if e["performance"] else None, e["environment"]["libs"].get("host")
    return found
one, two = load("one.jsonl"), load("two.jsonl")
print("same verdicts:", {k: v[0] for k, v in one.items()} == {k: v[0] for k, v in two.items()}, len(one), len(two))
print("hosts:", sorted({v[2] for v in two.values()}))
ratios = sorted(two[k][1] / one[k][1] for k in one if one[k][1] and two[k][1])
print("latency through Ray over one GPU: min %.3f median %.3f max %.3f" % (ratios[0], ratios[len(ratios) // 2], ratios[-1]))
P
fi
grep -h "^real" "$OUT"/*.txt | paste -sd' '
for f in "$OUT"/*.txt; do echo "$(basename $f): $(grep -h '^real' $f)"; done
