#!/usr/bin/env bash
# Two rails per host, one of a decode host's turned off under load: jobs finish
# on the other one, every answer is right, nothing stalls beyond three times
# the p99 before; put back, it carries again. Judged by the client's records,
# the decision log and the engine's own counters per rail.
#   cluster_rails.sh BATON
set -euo pipefail
baton=$(realpath "$1")
. "$(dirname "${BASH_SOURCE[0]}")/cluster_lib.sh"
policy=prefix_load
engine=d1

ended() {
    local n
    n=$(wc -l 2>/dev/null <"$cluster_dir/decisions-$policy.jsonl") || n=0
    echo "${n:-0}"
}
more_than() { sleep 0.2; [ "$(ended)" -gt "$1" ]; }
# Bytes that the engine pulled over a rail.
carried() { # RAIL
    bed exec "$(serve_host)" curl -s -m 2 "$engine_url/metrics" |
        awk -v n="baton_engine_pull_bytes_total{rail=\"r$1\"}" \
            'index($0, n) == 1 { b = $NF } END { printf "%.0f", b }'
}
carries_more() { sleep 0.2; [ "$(carried "$1")" -gt "$2" ]; }
slowest() { # FROM_LINE TO_LINE PART: a quantile of the transfers, ms
    sed -n "$1,$2p" "$cluster_dir/decisions-$policy.jsonl" |
        jq -s "map(.act_transfer_ms | select(. != null)) | sort |
            .[(length * $3 | floor) - 1] | round"
}

cluster_up 2 uniform
cluster_begin -p "$policy" -r 10 -d 26s --seed 4
bed_until 20 more_than 1 || { fault 'no start'; exit 1; }
engine_url=$(sed -n "s/.*name: $engine,.*url: \"\([^\"]*\)\".*/\1/p" \
    "$cluster_dir/serve-$policy.yaml")
host=$(cluster_host "$engine")
bed_until 20 more_than 80 || fault 'not under load'
a=$(carried 0) b=$(carried 1)
echo "before: rail 0 $((a / 1000000)) MB, rail 1 $((b / 1000000)) MB"
[ "$b" -gt 0 ] || fault 'rail 1 carries nothing'
at=$(ended)
p99=$(slowest 1 "$at" 0.99)

bed link "$host" 1 down
sleep 2
b=$(carried 1)
bed_until 20 more_than "$((at + 80))" || fault 'nothing ends'
[ "$(carried 1)" -le "$((b + 4000000))" ] || fault 'a rail that is down carries'
echo "down: rail 0 $(($(carried 0) / 1000000)) MB, rail 1" \
    "$(($(carried 1) / 1000000)) MB"
down=$(ended)
bed link "$host" 1 up
b=$(carried 1)
began=$SECONDS
bed_until 20 carries_more 1 "$((b + 2000000))" || fault 'rail 1 is not back'
echo "up: rail 1 carries again after $((SECONDS - began)) s"
wait "$demo" || fault "demo ended with $?"
worst=$(slowest "$((at + 1))" "$(ended)" 1)
echo "transfers: p99 before $p99 ms, slowest while down and after $worst ms" \
    "(lines $((at + 1)), $down, $(ended))"
[ "$worst" -le "$((p99 * 3))" ] || fault 'a stall'
[ "$(figure '.policies[0] | .wrong_outputs + .errors')" = 0 ] ||
    fault 'wrong outputs or errors'
echo "$(figure '.policies[0].requests') requests, none wrong; $faults failed"
exit "$((faults > 0))"
