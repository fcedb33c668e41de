#!/usr/bin/env bash
# Inside the guest: what a fabric does when the world breaks under its pulls.
# One source and one sink, two rails, and one fault after the other: a port, a
# lossy wire, a stopped peer, a killed one, a device taken away. Each fault
# must be noticed, nothing may hang past its deadline, no byte may be wrong,
# and what comes back must be used again. Prints what was measured.
#   guest_faults.sh RDMA_PULL verbs|ucx [STEP...]     steps: see the end
set -u
pull=$1 fabric=$2
shift 2
dir=$(mktemp -d)
. "$(dirname "$0")/guest_lib.sh"

deadline_ms=6000
# A pull ends at its deadline plus two heartbeats; the rest is for processors
# that are emulated, two, and busy.
limit_ms=9000
common=(--fabric "$fabric" --blocks 128 --block-bytes 32768
    --heartbeat-ms 200 --chunk-bytes 262144)
rail() { # END RAIL: words of --rail
    local text=address=10.77.$2.$([ "$1" = s ] && echo 1 || echo 2)
    case $fabric in
    ucx) text+=,device=rxe_$1$2:1,transports=rc_verbs+self ;;
    verbs) text+=,device=rxe_$1$2 ;;
    esac
    echo "$text"
}
source_rails() { # RAILS [PORT]
    local args=() r
    for ((r = 0; r < $1; r++)); do args+=(--rail "$(rail s "$r")"); done
    source_start "${common[@]}" "${args[@]}" --host 10.77.0.1 --port "${2:-0}"
}
sink_rails() { # NAME RAILS
    local args=() r
    for ((r = 0; r < $2; r++)); do args+=(--rail "$(rail d "$r")"); done
    sink_start "$1" "${common[@]}" "${args[@]}" --host 10.77.0.1 \
        --pull-blocks 32 --at-once 2 --seconds 600 --deadline-ms "$deadline_ms"
}
# A port that is taken down also loses its route, and a good-bye sent without
# one makes soft-RoCE's management queue pair deaf: README.md. Our verbs wait
# with theirs until the port is back; UCX does not, so for it what comes back
# is a wire, and the port goes down last.
lose() { # RAIL
    case $fabric in
    ucx) wire_cut "$1" ;;
    verbs) port_down "$1" ;;
    esac
}
regain() {
    case $fabric in
    ucx) wire_mend "$1" ;;
    verbs) port_up "$1" ;;
    esac
}
both_used='v["rail0"] > 0 && v["rail1"] > 0'
# A pull that was under way when its rail went may still end with bytes of it,
# so the last ones are asked.
on_rail0() { # SINCE WHAT
    await two "$1" 20 'v["ok"] == 4 && v["rail1"] == 0' \
        "$2: all on the other" 4
    seen=$(look two "$1")
    figure "$fabric, $2: slowest pull $(value slowest) ms," \
        "$(value failed) failed"
}

lost_of_two() {
    local t
    t=$(now)
    lose 1
    on_rail0 "$t" 'rail 1 of 2 lost'
    t=$(now)
    regain 1
    await two "$t" 30 'v["rail1"] > 0' 'rail 1 of 2 back' &&
        figure "$fabric, rail 1 of 2 back: used again after $(($(now) - t)) ms"
}

lossy() { # PERCENT
    local t r
    for r in 0 1; do
        tc qdisc replace dev "s$r" root netem limit 100000 loss "$1%"
        tc qdisc replace dev "d$r" root netem limit 100000 loss "$1%"
    done
    t=$(now)
    await two "$t" 40 'v["ok"] >= 6' "loss $1 %" &&
        figure "$fabric, loss $1 %: slowest $(value slowest) ms, $(value ok)" \
            "ok, $(value failed) failed"
    for r in 0 1; do
        tc qdisc del dev "s$r" root
        tc qdisc del dev "d$r" root
    done
}

back() { # SINCE WHAT: pulls go well again
    await two "$1" 30 'v["ok"] >= 4' "$2: good again" &&
        figure "$fabric, $2: good again after $(value first_ok) ms"
}

port_down_of_two() { # and up again, which over UCX need not help
    local t
    [ "$fabric" = ucx ] || return 0
    t=$(now)
    port_down 1
    on_rail0 "$t" 'port 1 of 2 down'
    port_up 1
    await two "$(now)" 20 'v["ok"] >= 4' 'port 1 of 2 up'
}

peer_stopped() {
    local t
    t=$(now)
    kill -STOP "$source"
    await two "$t" 20 'v["failed"] >= 2' 'source stopped' &&
        figure "$fabric, source stopped: noticed after" \
            "$(value first_failed) ms ($(value status))"
    kill -CONT "$source"
    back "$(now)" 'source goes on'
}

peer_killed() {
    local t old=$port
    t=$(now)
    kill -KILL "$source"
    wait "$source" 2>/dev/null
    await two "$t" 20 'v["failed"] >= 2' 'source killed' &&
        figure "$fabric, source killed: noticed after" \
            "$(value first_failed) ms ($(value status))"
    source_rails 2 "$old" || return
    back "$(now)" 'source on the same port'
}

# This kernel's soft-RoCE cannot take a device from a process that has it open:
# it tells the process and waits. So the removal ends when the rail lets go, at
# the latest with the process.
device_removed() {
    local t
    t=$(now)
    rdma link delete rxe_d1 &
    removals=$!
    on_rail0 "$t" 'device 1 of 2 removed'
    t=$(now)
    rdma link delete rxe_d0 &
    removals="$removals $!"
    await two "$t" 20 'v["failed"] >= 2' 'last device removed' &&
        figure "$fabric, last device removed: noticed after" \
            "$(value first_failed) ms ($(value status))"
}
removed() { # after the end of the sink
    local pid
    for pid in $removals; do
        wait "$pid" || fault 'a device was not removed'
    done
    [ "$(rdma link show | grep -c rxe_d)" = 0 ] || fault 'a device is left'
}
removals=

only_lost() {
    local t
    source_rails 1 || return
    sink_rails one 1
    await one 0 30 'v["ok"] >= 4' 'one rail' || return
    t=$(now)
    lose 0
    await one "$t" 20 'v["failed"] >= 2' 'only rail lost' &&
        figure "$fabric, only rail lost: noticed after" \
            "$(value first_failed) ms ($(value status))"
    regain 0
    t=$(now)
    await one "$t" 30 'v["ok"] >= 4' 'only rail back' &&
        figure "$fabric, only rail back: good again after $(value first_ok) ms"
    sink_end one "$limit_ms" 'one rail'
    source_end
}

two_rails() { # STEP...
    source_rails 2 || return
    sink_rails two 2
    await two 0 30 "v[\"ok\"] >= 6 && $both_used" 'two rails' &&
        figure "$fabric, two rails: $seen"
    while [ $# -gt 0 ]; do
        # shellcheck disable=SC2086 # a function and its arguments
        ${1/:/ }
        shift
    done
    sink_end two "$limit_ms" 'two rails'
    [ -z "$removals" ] || removed
    source_end
}

[ $# -gt 0 ] || set -- only_lost two_rails
case $1 in
only_lost)
    only_lost
    shift
    ;;
esac
case ${1:-} in
two_rails) two_rails lost_of_two lossy:0.1 lossy:1 peer_stopped peer_killed \
    port_down_of_two device_removed ;;
?*) two_rails "$@" ;;
esac
echo "$fabric: $faults failed"
rm -rf "$dir"
exit "$((faults > 0))"
