# Expects: PYTHONPATH=scripts:., packages installed, OUT, PART (a or b), FAMILY, DEFS (all keys).
T0=$(date +%s); el() { echo $(( $(date +%s) - T0 )); }
save() { mkdir -p /tmp/tr; rm -rf /tmp/tr/traces; cp -r traces /tmp/tr/traces; tar czf ${OUT:-out}/traces.tgz -C /tmp/tr traces; }
python3 -m harness pack > /dev/null; stamp packed
if [ "$PART" = a ]; then
 (MAX_JOBS=5 python3 -m harness pack --build cutlass_grouped --definition full > /tmp/b-cut 2>&1; stamp cutlass gemms $(el)) &
 for d in $DEFS; do MAX_JOBS=2 nice python3 -m harness pack --build hopper_fused --definition $d > /tmp/b-$d 2>&1 & done
 python3 prototype/warm_triton.py full triton_fused_v2 sglang_triton hopper_fused > /tmp/w-full 2>&1
 stamp warm full $(el); wait; stamp built $(el)
 for d in $DEFS; do [ $d = full ] || (MAX_JOBS=2 nice python3 -m harness pack --build cutlass_grouped --definition $d > /tmp/c-$d 2>&1; nice python3 prototype/warm_triton.py $d triton_fused_v2 sglang_triton > /tmp/w-$d 2>&1) & done
 wait; grep -hE "ERR|BUILD|rror" /tmp/w-* /tmp/c-* /tmp/b-* | cut -c1-250 | head; stamp all warm $(el)
 ALL="hopper_fused hopper_fused_exact triton_fused_v2 cutlass_grouped sglang_triton"
 python3 -m harness run --definition full --solutions $ALL > /tmp/full.log 2>&1; grep -vE "PASSED" /tmp/full.log | tail -22; save; stamp full relaxed $(el)
 for t in contest default; do python3 -m harness run --definition full --solutions $ALL --tolerance $t --warmup-runs 3 --iterations 10 --num-trials 1 > /tmp/full.log 2>&1; grep -vE "PASSED" /tmp/full.log | grep -E "│|FAIL|ERR|INC" | tail -14; save; stamp full $t $(el); done
fi
check() { for t in contest default; do s=hopper_fused; [ $t = default ] && s=hopper_fused_exact; timeout 150 python3 -m harness run --definition $* --solutions $s --tolerance $t --warmup-runs 1 --iterations 3 --num-trials 1 > /tmp/check.log 2>&1; grep -vE "PASSED" /tmp/check.log | grep -E "│|FAIL|ERR|INC|SKIP|rror" | cut -c1-160 | tail -12; save; stamp $t "$*" $(el); done; }
if [ "$PART" = b ]; then
 for d in $DEFS; do MAX_JOBS=2 python3 -m harness pack --build hopper_fused --definition $d > /tmp/b-$d 2>&1 & P="$P $!"; done; wait $P; stamp hopper built $(el)
 python3 prototype/compare17.py 2>&1 | tee ${OUT:-out}/compare17; stamp compared $(el)
 (MAX_JOBS=5 nice python3 -m harness pack --build cutlass_grouped --definition qwen3-235b > /tmp/c-0 2>&1; for d in glm-5-ep8 deepseek-v3-ep16 deepseek-v3-ep4 deepseek-v3-ep1 kimi-k2-ep1; do MAX_JOBS=2 nice python3 -m harness pack --build cutlass_grouped --definition $d > /tmp/c-$d 2>&1 & done; wait; echo done > /tmp/cutdone) &
 check qwen3-30b kimi-k2-ep8 qwen3-next minimax-m2
 while [ ! -f /tmp/cutdone ]; do sleep 0.5; done; stamp cutlass built $(el)
fi
ALL="hopper_fused hopper_fused_exact triton_fused_v2 cutlass_grouped sglang_triton"
for d in $FAMILY; do
 [ $(el) -gt ${LIMIT:-330} ] && { stamp stop before $d; break; }
 P="--warmup-runs 3 --iterations 20 --num-trials 1"; [ $d = kimi-k2-ep1 ] && P="--warmup-runs 2 --iterations 10 --num-trials 1"
 timeout 200 python3 -m harness run --definition $d --solutions $ALL $P > /tmp/$d.log 2>&1; grep -vE "PASSED" /tmp/$d.log | grep -E "│|FAIL|ERR|INC|SKIP|rror" | cut -c1-160 | tail -12; save; stamp $d $(el)
done
save
if [ "$PART" = b ]; then
 python3 -m harness pack --build cutlass_grouped --definition full > /tmp/c-full 2>&1; python3 -m harness run --definition full --solutions $ALL --workloads 1 7 80 > /tmp/full.log 2>&1; grep -E "PASSED|FAIL|ERR" /tmp/full.log | cut -c1-100; save; stamp again $(el)
 [ $(el) -lt 430 ] && check qwen3-235b glm-5-ep8 deepseek-v3-ep16 deepseek-v3-ep4
 [ $(el) -lt 450 ] && check deepseek-v3-ep1
fi
save
