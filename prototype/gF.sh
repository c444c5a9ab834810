# Traces of what changed (mma_fused, sglang_triton, deepgemm; hopper_fused and triton_fused_v2 in the same run for the ratios).
. .scout/setup.sh
export DG_JIT_CACHE_DIR=/tmp/deep_gemm_cache OUT=${OUT:-/tmp/out}; mkdir -p $OUT
SITE=$(python3 -c "import sysconfig; print(sysconfig.get_paths()['purelib'])")
mkdir -p $SITE/flashinfer/data/aot/fused_moe_90_bf16_fp8; cp .scout/fi/*.so $SITE/flashinfer/data/aot/fused_moe_90_bf16_fp8/
FAMILY="deepseek-v3-ep16 deepseek-v3-ep4 deepseek-v3-ep1 kimi-k2-ep1 kimi-k2-ep8 minimax-m2 glm-5-ep8 qwen3-235b qwen3-30b qwen3-next"
for d in full $FAMILY deepseek-v3-ep8-routed; do MAX_JOBS=1 python3 -m harness pack --build mma_fused --definition $d > /tmp/m-$d 2>&1 & done
MAX_JOBS=2 python3 -m harness pack --build hopper_fused --definition full > /tmp/b-full 2>&1 &
for d in full $FAMILY; do nice python3 prototype/warm_triton.py $d triton_fused_v2 sglang_triton > /tmp/w-$d 2>&1 & done
wait; grep -hE "ERR|BUILD|rror" /tmp/m-* /tmp/w-* /tmp/b-* | cut -c1-200 | head; stamp built
cat > /tmp/lib.sh <<'X'
save() { mkdir -p /tmp/tr; tar czf /tmp/tr/traces.tgz traces; cp /tmp/tr/traces.tgz $OUT/traces.tgz; }
run() { timeout $1 python3 -m harness run "${@:2}" > /tmp/run.log 2>&1; grep -vE "PASSED" /tmp/run.log | grep -E "│|ERR|FAIL|INCO" | cut -c1-120 | tail -9; save; stamp "${@:2}" | cut -c1-150; }
family() { for d in $FAMILY; do [ -f /tmp/done-$d ] && continue; [ $(el) -gt $1 ] && break
 P="--warmup-runs 3 --iterations 20"; case $d in *ep1|*ep4) P="--warmup-runs 2 --iterations 10";; esac
 S="mma_fused sglang_triton"; case $d in deepseek*|kimi-k2-ep1) S="$S triton_fused_v2";; esac
 run 100 --definition $d --solutions $S $P --num-trials 1; touch /tmp/done-$d; done; }
X
. /tmp/lib.sh; echo "FAMILY=\"$FAMILY\"" >> /tmp/lib.sh
SOLUTIONS="mma_fused sglang_triton deepgemm"
run 160 --definition full --solutions $SOLUTIONS triton_fused_v2 hopper_fused
for t in contest default; do run 80 --definition full --solutions $SOLUTIONS --tolerance $t --warmup-runs 3 --iterations 10 --num-trials 1; done
family 530
