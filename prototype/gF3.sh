# Second call, 570 s: traces of mma_fused as it then is; EP4 and EP1 of sglang_triton and triton_fused_v2 at 3/20/1. carry [".whl", ".scout"]
. .scout/setup.sh
export DG_JIT_CACHE_DIR=/tmp/deep_gemm_cache OUT=${OUT:-/tmp/out}; mkdir -p $OUT
SITE=$(python3 -c "import sysconfig; print(sysconfig.get_paths()['purelib'])")
mkdir -p $SITE/flashinfer/data/aot/fused_moe_90_bf16_fp8; cp .scout/fi/*.so $SITE/flashinfer/data/aot/fused_moe_90_bf16_fp8/
FAMILY="deepseek-v3-ep4 deepseek-v3-ep1 deepseek-v3-ep16 kimi-k2-ep1 kimi-k2-ep8 minimax-m2 glm-5-ep8 qwen3-235b qwen3-30b qwen3-next"
for d in full $FAMILY deepseek-v3-ep8-routed; do MAX_JOBS=1 python3 -m harness pack --build mma_fused --definition $d > /tmp/m-$d 2>&1 & done
MAX_JOBS=2 python3 -m harness pack --build hopper_fused --definition full > /tmp/b-full 2>&1 &
for d in full $FAMILY; do nice python3 prototype/warm_triton.py $d triton_fused_v2 sglang_triton > /tmp/w-$d 2>&1 & done
wait; grep -hE "ERR|BUILD|rror" /tmp/m-* /tmp/w-* /tmp/b-* | cut -c1-200 | head; stamp built
save() { mkdir -p /tmp/tr; tar czf /tmp/tr/traces.tgz traces; cp /tmp/tr/traces.tgz $OUT/traces.tgz; }
run() { timeout $1 python3 -m harness run "${@:2}" > /tmp/run.log 2>&1; grep -vE "PASSED" /tmp/run.log | grep -E "│|ERR|FAIL|INCO" | cut -c1-120 | tail -9; save; stamp "${@:2}" | cut -c1-150; }
run 160 --definition full --solutions mma_fused hopper_fused sglang_triton triton_fused_v2
for t in contest default; do run 60 --definition full --solutions mma_fused --tolerance $t --warmup-runs 3 --iterations 10 --num-trials 1; done
for d in $FAMILY; do P="--warmup-runs 3 --iterations 20"; [ $d = kimi-k2-ep1 ] && P="--warmup-runs 2 --iterations 10"
 S="mma_fused"; case $d in *v3-ep4|*v3-ep1) S="$S sglang_triton triton_fused_v2";; esac
 [ $(el) -gt 540 ] && break; run 100 --definition $d --solutions $S $P --num-trials 1; done
[ $(el) -lt 550 ] && run 60 --definition deepseek-v3-ep8-routed --solutions mma_fused --warmup-runs 3 --iterations 10 --num-trials 1
