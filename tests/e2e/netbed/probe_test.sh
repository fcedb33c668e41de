#!/usr/bin/env bash
# `baton probe --verify` on four shaped hosts, two of them at half the rate: the
# rates it finds are those of the links, the file it writes is one that `baton
# topo` reads, and what it foresees comes true: median error at most 5 % and p95
# 15 % alone, 10 % and 30 % for 2 to 4 flows beside each other and incast. A
# machine that is busy with other things spoils single runs, so there are three;
# the limits are those of the best one.
#   probe_test.sh BATON
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
baton=$(realpath "$1")
. "$here/netbed_lib.sh"
failed=0
fault() {
    echo "FAILED: $*"
    failed=1
}

bed_up 4 1 400mbit
for h in 3 4; do bed rate "$h" 0 200mbit; done
urls=()
# Hosts have processors of their own: what else runs here is not part of it.
first=()
if chrt --rr 5 true 2>/dev/null; then first=(chrt --rr 5); fi
# 64 KiB under way per peer: 3 ms of the slow links. More and a flow that begins
# waits behind all that others have in the queue of a shaped link.
for h in 1 2 3 4; do
    bed_start "$h" "agent$h" "${first[@]}" "$baton" agent --name "host$h" \
        --listen "$(bed_address "$h" 0):21001" --insecure \
        --http "$(bed_address "$h" 0):21002" --chunk 16KiB --inflight 4
    urls+=(--agent "http://$(bed_address "$h" 0):21002")
done
for h in 1 2 3 4; do
    bed_until 20 bed_line "agent$h" '"ready":true' || fault "no agent $h"
done

# The rate of a worker's way in the file, as part of what the link carries:
# 1448 of 1514 bytes of each packet.
part() { # WORKER out|in MBIT
    sed -n "s/.*name: \"$1\".* $2: \([0-9]*\)B.*/\1/p" "$bed_dir/topo.yaml" |
        awk -v mbit="$3" '{ printf "%.3f\n", $1 / (mbit * 125000 * 1448 / 1514) }'
}
near_one() { awk -v x="$1" 'BEGIN { exit !(x > 0.94 && x < 1.06) }'; }

met=0
for seed in 1 2 3; do
    code=0
    bed exec 1 "${first[@]}" "$baton" probe "${urls[@]}" --verify --pairwise --share 1 \
        --repeats 3 --seed "$seed" --write "$bed_dir/topo.yaml" \
        >"$bed_dir/probe$seed.log" 2>&1 || code=$?
    cat "$bed_dir/probe$seed.log"
    case $code in
    0) met=1 ;;
    5) echo "run $seed: limits not met" ;;
    *) fault "run $seed: exit $code" ;;
    esac
    [ "$met" = 0 ] || break
done
[ "$met" = 1 ] || fault 'predictions: limits not met in three runs'

[ "$(grep -c ' met$' "$bed_dir/probe$seed.log")" = 8 ] || [ "$met" = 0 ] ||
    fault 'not all eight cases were judged'
"$baton" topo --file "$bed_dir/topo.yaml" >"$bed_dir/topo.log" 2>&1 ||
    fault 'baton topo does not take the file'
for h in 1 2 3 4; do
    mbit=$((h <= 2 ? 400 : 200))
    for way in out in; do
        x=$(part "host$h" "$way" "$mbit")
        echo "host$h $way: $x of the link"
        near_one "$x" || fault "host$h $way: $x of the link's rate"
    done
done

# One that is gone: named, exit 4, and the others still measured.
bed_kill "${bed_pids[3]}" TERM
code=0
bed exec 1 "$baton" probe "${urls[@]}" --pair host1:host2 --repeats 3 \
    --share 1 >"$bed_dir/gone.log" 2>&1 || code=$?
[ "$code" = 4 ] || fault "an agent is gone: exit $code, due 4"
bed_line gone 'baton probe: http://10.81.0.4:21002: .' || fault 'not named'
bed_line gone '^host1 +host2 +[0-9.]+ MB/s' || fault 'the rest is lost'
exit "$failed"
