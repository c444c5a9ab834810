# Fourth call, about 300 s: transformers at real sizes (90 GB of GPU memory). .whl without
# flashinfer_python, .tf: wheels of transformers and what it needs (17 wheels for Python 3.12, 20 MB). The same machine or a fresh one.
T0=$(date +%s); stamp() { echo "== $* t=$(( $(date +%s) - T0 ))"; }
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --break-system-packages .whl/*.whl 2>&1 | grep -v WARN | tail -3
python3 -m pip install -q --no-index --no-deps --target /tmp/tf-site .tf/*.whl 2>&1 | grep -v WARN | tail -3
export PYTHONPATH=$PWD/scripts:$PWD:/tmp/tf-site FIB_CACHE_PATH=/tmp/fib TVM_FFI_CACHE_DIR=/tmp/tvm OUT=${OUT:-/tmp/out}
timeout 120 python3 -m pytest -q -n 0 tests/solutions/test_transformers.py 2>&1 | tail -5 | cut -c1-200; stamp smoke
timeout 400 python3 -m harness generate --solutions hopper_fused triton_fused_v2 --output $OUT/deepseek-v3.jsonl 2>&1 | tail -30 | cut -c1-200; stamp generate
