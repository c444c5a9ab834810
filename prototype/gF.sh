# Second call, 600 s, once gE's forms are settled: traces of what changed (mma_fused, triton_fused_v2 with the fence, sglang_triton, deepgemm).
. .scout/setup.sh
export DG_JIT_CACHE_DIR=/tmp/deep_gemm_cache OUT=${OUT:-/tmp/out}; mkdir -p $OUT
SITE=$(python3 -c "import sysconfig; print(sysconfig.get_paths()['purelib'])")
mkdir -p $SITE/flashinfer/data/aot/fused_moe_90_bf16_fp8; cp .scout/fi/*.so $SITE/flashinfer/data/aot/fused_moe_90_bf16_fp8/
save() { mkdir -p /tmp/tr; tar czf /tmp/tr/traces.tgz traces; cp /tmp/tr/traces.tgz $OUT/traces.tgz; }
run() { timeout $1 python3 -m harness run "${@:2}" > /tmp/run.log 2>&1; grep -vE "PASSED" /tmp/run.log | grep -E "│|ERR" | cut -c1-120 | tail -9; save; stamp "${@:2}" | cut -c1-150; }
SOLUTIONS=${SOLUTIONS:-mma_fused sglang_triton deepgemm triton_fused_v2}
FAMILY="deepseek-v3-ep16 deepseek-v3-ep4 deepseek-v3-ep1 kimi-k2-ep1 kimi-k2-ep8 minimax-m2 glm-5-ep8 qwen3-235b qwen3-30b qwen3-next"
for d in full $FAMILY; do MAX_JOBS=1 nice python3 -m harness pack --build mma_fused --definition $d > /tmp/m-$d 2>&1 & done
MAX_JOBS=2 nice python3 -m harness pack --build hopper_fused --definition full > /tmp/b-full 2>&1 &
nice python3 prototype/warm_triton.py full triton_fused_v2 sglang_triton > /tmp/w-full 2>&1 &
(PYTHONPATH=$PYTHONPATH:tests/support:tests/mma_fused timeout 150 python3 -m pytest -q --tb=short -p no:cacheprovider -n 3 -m gpu tests/mma_fused/test_mma_sanitizers.py > $OUT/sanitizers.log 2>&1; tail -4 $OUT/sanitizers.log | cut -c1-200; stamp sanitizers) &
wait; stamp built
run 130 --definition full --solutions $SOLUTIONS hopper_fused
for t in contest default; do run 80 --definition full --solutions $SOLUTIONS --tolerance $t --warmup-runs 3 --iterations 10 --num-trials 1; done
for d in $FAMILY; do [ $(el) -gt 540 ] && break; run 60 --definition $d --solutions mma_fused triton_fused_v2 --warmup-runs 3 --iterations 20 --num-trials 1; done
