#!/usr/bin/env bash
# joint against prefix_load on a shaped cluster, real processes and real bytes:
# no wrong output, joint not worse beyond the interval, on equal links a tie;
# and the simulator, fed with the same cluster file and the same workload,
# foretells mean TTFT and TTST of both. Prints every figure.
#   cluster_policies.sh BATON
set -euo pipefail
baton=$(realpath "$1")
. "$(dirname "${BASH_SOURCE[0]}")/cluster_lib.sh"
# The aim is 0.10 (idle: within 6 %); on busy processors live runs are slower.
near=${BATON_SIM_NEAR:-0.25}
late_max=6

show() {
    figure '.policies[] | "\(.policy): \(.requests) requests, " +
        "\(.wrong_outputs) wrong, \(.errors) errors; TTFT mean " +
        "\(.ttft_ms.mean) p99 \(.ttft_ms.p99) ms, TTST mean " +
        "\(.ttst_ms.mean) ms; MB by link: " + ([.kv_bytes | to_entries[] |
        "\(.key) \(.value / 1e6 | round)"] | join(", ")),
        (["transfer", "pull", "total"][] as $what | .["predicted_" + $what] |
        select(.) | "  \($what): predicted \(.predicted_ms) ms, realised " +
        "\(.realised_ms) ms, error median \(.error_median * 1000 | round /
        10) %, mean \(.error_mean_ms) ms over \(.count)")'
    figure '.comparison | "joint - prefix_load: \(.ttft_ms_difference.mean)" +
        " ms, 95 % \(.ttft_ms_difference.low95) .. " +
        "\(.ttft_ms_difference.high95)"'
}
clean() {
    [ "$(figure '[.policies[] | .wrong_outputs + .errors] | add')" = 0 ] ||
        fault "$1: wrong outputs or errors"
}

# In the simulator as serve runs: no holding, no prefill on decode workers. Ten
# milliseconds on each arrival, twenty times: a rule that piles requests up is
# chaotic, and one run of it foretells another no better than that.
simulate() {
    "$baton" sim --cluster "$cluster_file" --fabric "$cluster_fabric" \
        --trace "$cluster_dir/workload.jsonl" -p joint -p prefix_load \
        --warmup 0 --jitter 10ms -s 20 --hold off --local off --fetch off --output json \
        >"$bed_dir/sim.json"
}
compare() { # POLICY ttft|ttst: live within `near` of what was simulated
    local live
    live=$(figure ".policies[] | select(.policy == \"$1\") | .$2_ms.mean")
    jq -r ".groups[] | select(.arm == \"$1\") |
        [.runs[].summary.$2_mean_s * 1000] | [add / length, min, max] | @tsv" \
        "$bed_dir/sim.json" |
        awk -v live="$live" -v near="$near" -v what="$1 $2" '{
            printf "%s: simulated %.1f ms (%.1f .. %.1f in 20 runs), live " \
                "%.1f ms: %+.1f %%\n", what, $1, $2, $3, live,
                ($1 / live - 1) * 100
            exit $2 * (1 - near) > live || $3 * (1 + near) < live }'
}
# Delay of the client's own sends: this machine is busy with something else.
late_ms() { figure '[.policies[].client_late_ms_p99] | max'; }

busy() {
    late=$(late_ms)
    awk -v l="$late" -v m="$late_max" 'BEGIN { exit !(l > m) }' || return 1
    echo "not judged: the client itself was $late ms late, this machine is busy"
}
not_worse() {
    [ "$(figure '.comparison | .ttft_ms_difference.low95 > 0 and
        .beyond_noise')" = false ] || busy || fault "joint is worse $1"
}

cluster_up 1 slow
cluster_run -p prefix_load -p joint -r 10 -d 14s --seed 2
echo '== one slow decode host'
show
clean slow
not_worse 'on the slow fabric'
simulate
off=0
for policy in joint prefix_load; do
    for what in ttft ttst; do compare "$policy" "$what" || off=$((off + 1)); done
done
if [ "$off" -gt 0 ] && ! busy; then
    fault "live is more than $near beyond all of the simulated runs"
fi

echo '== equal links'
cluster_fabric=uniform
cluster_hosts=$("$baton" demo --cluster "$cluster_file" --fabric uniform \
    --hosts)
cluster_rate d2 1
cluster_run -p prefix_load -p joint -r 10 -d 9s --seed 2
show
clean uniform
not_worse 'on equal links'
echo "$faults failed"
exit "$((faults > 0))"
