#!/bin/bash
# What to run on the H200 for sections 3 and 1 of the issue; one block is one call. Not a script to run in one go.
# Durations are estimates (nothing ran on a GPU yet), without building: hopper_fused, cutlass_grouped and deepgemm build or
# JIT on a fresh machine. RUN is how moebench is called there (python -m harness, with PYTHONPATH=scripts:.).
RUN="python -m harness"
PEERS="hopper_fused hopper_fused_exact deepgemm sglang_triton triton_fused_v2 cutlass_grouped"

# 0. Tests of both parts on the GPU: 1 min (2 + 2 tests)
python -m pytest -q -m gpu tests/harness/test_gpu_clock.py tests/harness/test_served.py

# 1. The clock, a first look: one workload, both clocks, 1 min. gpu must be below events at T = 1 and level at T = 901.
$RUN run --solutions triton_fused_v2 hopper_fused --workloads 1 901 --no-save --num-trials 1
$RUN run --solutions triton_fused_v2 hopper_fused --workloads 1 901 --no-save --num-trials 1 --clock gpu

# 2. The clock, all 19 for every solution (as the committed traces: relaxed, 3 trials of 50): 4 to 6 min; the reference costs most.
#    Two calls if the limit of a call is 10 min: the same command with --workloads; merging is by cell.
$RUN run --definition full --solutions $PEERS --clock gpu          # writes docs/data/gpu_clock/<definition>.jsonl
cp docs/data/gpu_clock/*.jsonl $OUT/                                # bring back to docs/data/gpu_clock/
$RUN compare --clock gpu | tail -60

# 3. served, a smoke run: 4 layers, 2 T, 30 s. Look for "no graph"/errors, ms/bound near the table at T = 32.
$RUN served --solutions $PEERS --layers 4 --tokens 32 4096 --turns 2

# 4. served, the record: all 14 T, six solutions: weights 3 s, timing 50 s, energy 85 s, captures and checks 20 s, JIT besides.
$RUN served --solutions $PEERS --output $OUT/full.jsonl             # 3 to 4 min; bring back to docs/data/served/full.jsonl
#    If time is short: --no-energy (about 1.5 min less), or --tokens 1 8 32 64 128 256 1024 4096 16384 (the table).

# 5. Later, the routed form when a solution serves it (key of the definition: see moebench definitions / --help): 2 min
# $RUN served --definition deepseek-v3-ep8-routed --solutions hopper_fused --no-energy --output $OUT/full-routed.jsonl

# Here, afterwards: moebench docs served clocks README   (page, picture, table); commit docs/ and docs/data/.
