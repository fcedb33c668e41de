#!/usr/bin/env bash
# A decode host's link turned to a quarter under load: serve notices and prices
# it within 20 transfers over it; turned back, the nominal rate is in force
# again, through the doubt that an unused link's rate ages into. Judged by the
# rate in force (serve's metrics) and the decision log.
#   cluster_link.sh BATON [POLICY]
set -euo pipefail
baton=$(realpath "$1")
. "$(dirname "${BASH_SOURCE[0]}")/cluster_lib.sh"
policy=${2:-joint}
nominal=50000000

# Transfers into d1 that ended and count: from 10 ms of the nominal rate.
seen() {
    local n
    n=$(decisions "$policy" "map(select(.decode == \"d1\" and
        .kv_bytes >= $nominal / 100 and .outcome == \"ok\")) | length" \
        2>/dev/null) || n=0
    echo "${n:-0}"
}
per_cent() { # of nominal, in force
    local link
    link=h$(cluster_host d1).nic_in
    metric "baton_link_rate_bytes{link=\"$link\"}" |
        awk -v n="$nominal" '{ p = $1 * 100 / n } END { printf "%d", p }'
}
# Until the rate in force is FROM..TO per cent; what was seen in $now, $took.
await_rate() { # WHAT SECONDS FROM TO
    local end=$((SECONDS + $2)) first
    first=$(seen)
    while :; do
        now=$(per_cent)
        took=$(($(seen) - first))
        [ "$now" -ge "$3" ] && [ "$now" -le "$4" ] && break
        [ "$SECONDS" -lt "$end" ] || { fault "$1: $now % in force"; break; }
        sleep 0.3
    done
    echo "$1: $now % of nominal in force after $took transfers into d1 of" \
        ">= 10 ms, $((SECONDS - end + $2)) s"
}
at_least() { sleep 0.3; [ "$(seen)" -ge "$1" ]; }

cluster_up 1 uniform
cluster_begin -p "$policy" -d 60s -r 12 --seed 3
bed_until 40 at_least 8 || fault 'no transfers'
await_rate 'as built' 1 85 105
cluster_rate d1 0.25
await_rate 'a quarter' 40 15 40
[ "$took" -le 22 ] || fault "noticed after $took transfers, not 20"
cluster_rate d1 1
await_rate 'restored' 40 85 105
kill -INT "$demo" 2>/dev/null || true
wait "$demo" 2>/dev/null || true
exit "$((faults > 0))"
