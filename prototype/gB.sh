# Second call, about 560 s, once gA's forms are settled: the traces that are missing or stale.
. prototype/setup.sh
export DG_JIT_CACHE_DIR=/tmp/deep_gemm_cache OUT=${OUT:-/tmp/out}
SITE=$(python3 -c "import sysconfig; print(sysconfig.get_paths()['purelib'])")
mkdir -p $SITE/flashinfer/data/aot/fused_moe_90_bf16_fp8; cp prototype/fi/*.so $SITE/flashinfer/data/aot/fused_moe_90_bf16_fp8/
save() { mkdir -p /tmp/tr; tar czf /tmp/tr/traces.tgz traces; cp /tmp/tr/traces.tgz $OUT/traces.tgz; }
run() { timeout $1 python3 -m harness run "${@:2}" > /tmp/run.log 2>&1; grep -vE "PASSED" /tmp/run.log | grep -E "│|ERR" | cut -c1-120 | tail -9; save; stamp "${@:2}" | cut -c1-150; }
FAMILY="kimi-k2-ep8 minimax-m2 glm-5-ep8 qwen3-235b qwen3-30b qwen3-next deepseek-v3-ep16 deepseek-v3-ep4 deepseek-v3-ep1 kimi-k2-ep1"
for d in full $FAMILY; do MAX_JOBS=1 nice python3 -m harness pack --build mma_fused --definition $d > /tmp/m-$d 2>&1 & done
for d in full deepseek-v3-ep8-routed; do MAX_JOBS=2 nice python3 -m harness pack --build hopper_fused --definition $d > /tmp/b-$d 2>&1 & done
(timeout 100 python3 prototype/dg_host2.py > /tmp/dg0 2>&1) &
nice python3 prototype/warm_triton.py full triton_fused_v2 sglang_triton flashinfer_cutlass > /tmp/w-full 2>&1 &
wait; stamp built
run 110 --definition full --solutions mma_fused deepgemm triton_fused_v2 hopper_fused
for t in contest default; do run 80 --definition full --solutions mma_fused deepgemm triton_fused_v2 sglang_triton flashinfer_cutlass --tolerance $t --warmup-runs 3 --iterations 10 --num-trials 1; done
for d in $FAMILY; do [ $(el) -gt 500 ] && break; run 60 --definition $d --solutions mma_fused triton_fused_v2 --warmup-runs 3 --iterations 20 --num-trials 1; done
[ $(el) -gt 530 ] || run 60 --definition deepseek-v3-ep8-routed --warmup-runs 3 --iterations 20 --num-trials 1
