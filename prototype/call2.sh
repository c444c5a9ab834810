. .scout/setup.sh
export DG_JIT_CACHE_DIR=/tmp/deep_gemm_cache
SITE=$(python3 -c "import sysconfig; print(sysconfig.get_paths()['purelib'])")
mkdir -p $SITE/flashinfer/data/aot/fused_moe_90_bf16_fp8; cp .scout/fi/*.so $SITE/flashinfer/data/aot/fused_moe_90_bf16_fp8/
save() { mkdir -p /tmp/tr; tar czf /tmp/tr/traces.tgz traces; cp /tmp/tr/traces.tgz $OUT/traces.tgz; }
for d in $ALLDEFS deepseek-v3-ep8-routed; do MAX_JOBS=2 nice python3 -m harness pack --build hopper_fused --definition $d > /tmp/b-$d 2>&1 & done
(timeout 150 python3 prototype/deepgemm_gpu.py --definitions full --solutions deepgemm --tokens 1 7 14 15 16 32 52 53 54 55 56 57 58 59 62 80 901 11948 14107 --rounds 0 --no-graph --no-profile > $OUT/dg0.log 2>&1; grep -E "NOT|FAILED|given" $OUT/dg0.log | cut -c1-200 | head; stamp deepgemm warm) &
for d in full kimi-k2-ep8 minimax-m2 qwen3-30b; do nice python3 prototype/warm_triton.py $d triton_fused_v2 sglang_triton flashinfer_cutlass hopper_fused > /tmp/w-$d 2>&1 & done
wait; stamp built
for d in $ALLDEFS; do [ -f /tmp/w-$d ] || (nice python3 prototype/warm_triton.py $d triton_fused_v2 sglang_triton flashinfer_cutlass > /tmp/w-$d 2>&1) & done; wait
grep -hE "ERR|BUILD|rror" /tmp/w-* /tmp/b-* | cut -c1-200 | head -8; stamp all warm
timeout 100 python3 prototype/forms.py full hopper_fused 2>&1 | tee $OUT/forms.log | cut -c1-230; stamp forms
timeout 45 python3 prototype/forms.py full triton_fused_v2 1 32 256 1024 4096 2>&1 | tee -a $OUT/forms.log | cut -c1-230; stamp forms v2
timeout 60 python3 prototype/deepgemm_gpu.py --definitions full --tokens 1 7 64 901 4096 14107 --rounds 11 --no-profile > $OUT/dg.log 2>&1; grep -E "matched|us,|NOT|FAILED|rror" $OUT/dg.log | cut -c1-200 | tail -44; stamp deepgemm
ALL="hopper_fused hopper_fused_exact triton_fused_v2 sglang_triton flashinfer_cutlass"
timeout 200 python3 -m harness run --definition full --solutions $ALL deepgemm > /tmp/full.log 2>&1; grep -vE "PASSED" /tmp/full.log | tail -22 | cut -c1-150; save; stamp full relaxed
LIMIT=470 FAMILY="kimi-k2-ep8 minimax-m2 qwen3-30b qwen3-next" . .scout/family.sh
