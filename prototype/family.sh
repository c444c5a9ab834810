for d in $FAMILY; do
 [ -f /tmp/done-$d ] && continue
 [ $(el) -gt $LIMIT ] && { stamp stop before $d; break; }
 P="--warmup-runs 3 --iterations 20 --num-trials 1"; [ $d = kimi-k2-ep1 ] && P="--warmup-runs 2 --iterations 10 --num-trials 1"
 timeout 200 python3 -m harness run --definition $d --solutions $ALL $P > /tmp/$d.log 2>&1; grep -vE "PASSED" /tmp/$d.log | grep -E "FAIL|ERR|INC|SKIP|rror" | cut -c1-160 | tail -12; grep -c PASSED /tmp/$d.log; touch /tmp/done-$d; save; stamp $d
done
save
