#!/bin/bash
# Second run of mma_fused, when the first was right: variants against hopper_fused (interleaved, events, cold L2) and the
# time of each phase in a launch. mma-gpu.py, mma-gpu2.py and mma-gpu2.sh in .scout; carry [".whl", ".scout"]; about 100 s.
. .scout/setup.sh
HERE=$(dirname "$0"); export OUT=${OUT:-/tmp/mma-out}; mkdir -p $OUT
export PYTHONPATH=$PWD/scripts:$PWD:$PWD/tests/support:$PWD/tests/mma_fused PYTHONUNBUFFERED=1 TVM_FFI_CACHE_DIR=${TVM_FFI_CACHE_DIR:-/tmp/tvm} MAX_JOBS=16
G="python3 $HERE/mma-gpu2.py"; V=${V:-base old stages3 parts1 unchanged unroll1}
$G pack hopper_fused > /tmp/b-hopper 2>&1 & JOBS=$!
for v in times $V; do $G build $v > /tmp/b-$v 2>&1 & JOBS="$JOBS $!"; done
for j in $JOBS; do wait $j; done; stamp built; grep -l "does not compile" /tmp/b-* | xargs -r tail -c 600
timeout -s KILL 40 $G times 1,7,16,32,57,80,128,256 2>&1 | grep -E "^--|rror"; stamp times
timeout -s KILL 80 $G compare 1,7,16,32,57,80,128,256 $V 2>&1 | grep -E "^T=|rror" | cut -c1-600; stamp compared
