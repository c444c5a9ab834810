# Fourth call, 330 s: transformers (check with plain attention), sanitizers to their end, GPU tests. carry [".whl_d", ".tf", ".scout"] (move .scout/fi and bin away: 64 MiB)
sed 's/\.whl\//.whl_d\//' .scout/setup.sh > /tmp/setup.sh; . /tmp/setup.sh; END=${END:-330}
export OUT=${OUT:-/tmp/out} PYTHONUNBUFFERED=1; mkdir -p $OUT; export SP=$PYTHONPATH
python3 -m pip install -q --no-index --no-deps --no-compile --target /tmp/tf-site .tf/*.whl > /tmp/tf.log 2>&1; stamp installed
PYTHONPATH=$SP:/tmp/tf-site timeout 120 python3 -m harness generate --solutions hopper_fused triton_fused_v2 mma_fused --output $OUT/deepseek-v3.jsonl > $OUT/generate.log 2>&1; tail -30 $OUT/generate.log | cut -c1-200; stamp generate
LEFT=$(( END - $(el) )); export PYTHONPATH=$SP:tests/support:tests/mma_fused
(timeout -s INT $LEFT python3 -m pytest -q --tb=short -p no:cacheprovider -n 4 -m gpu tests/mma_fused/test_mma_sanitizers.py -k race > $OUT/sanitizers.log 2>&1; tail -4 $OUT/sanitizers.log | cut -c1-200; stamp race
 LEFT=$(( END - $(el) )); timeout -s INT $LEFT python3 -m pytest -q --tb=short -p no:cacheprovider -n 4 -m gpu tests/mma_fused/test_mma_sanitizers.py -k clean > $OUT/sanitizers2.log 2>&1; tail -4 $OUT/sanitizers2.log | cut -c1-200; stamp clean) &
(timeout -s INT $LEFT python3 -m pytest -q --tb=short -p no:cacheprovider -n 8 -m "gpu and not slow" tests/mma_fused tests/solutions/test_cuda_edges.py tests/solutions/test_routed.py tests/solutions/test_solution.py -k mma > $OUT/contract.log 2>&1; tail -12 $OUT/contract.log | cut -c1-200; stamp contract) &
wait; stamp done
