T0=$(date +%s); el() { echo $(( $(date +%s) - T0 )); }; stamp() { echo "== $* t=$(el)"; }
export PYTHONPATH=$PWD/scripts:$PWD FIB_CACHE_PATH=/var/tmp/fib TVM_FFI_CACHE_DIR=/var/tmp/tvm
tar xzf /var/tmp/tr/traces.tgz
save() { tar czf /var/tmp/tr/traces.tgz traces; cp /var/tmp/tr/traces.tgz $OUT/traces.tgz; }
python3 -m harness pack > /dev/null
ALL="hopper_fused hopper_fused_exact triton_fused_v2 cutlass_grouped sglang_triton"
LIMIT=${LIMIT:-330} . .scout/family.sh
for d in $CHECKS; do for t in contest default; do [ $(el) -gt ${LIMIT2:-520} ] && { stamp stop before $d $t; break 2; }; s=hopper_fused; [ $t = default ] && s=hopper_fused_exact; timeout 150 python3 -m harness run --definition $d --solutions $s --tolerance $t --warmup-runs 1 --iterations 3 --num-trials 1 > /var/tmp/check.log 2>&1; echo $d $t $(grep -c PASSED /var/tmp/check.log); grep -E "FAIL|ERR|INC|SKIP|rror" /var/tmp/check.log | cut -c1-160 | tail -12; save; stamp $t $d; done; done
save
