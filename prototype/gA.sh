# First call, about 200 s: mma_fused's new form, deepgemm's host time, hopper_fused's counters.
. prototype/setup.sh
HERE=prototype; export OUT=${OUT:-/tmp/mma-out}; mkdir -p $OUT
export PYTHONPATH=$PWD/scripts:$PWD:$PWD/tests/support:$PWD/tests/mma_fused PYTHONUNBUFFERED=1 TVM_FFI_CACHE_DIR=/tmp/tvm MAX_JOBS=16 DG_JIT_CACHE_DIR=/tmp/deep_gemm_cache
G1="python3 $HERE/mma-gpu.py"; G="python3 $HERE/mma-gpu2.py"; V=${V:-base old stages3 parts1 unchanged unroll1}; FORCED="227,1,1 163,0,0 99,0,0 99,0,1 99,1,1"
for s in hopper_fused mma_fused; do $G1 pack $s > /tmp/b-$s 2>&1 & JOBS="$JOBS $!"; done
for c in $FORCED; do $G1 build full $c > /tmp/b-$c 2>&1 & JOBS="$JOBS $!"; done
for v in times $V; do $G build $v > /tmp/b-$v 2>&1 & JOBS="$JOBS $!"; done
(timeout 100 python3 prototype/dg_host2.py > /tmp/dg0 2>&1) &
for j in $JOBS; do wait $j; done; stamp built; grep -l "does not compile" /tmp/b-* | xargs -r tail -c 600
for c in $FORCED; do timeout -s KILL 20 $G1 stages full $c 1,7,57,256 2>&1 | grep -E "HANG|wrong|rror|COUNTERS|DIFFER|off by|-- " | cut -c1-300 | tail -4; done; stamp stages
timeout -s KILL 40 $G times 1,7,16,32,57,80,128,256 2>&1 | grep -E "^--|rror"; stamp times
timeout -s KILL 60 $G compare 1,7,16,32,57,80,128,256 $V 2>&1 | grep -E "^T=|rror" | cut -c1-600; stamp compared
wait; timeout 60 python3 prototype/dg_host2.py 2>&1 | tee $OUT/dg_host | cut -c1-400; stamp deepgemm
timeout 80 python3 prototype/dg_stages.py 2>&1 | tee $OUT/dg_stages | cut -c1-120; stamp deepgemm stages
timeout 90 python3 -m harness profile hopper_fused --workloads 57 901 real:1024 real:4096 real:8192 14107 --counters --records $OUT/profile > $OUT/profile.txt 2>&1; tail -5 $OUT/profile.txt | cut -c1-200; (cd $OUT; tar czf profile.tgz profile; rm -rf profile times-*); stamp counters
(timeout 100 python3 -m pytest -q --tb=short -p no:cacheprovider -n 4 -m gpu tests/mma_fused/test_mma_sanitizers.py > $OUT/sanitizers.log 2>&1; tail -4 $OUT/sanitizers.log | cut -c1-200); stamp sanitizers
