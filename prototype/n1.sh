# First call: everything small that is left, then mma_fused's first run. 560 s. Bring .whl .scout (setup.sh, proto/, site/, fi/).
. .scout/setup.sh
export DG_JIT_CACHE_DIR=/tmp/deep_gemm_cache
SITE=$(python3 -c "import sysconfig; print(sysconfig.get_paths()['purelib'])")
mkdir -p $SITE/flashinfer/data/aot/fused_moe_90_bf16_fp8; cp .scout/fi/*.so $SITE/flashinfer/data/aot/fused_moe_90_bf16_fp8/
save() { mkdir -p /tmp/tr; tar czf /tmp/tr/traces.tgz traces; cp /tmp/tr/traces.tgz $OUT/traces.tgz; }
for d in $ALLDEFS deepseek-v3-ep8-routed; do MAX_JOBS=1 nice python3 -m harness pack --build hopper_fused --definition $d > /tmp/b-$d 2>&1 & done
(MAX_JOBS=5 nice python3 -m harness pack --build cutlass_grouped --definition full > /tmp/c-full 2>&1) &
(timeout 100 python3 prototype/deepgemm_gpu.py --definitions full --solutions deepgemm --tokens 1 7 64 901 4096 14107 --rounds 0 --no-graph --no-profile > /tmp/dg0 2>&1) &
nice python3 prototype/warm_triton.py full triton_fused_v2 sglang_triton flashinfer_cutlass > /tmp/w-full 2>&1 &
wait; stamp built
timeout 40 python3 prototype/dg_host.py 2>&1 | tee $OUT/dg_host | cut -c1-400; stamp host
timeout 60 python3 prototype/deepgemm_gpu.py --definitions full --solutions deepgemm hopper_fused --tokens 1 901 4096 14107 --rounds 7 > $OUT/dg.log 2>&1; grep -E "us,|kernels" $OUT/dg.log | cut -c1-600; stamp deepgemm
PEERS="triton_fused_v2 sglang_triton flashinfer_cutlass deepgemm cutlass_grouped"
for t in contest default; do timeout 80 python3 -m harness run --definition full --solutions $PEERS --tolerance $t --warmup-runs 2 --iterations 5 --num-trials 1 > /tmp/full.log 2>&1; grep -vE "PASSED" /tmp/full.log | grep -E "│|ERR" | cut -c1-120 | tail -8; save; stamp $t; done
for i in 0 1 2 3 4 5 6 7 8 9 10 11; do timeout 100 python3 prototype/sglang_tiles.py --warm $i 12 1 57 901 4096 14107 > /tmp/sg$i 2>&1 & done; wait; stamp sglang warm
timeout 80 python3 prototype/sglang_tiles.py 1 57 901 4096 14107 2>&1 | tee $OUT/sglang_tiles | cut -c1-300; stamp sglang
timeout 100 python3 -m harness run --definition bf16 > /tmp/bf16.log 2>&1; tail -8 /tmp/bf16.log | cut -c1-120; save; stamp bf16
timeout 120 python3 -m pytest -q --tb=short -p no:cacheprovider -rfEs --dist load -n 4 -m gpu tests/solutions/test_solution.py tests/kernels -k "not (every_definition and (kimi-k2-ep1 or (deepseek-v3-ep1 and not deepseek-v3-ep16))) and not flashinfer" > $OUT/contract.log 2>&1; tail -8 $OUT/contract.log | cut -c1-250; stamp contract
