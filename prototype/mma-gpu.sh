#!/bin/bash
# First run of mma_fused on one H200: builds, stages, other configurations and grids, then correctness and latency; 150 s
# at most (LIMIT). In the repository's root of branch h-mma, with mma-gpu.py beside this file (both in .scout, carried with
# .whl):   carry [".whl", ".scout"]   bash .scout/mma-gpu.sh   timeout_s 200
# Results: $OUT/*.log, $OUT/compare.json. A process that hangs is killed (after 8 s by itself, with the counters printed;
# after 60 s by timeout).
. .scout/setup.sh
HERE=$(dirname "$0"); LIMIT=${LIMIT:-140}; export OUT=${OUT:-/tmp/mma-out}; mkdir -p $OUT
export PYTHONPATH=$PWD/scripts:$PWD:$PWD/tests/support:$PWD/tests/mma_fused PYTHONUNBUFFERED=1 TVM_FFI_CACHE_DIR=${TVM_FFI_CACHE_DIR:-/tmp/tvm} MAX_JOBS=16
G="python3 $HERE/mma-gpu.py"; FORCED="163,0,0 99,0,0 99,0,1 99,1,1"
one() { local name=$1 limit=$2; shift 2; local left=$((LIMIT - $(el))); [ $left -lt 5 ] && { echo "== $name: no time left"; return 1; }
  [ $limit -gt $left ] && limit=$left
  timeout -s KILL $limit $G "$@" > $OUT/$name.log 2>&1; local rc=$?
  echo "== $name rc $rc t=$(el)"; grep -E "HANG|wrong|rror|COUNTERS|DIFFER|^T=|off by|-- " $OUT/$name.log | cut -c1-${WIDE:-330} | tail -${LINES_OF:-8}; return $rc; }
# builds, side by side; what is needed first without nice
$G build full 227,1,1 > /tmp/b-own 2>&1 & OWN=$!
$G pack mma_fused > /tmp/b-mma 2>&1 & MMA=$!
COUNTS=1,7,16,32,57,80,128,256
for s in triton_fused_v2 sglang_triton; do $G warm $s $COUNTS > /tmp/w-$s 2>&1 & WARM="$WARM $!"; done
nice -n 4 $G pack hopper_fused > /tmp/b-hopper 2>&1 & HOPPER=$!
for c in $FORCED; do nice -n 8 $G build full $c > /tmp/b-$c 2>&1 & eval "F${c//,/_}=$!"; done
for g in deepseek-v3-ep8-routed qwen3-next kimi-k2-ep8 minimax-m2; do nice -n 12 $G build $g 227,1,1 > /tmp/b-$g 2>&1 & OTHERS="$OTHERS $!"; done
wait $OWN || tail -c 1500 /tmp/b-own; stamp own built
one own-1 60 stages full 227,1,1 1; RIGHT=$?
[ $RIGHT -ge 2 ] || { one own 60 stages full 227,1,1 7,12,13,80,256; RIGHT=$?; }
for c in $FORCED; do pid=F${c//,/_}; wait ${!pid} || tail -c 800 /tmp/b-$c; LINES_OF=4 one forced-$c 30 stages full $c 7,80,256; done
wait $MMA || tail -c 800 /tmp/b-mma; wait $HOPPER || tail -c 800 /tmp/b-hopper; wait $WARM $OTHERS; stamp everything built
[ $RIGHT -ge 2 ] && echo "== compare: not run, the stages hang" || LINES_OF=20 WIDE=420 one compare 75 compare $COUNTS
one grids 40 stages full 227,1,1 7,80 58,66,84,108,114
one repeats 40 stages full 227,1,1 1,80,256 0 10
LINES_OF=9 one many 60 many
for g in deepseek-v3-ep8-routed:3,80,256 qwen3-next:3,60,256 kimi-k2-ep8:3,80,256 minimax-m2:3,80,256; do LINES_OF=4 one ${g%:*} 30 stages ${g%:*} 227,1,1 ${g#*:}; done
(cd $OUT; for f in *.log; do echo "##### $f"; cat $f; done > all.txt; rm -f *.log)   # at most 8 files come back
stamp end
