# mma_fused: stages in every configuration, then variants against hopper_fused and the time of each phase.
. .scout/setup.sh
HERE=.scout; export OUT=${OUT:-/tmp/mma-out}; mkdir -p $OUT
export PYTHONPATH=$PWD/scripts:$PWD:$PWD/tests/support:$PWD/tests/mma_fused PYTHONUNBUFFERED=1 TVM_FFI_CACHE_DIR=/tmp/tvm MAX_JOBS=16
G1="python3 $HERE/mma-gpu.py"; G="python3 $HERE/mma-gpu2.py"; V=${V:-base old stages3 parts1 unchanged unroll1}; FORCED="227,1,1 163,0,0 99,0,0 99,0,1 99,1,1"
$G1 pack hopper_fused > /tmp/b-hopper 2>&1 & JOBS=$!
for c in $FORCED; do $G1 build full $c > /tmp/b-$c 2>&1 & JOBS="$JOBS $!"; done
for v in times $V; do $G build $v > /tmp/b-$v 2>&1 & JOBS="$JOBS $!"; done
for j in $JOBS; do wait $j; done; stamp built; grep -l "does not compile" /tmp/b-* | xargs -r tail -c 600
for c in $FORCED; do timeout -s KILL 20 $G1 stages full $c 1,7,57,256 2>&1 | grep -E "HANG|wrong|rror|COUNTERS|DIFFER|off by|-- " | cut -c1-300 | tail -4; done; stamp stages
timeout -s KILL 40 $G times 1,7,16,32,57,80,128,256 2>&1 | grep -E "^--|rror"; stamp times
timeout -s KILL 60 $G compare 1,7,16,32,57,80,128,256 $V 2>&1 | grep -E "^T=|rror" | cut -c1-600; stamp compared
rm -f $OUT/times-*
