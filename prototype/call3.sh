T0=$(date +%s); el() { echo $(( $(date +%s) - T0 )); }; stamp() { echo "== $* t=$(el)"; }
export PYTHONPATH=$PWD/scripts:$PWD FIB_CACHE_PATH=/tmp/fib TVM_FFI_CACHE_DIR=/tmp/tvm DG_JIT_CACHE_DIR=/tmp/deep_gemm_cache
tar xzf /tmp/tr/traces.tgz
save() { tar czf /tmp/tr/traces.tgz traces; cp /tmp/tr/traces.tgz $OUT/traces.tgz; }
python3 -m harness pack > /dev/null
ALL="hopper_fused hopper_fused_exact triton_fused_v2 sglang_triton flashinfer_cutlass"
LIMIT=${LIMIT:-400} . .scout/family.sh
for t in contest default; do [ -f /tmp/done-full-$t ] && continue; [ $(el) -gt ${LIMIT2:-540} ] && break; s="hopper_fused hopper_fused_exact"; timeout 100 python3 -m harness run --definition full --solutions $s --tolerance $t --warmup-runs 3 --iterations 10 --num-trials 1 > /tmp/full.log 2>&1; grep -vE "PASSED" /tmp/full.log | grep -E "│|FAIL|ERR|INC" | tail -14 | cut -c1-150; touch /tmp/done-full-$t; save; stamp full $t; done
for d in $CHECKS; do for t in contest default; do [ -f /tmp/done-$d-$t ] && continue; [ $(el) -gt ${LIMIT2:-540} ] && { stamp stop before $d $t; break 2; }; s=hopper_fused; [ $t = default ] && s=hopper_fused_exact; timeout 60 python3 -m harness run --definition $d --solutions $s --tolerance $t --warmup-runs 1 --iterations 3 --num-trials 1 > /tmp/check.log 2>&1; echo $d $t $(grep -c PASSED /tmp/check.log); grep -E "FAIL|ERR|INC|SKIP|rror" /tmp/check.log | cut -c1-160 | tail -6; touch /tmp/done-$d-$t; save; stamp $t $d; done; done
save
