. .scout/setup.sh
HERE=.scout; export OUT=${OUT:-/tmp/mma-out}; mkdir -p $OUT
export PYTHONPATH=$PWD/scripts:$PWD:$PWD/tests/support:$PWD/tests/mma_fused PYTHONUNBUFFERED=1 TVM_FFI_CACHE_DIR=/tmp/tvm MAX_JOBS=16
G1="python3 $HERE/mma-gpu.py"; G="python3 $HERE/mma-gpu2.py"; V=${V:-base mid old}; FORCED="227,1,1 99,0,0"
(timeout -s KILL 100 python3 $HERE/proto/sglang_tiles2.py 512 256 --seconds 50 --jobs 8 --graph > $OUT/sglang_tiles.txt 2>&1; cp /tmp/sglang_tiles2.jsonl $OUT/) & S=$!
for s in hopper_fused; do $G1 pack $s > /tmp/b-$s 2>&1 & JOBS="$JOBS $!"; done
for c in $FORCED; do $G1 build full $c > /tmp/b-$c 2>&1 & JOBS="$JOBS $!"; done
for v in times $V; do $G build $v > /tmp/b-$v 2>&1 & JOBS="$JOBS $!"; done
for j in $JOBS; do wait $j; done; stamp built; grep -l "does not compile" /tmp/b-* | xargs -r tail -c 600
wait $S; stamp sglang; grep -E "best|pair|graph" $OUT/sglang_tiles.txt | cut -c1-160
for c in $FORCED; do timeout -s KILL 25 $G1 stages full $c 1,7,12,13,57,256 0 3 2>&1 | grep -E "HANG|wrong|rror|COUNTERS|DIFFER|off by|-- " | cut -c1-300 | tail -4; done; stamp stages
timeout -s KILL 60 $G compare 1,7,14,16,32,57,80,128,256 $V 2>&1 | grep -E "^T=|rror" | cut -c1-600; stamp compared
timeout -s KILL 40 $G times 1,7,16,57,256 2>&1 | grep -E "^--|rror"; stamp times
