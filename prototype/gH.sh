# Fourth call, 300 s and more: contract tests on the GPU (those that are quick), the routed definition's bits, transformers again.
# carry [".whl_d", ".tf", ".scout"] (no FlashInfer: 53 MB)
T0=$(date +%s); stamp() { echo "== $* t=$(( $(date +%s) - T0 ))"; }
SITE=$(python3 -c "import sysconfig; print(sysconfig.get_paths()['purelib'])")
mkdir -p $SITE/moe_fp8_block_scale-0.1.0.dist-info; printf 'Metadata-Version: 2.1\nName: moe-fp8-block-scale\nVersion: 0.1.0\n' > $SITE/moe_fp8_block_scale-0.1.0.dist-info/METADATA
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --break-system-packages .whl_d/*.whl 2>&1 | grep -v WARN | tail -3
python3 -m pip install -q --no-index --no-deps --target /tmp/tf-site .tf/*.whl 2>&1 | grep -v WARN | tail -3; stamp installed
export PYTHONPATH=$PWD/scripts:$PWD:tests/support:tests/mma_fused:/tmp/tf-site FIB_CACHE_PATH=/tmp/fib TVM_FFI_CACHE_DIR=/tmp/tvm OUT=${OUT:-/tmp/out} PYTHONUNBUFFERED=1; mkdir -p $OUT
timeout 120 python3 -m harness generate --solutions hopper_fused triton_fused_v2 mma_fused --output $OUT/deepseek-v3.jsonl > $OUT/generate.log 2>&1; tail -30 $OUT/generate.log | cut -c1-200; stamp generate
timeout 240 python3 -m pytest -q --tb=short -p no:cacheprovider -n 4 -m "gpu and not slow" tests/solutions/test_routed.py tests/solutions/test_cuda_edges.py tests/solutions/test_solution.py -k "${K:-mma_fused or hopper_fused or triton_fused_v2 or routed}" > $OUT/contract.log 2>&1; tail -25 $OUT/contract.log | cut -c1-200; stamp contract
