. .scout/setup.sh
save() { mkdir -p /var/tmp/tr; tar czf /var/tmp/tr/traces.tgz traces; cp /var/tmp/tr/traces.tgz $OUT/traces.tgz; }
(MAX_JOBS=5 python3 -m harness pack --build cutlass_grouped --definition full > /var/tmp/c-full 2>&1; stamp cutlass gemms) &
for d in $ALLDEFS; do MAX_JOBS=2 nice python3 -m harness pack --build hopper_fused --definition $d > /var/tmp/b-$d 2>&1 & done
python3 prototype/warm_triton.py full triton_fused_v2 sglang_triton hopper_fused > /var/tmp/w-full 2>&1; stamp warm full
wait; stamp built
for d in $ALLDEFS; do [ $d = full ] || (MAX_JOBS=2 nice python3 -m harness pack --build cutlass_grouped --definition $d > /var/tmp/c-$d 2>&1; nice python3 prototype/warm_triton.py $d triton_fused_v2 sglang_triton > /var/tmp/w-$d 2>&1) & done
wait; grep -hE "ERR|BUILD|rror" /var/tmp/w-* /var/tmp/c-* /var/tmp/b-* | cut -c1-250 | head; stamp all warm
ALL="hopper_fused hopper_fused_exact triton_fused_v2 cutlass_grouped sglang_triton"
python3 -m harness run --definition full --solutions $ALL > /var/tmp/full.log 2>&1; grep -vE "PASSED" /var/tmp/full.log | tail -22 | cut -c1-150; save; stamp full relaxed
for t in contest default; do python3 -m harness run --definition full --solutions $FULLCHECK --tolerance $t --warmup-runs 3 --iterations 10 --num-trials 1 > /var/tmp/full.log 2>&1; grep -vE "PASSED" /var/tmp/full.log | grep -E "│|FAIL|ERR|INC" | tail -14 | cut -c1-150; save; stamp full $t; done
LIMIT=${LIMIT:-540} . .scout/family.sh
