# carry [".whl_d", ".tf", ".scout"]; 345 s: relaxed again, two definitions that are left, GPU tests, sanitizers, triton_fused_v2 in the model
sed 's/\.whl\//.whl_d\//' .scout/setup.sh > /tmp/setup.sh; . /tmp/setup.sh; END=${END:-345}
export OUT=${OUT:-/tmp/out} PYTHONUNBUFFERED=1 DG_JIT_CACHE_DIR=/tmp/deep_gemm_cache; mkdir -p $OUT; export SP=$PYTHONPATH
python3 -m pip install -q --no-index --no-deps --no-compile --target /tmp/tf-site .tf/*.whl > /tmp/tf.log 2>&1 & TF=$!
for d in full qwen3-30b qwen3-next; do MAX_JOBS=2 python3 -m harness pack --build mma_fused --definition $d > /tmp/m-$d 2>&1 & J="$J $!"; done
MAX_JOBS=3 python3 -m harness pack --build hopper_fused --definition full > /tmp/b-full 2>&1 & J="$J $!"
for d in full qwen3-30b qwen3-next; do nice python3 prototype/warm_triton.py $d triton_fused_v2 sglang_triton > /tmp/w-$d 2>&1 & J="$J $!"; done
(PYTHONPATH=$SP:tests/support timeout 45 python3 .scout/proto/graph_diff.py --solutions triton_fused_v2 > $OUT/graph_diff.txt 2>&1) & J="$J $!"
for j in $J $TF; do wait $j; done; tail -3 $OUT/graph_diff.txt | cut -c1-200; grep -hE "ERR|BUILD|rror" /tmp/m-* /tmp/w-* /tmp/b-* | cut -c1-200 | head; stamp built
save() { tar czf /tmp/traces.tgz traces; cp /tmp/traces.tgz $OUT/traces.tgz; }
run() { timeout $1 python3 -m harness run "${@:2}" > /tmp/run.log 2>&1; grep -vE "PASSED" /tmp/run.log | grep -E "│|ERR|FAIL|INCO" | cut -c1-120 | tail -9; save; stamp "${@:2}" | cut -c1-150; }
run 140 --definition full --solutions mma_fused hopper_fused sglang_triton
for d in qwen3-30b qwen3-next; do run 40 --definition $d --solutions mma_fused sglang_triton --warmup-runs 3 --iterations 20 --num-trials 1; done
LEFT=$(( END - $(el) )); export PYTHONPATH=$SP:tests/support:tests/mma_fused
(timeout -s INT $LEFT python3 -m pytest -q --tb=short -p no:cacheprovider -n 3 -m gpu tests/mma_fused/test_mma_sanitizers.py > $OUT/sanitizers.log 2>&1; tail -4 $OUT/sanitizers.log | cut -c1-200; stamp sanitizers) &
(PYTHONPATH=$PYTHONPATH:/tmp/tf-site timeout $LEFT python3 .scout/proto/graph_diff.py --model --solutions triton_fused_v2 > $OUT/graph_model.txt 2>&1; tail -20 $OUT/graph_model.txt | cut -c1-200; stamp model) &
(timeout -s INT $LEFT python3 -m pytest -q --tb=short -p no:cacheprovider -n 6 -m "gpu and not slow" tests/mma_fused tests/solutions/test_cuda_edges.py tests/solutions/test_routed.py tests/solutions/test_solution.py -k mma > $OUT/contract.log 2>&1; tail -12 $OUT/contract.log | cut -c1-200; stamp contract
 LEFT=$(( END - $(el) )); [ $LEFT -gt 30 ] && timeout -s INT $LEFT python3 -m pytest -q --tb=short -p no:cacheprovider -n 8 -m "gpu and not slow" tests/solutions/test_solution.py -k "deepgemm or sglang" > $OUT/contract2.log 2>&1; tail -12 $OUT/contract2.log | cut -c1-200; stamp contract2) &
wait; stamp done
