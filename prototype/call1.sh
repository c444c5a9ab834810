. .scout/setup.sh
ROUTED="deepseek-v3-ep8-routed kimi-k2-ep8-routed minimax-m2-routed qwen3-30b-routed qwen3-next-routed qwen3-235b-routed glm-5-ep8-routed deepseek-v3-ep16-routed deepseek-v3-ep4-routed"
AOT=$(python3 -c "import flashinfer,os;print(os.path.dirname(flashinfer.__file__))")/data/aot/fused_moe_90_bf16_fp8
mkdir -p $AOT; [ -f .scout/fi/fused_moe_90_bf16_fp8.so ] && cp .scout/fi/*.so $AOT/
PT="python3 -m pytest -q --tb=short -p no:cacheprovider -rfEs --dist load"
for d in $ALLDEFS $ROUTED; do MAX_JOBS=2 nice python3 -m harness pack --build hopper_fused --definition $d > /tmp/b-$d 2>&1 & done
(timeout 100 python3 prototype/deepgemm_gpu.py --definitions full --tokens 1 --rounds 3 --no-profile > $OUT/dg0.log 2>&1; grep -E "NOT|FAILED|deepgemm" $OUT/dg0.log | cut -c1-220 | head) &
wait; grep -hE "rror" /tmp/b-* | cut -c1-200 | head -5; stamp built
.scout/bin/mainloop4 > $OUT/mainloop4.log 2>&1; tail -30 $OUT/mainloop4.log | cut -c1-180; stamp mainloop4
(timeout 220 $PT -n 5 -m gpu tests/solutions/test_hopper_sanitizers.py > $OUT/san.log 2>&1; tail -6 $OUT/san.log | cut -c1-300; stamp sanitizers) & S=$!
timeout 150 $PT -n 4 tests/solutions/test_hopper_stages.py tests/solutions/test_hopper_edges.py -m gpu > $OUT/stages.log 2>&1; tail -12 $OUT/stages.log | cut -c1-250; stamp stages
timeout 150 $PT -n 4 tests/solutions/test_routed.py > $OUT/routed.log 2>&1; tail -12 $OUT/routed.log | cut -c1-250; stamp routed
wait $S
timeout 100 python3 prototype/forms.py full hopper_fused 2>&1 | tee $OUT/forms.log | cut -c1-260; stamp forms
timeout 45 python3 prototype/forms.py full triton_fused_v2 1 32 256 1024 4096 2>&1 | tee $OUT/formsv2.log | cut -c1-260; stamp forms v2
timeout 40 python3 -m harness run --definition qwen3-next --solutions flashinfer_cutlass --no-save --num-trials 1 --iterations 5 --warmup-runs 1 > $OUT/fi.log 2>&1; tail -25 $OUT/fi.log | cut -c1-200; stamp flashinfer
timeout 100 python3 prototype/deepgemm_gpu.py --definitions full qwen3-30b --tokens 1 7 64 901 4096 14107 --rounds 15 > $OUT/dg.log 2>&1; grep -vE "^\s*$" $OUT/dg.log | cut -c1-230 | tail -60; stamp deepgemm
