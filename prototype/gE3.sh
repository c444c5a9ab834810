# First call, about 120 s (timeout 180), on the next form of mma_fused: the division's costs of a step. carry [".whl", ".scout"]
. .scout/setup.sh
HERE=.scout; export OUT=${OUT:-/tmp/mma-out}; mkdir -p $OUT
export PYTHONPATH=$PWD/scripts:$PWD:$PWD/tests/support:$PWD/tests/mma_fused PYTHONUNBUFFERED=1 TVM_FFI_CACHE_DIR=/tmp/tvm MAX_JOBS=16
G1="python3 $HERE/mma-gpu.py"; G="python3 $HERE/mma-gpu2.py"; V=${V:-base cost43 cost54 cost64}
$G1 pack hopper_fused > /tmp/b-hopper 2>&1 & JOBS="$!"
for v in times $V; do $G build $v > /tmp/b-$v 2>&1 & JOBS="$JOBS $!"; done
for j in $JOBS; do wait $j; done; stamp built; grep -l "does not compile" /tmp/b-* | xargs -r tail -c 600
for i in 1 2; do timeout -s KILL 70 $G compare 1,7,14,15,16,32,53,57,80,128,256 $V 2>&1 | grep -E "^T=|rror" | cut -c1-600; stamp compared $i; done
timeout -s KILL 40 $G times 1,7,16,57,256 2>&1 | grep -E "^--|rror"; stamp times
