# On the same machine within 30 s of gF (its caches): the served record with energy, the GPU clock, what is left of the family. carry [".whl", ".scout"]
T0=$(date +%s); el() { echo $(( $(date +%s) - T0 )); }; stamp() { echo "== $* t=$(el)"; }
export PYTHONPATH=$PWD/scripts:$PWD FIB_CACHE_PATH=/tmp/fib TVM_FFI_CACHE_DIR=/tmp/tvm DG_JIT_CACHE_DIR=/tmp/deep_gemm_cache OUT=${OUT:-/tmp/out}
tar xzf /tmp/tr/traces.tgz; python3 -m harness pack > /dev/null
PEERS="hopper_fused hopper_fused_exact mma_fused deepgemm sglang_triton triton_fused_v2 cutlass_grouped"
(MAX_JOBS=14 python3 -m harness pack --build cutlass_grouped --definition full > /tmp/c-full 2>&1); (MAX_JOBS=14 python3 -m harness pack --build hopper_fused_exact --definition full > /tmp/c-full 2>&1); stamp built
timeout 280 python3 -m harness served --solutions $PEERS --tokens 1 8 32 64 128 256 1024 4096 8192 16384 --output $OUT/full.jsonl > /tmp/served.log 2>&1; tail -40 /tmp/served.log | cut -c1-150; stamp served
timeout 200 python3 -m harness run --definition full --solutions $PEERS flashinfer_cutlass --clock gpu > /tmp/clock.log 2>&1; grep -v PASSED /tmp/clock.log | tail -14 | cut -c1-120; cp docs/data/gpu_clock/*.jsonl $OUT/; stamp clock
. /tmp/lib.sh; SOLUTIONS="mma_fused"; [ $(el) -lt ${LIMIT:-430} ] && run 60 --definition deepseek-v3-ep8-routed --solutions mma_fused hopper_fused --warmup-runs 3 --iterations 10 --num-trials 1
family ${LIMIT:-430}; save
