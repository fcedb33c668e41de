#!/usr/bin/env bash
# The questions that an operator asks of his own trace, as typed: from which
# fleet on routing by prefix pays, what tiers are worth, what namespaces cost,
# how late events may be.   check_unknowns.sh BATON ROOT
set -u
baton=$1
root=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
. "$(dirname "${BASH_SOURCE[0]}")/expect.sh"
stats() { # CODE STDOUT STDERR ARGUMENT...
    local code=$1 out=$2 err=$3
    shift 3
    expect "$code" "$out" "$err" "$baton" trace stats "$@"
}
sim() {
    local code=$1 out=$2 err=$3
    shift 3
    expect "$code" "$out" "$err" "$baton" sim "$@"
}

made=$dir/made.jsonl
"$baton" trace generate -n 300 -s 3 --mix agent=1 --out "$made" 2>/dev/null

stats 0 '^Routing by prefix pays \(3 % of prompt tokens' '' "$made"
stats 0 '^ +workers +500 blocks each ' '' --cache 500 "$made"
stats 0 '"workers_from": [0-9]+' '' -o json "$made"
stats 0 '^one cache of that sum +gpu +50 .* s +[+-][0-9.]+ % +-$' '' \
    --tiers gpu=50,host=500,disk=2000 "$made"
stats 0 '^ +host +500 .* 1.00 GB/s|^ +host +500 .* 1 GB/s' '' \
    --tiers gpu=50,host=500@1GB/s "$made"
stats 0 '"worth": ' '' -o json --tiers gpu=50,host=500 "$made"
stats 0 '^5 tenants, [0-9]+ conversations given to them' '' --tenants 5 "$made"
stats 0 '^Isolation costs [0-9.]+ points' '' --tenants 5 "$made"
stats 0 '"ideal_own": 0\.[0-9]+' '' -o json --tenants 5 "$made"
"$baton" trace generate -n 50 --tenants 3 --out "$dir/three.jsonl" 2>/dev/null
stats 0 '^3 tenants, as the trace says' '' --tenants 2 "$dir/three.jsonl"
# these share nothing between them
stats 0 '^Isolation costs 0\.0 points' '' --tenants 2 "$dir/three.jsonl"

stats 2 '' 'tiers is gpu=N' --tiers host=5 "$made"
stats 2 '' 'tiers is gpu=N' --tiers gpu=5,tape=3 "$made"
stats 2 '' 'tiers is gpu=N' --tiers gpu=5@1GB/s "$made"
stats 2 '' 'tiers is gpu=N' --tiers gpu=5,host=3@fast "$made"
stats 2 '' 'tenants is 2 to 65536' --tenants 1 "$made"
stats 2 '' 'cache is 1 to' --cache 0 "$made"
printf 'TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,48,10\n' \
    >"$dir/azure.csv"
stats 2 '' 'need a trace with prefixes' --tenants 2 "$dir/azure.csv"
stats 0 '^No prefix information' '' "$dir/azure.csv"

# two lags x no loss, and no events at all; one speed, one fabric
sim 0 '^joint, without loss: .* load alone' '' --study staleness -x 1 -t "$made" \
    -n 60 -f flat-50 --event-lag 0s,5s --event-loss 0
sim 0 '^1 s +50\.0 % +off +prefix_load ' '' --study staleness -x 1 -t "$made" \
    -n 60 -f flat-50 --event-lag 1s --event-loss 0.5
sim 0 '"study":"staleness"' '' --study staleness -x 1 -t "$made" -n 60 \
    -f flat-50 --event-lag 1s --event-loss 0 -o json
sim 2 '' 'belong to --study staleness' --event-lag 1s,2s -t "$made"
sim 2 '' 'belong to --study staleness' --event-loss 0,.5 -t "$made"
sim 2 '' 'event-loss is a share' --event-loss 1.5 -t "$made"
sim 2 '' 'event-lag is a time' --event-lag 5 -t "$made"
sim 2 '' 'no-event-replay does nothing' --study staleness --no-event-replay
sim 2 '' 'only does nothing' --study staleness --only K1
sim 3 '' 'more than 32 cells' --study staleness -x 1 -t "$made" -n 60 \
    --event-lag 0s,1s,2s,3s,4s,5s --event-loss 0,.1,.2,.3
exit "$failed"
