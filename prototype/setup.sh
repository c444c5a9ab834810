T0=$(date +%s); el() { echo $(( $(date +%s) - T0 )); }
stamp() { echo "== $* t=$(el)"; }
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --break-system-packages .whl/*.whl 2>&1 | grep -v WARN | tail -3
SITE=$(python3 -c "import sysconfig; print(sysconfig.get_paths()['purelib'])"); cp -r .scout/site/* $SITE/
mkdir -p $SITE/moe_fp8_block_scale-0.1.0.dist-info; printf 'Metadata-Version: 2.1\nName: moe-fp8-block-scale\nVersion: 0.1.0\n' > $SITE/moe_fp8_block_scale-0.1.0.dist-info/METADATA
export PYTHONPATH=$PWD/scripts:$PWD FIB_CACHE_PATH=/tmp/fib TVM_FFI_CACHE_DIR=/tmp/tvm
mkdir -p prototype; cp .scout/proto/* prototype/
python3 -m harness pack > /dev/null; stamp packed
ALLDEFS="full kimi-k2-ep8 kimi-k2-ep1 minimax-m2 glm-5-ep8 qwen3-235b qwen3-30b qwen3-next deepseek-v3-ep16 deepseek-v3-ep4 deepseek-v3-ep1"
