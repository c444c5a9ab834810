# First call of the session, about 330 s (timeout 420), on branch `next` (and mma_fused's next form): carry [".whl", ".scout"]
. .scout/setup.sh
HERE=.scout; export OUT=${OUT:-/tmp/mma-out}; mkdir -p $OUT
export PYTHONPATH=$PWD/scripts:$PWD:$PWD/tests/support:$PWD/tests/mma_fused PYTHONUNBUFFERED=1 TVM_FFI_CACHE_DIR=/tmp/tvm MAX_JOBS=16 DG_JIT_CACHE_DIR=/tmp/deep_gemm_cache
G1="python3 $HERE/mma-gpu.py"; G="python3 $HERE/mma-gpu2.py"; V=${V:-base old}; FORCED="227,1,1 163,0,0 99,0,0 99,0,1 99,1,1"
for s in hopper_fused mma_fused; do $G1 pack $s > /tmp/b-$s 2>&1 & JOBS="$JOBS $!"; done
for c in $FORCED; do $G1 build full $c > /tmp/b-$c 2>&1 & JOBS="$JOBS $!"; done
for v in times $V; do $G build $v > /tmp/b-$v 2>&1 & JOBS="$JOBS $!"; done
python3 $HERE/hopper_division.py build > /tmp/b-h 2>&1 & JOBS="$JOBS $!"
for j in $JOBS; do wait $j; done; stamp built; grep -l "does not compile" /tmp/b-* | xargs -r tail -c 600
for c in $FORCED; do timeout -s KILL 25 $G1 stages full $c 1,7,12,13,57,256 0 3 2>&1 | grep -E "HANG|wrong|rror|COUNTERS|DIFFER|off by|-- " | cut -c1-300 | tail -4; done; stamp stages
timeout -s KILL 40 $G times 1,7,16,57,256 2>&1 | grep -E "^--|rror"; stamp times
timeout -s KILL 60 $G compare 1,7,14,16,32,57,80,128,256 $V 2>&1 | grep -E "^T=|rror" | cut -c1-600; stamp compared
timeout -s KILL 40 python3 $HERE/hopper_division.py compare 1,7,8,14,16,32,57,80,128,200 2>&1 | grep -E "^hopper|rror"; stamp hopper division
timeout -s KILL 80 python3 $HERE/proto/graph_diff.py > $OUT/graph_diff.txt 2>&1; tail -25 $OUT/graph_diff.txt | cut -c1-200; stamp graph
timeout -s KILL 170 python3 $HERE/proto/sglang_tiles2.py --seconds 100 > $OUT/sglang_tiles.txt 2>&1; tail -60 $OUT/sglang_tiles.txt | cut -c1-160; cp /tmp/sglang_tiles2.jsonl $OUT/; stamp sglang
