#!/usr/bin/env bash
# A small cluster on one machine: hosts are network namespaces, each joined to
# a switch (a namespace as well) by one or two links, each link with a rate of
# its own each way. Nothing outside these namespaces is touched or reachable.
#   netbed.sh [-n NAME] up HOSTS [RAILS [RATE]]   RATE: tc's, e.g. 1gbit, 200mbit
#   netbed.sh -n NAME rate HOST RAIL UP [DOWN]    "none": not limited
#   netbed.sh -n NAME link HOST RAIL up|down|cut  down: both ends see it;
#                                                 cut: packets vanish silently
#   netbed.sh -n NAME exec HOST COMMAND...
#   netbed.sh -n NAME show | down
#   netbed.sh selftest FLOW_PROGRAM               (netbed_flow of the build tree)
# Host h (1..64) has 10.81.0.h on link r0 and 10.82.0.h on link r1. `up` prints
# NAME; the default holds the caller's process id, and beds whose caller is
# gone are taken down by the next `up`. Exit 77: not possible here, and why.
set -euo pipefail

hosts_max=64
say() { printf 'netbed: %s\n' "$*" >&2; }
skip() {
    say "skipped: $*"
    exit 77
}
usage() {
    sed -n '2,14s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

name=
if [ "${1:-}" = -n ]; then
    [ $# -ge 3 ] || usage
    name=$2
    shift 2
fi
case $name in *[!a-z0-9-]*) usage ;; esac
switch=$name-sw
host() { echo "$name-h$1"; }
address() { echo "10.$((81 + $2)).0.$1"; } # HOST RAIL
in_range() { # HOST RAIL
    ip netns exec "$(host "$1")" true 2>/dev/null ||
        { say "no host $1 in $name"; exit 2; }
    case $2 in 0 | 1) ;; *) usage ;; esac
}

# ---- shaping ----

# A bucket of a millisecond, but never so small that the timer cannot keep up.
bucket() { # RATE -> tbf words
    local bits
    bits=$(awk -v rate="$1" 'BEGIN {
        n = rate + 0
        if (rate ~ /kbit$/) n *= 1e3
        else if (rate ~ /mbit$/) n *= 1e6
        else if (rate ~ /gbit$/) n *= 1e9
        else if (rate !~ /^[0-9]+(bit)?$/) exit 1
        if (n < 1e5 || n > 1e11) exit 1
        printf "%.0f", n }') || { say "not a rate: $1"; exit 2; }
    local burst=$((bits / 8000))
    [ "$burst" -ge 65536 ] || burst=65536
    echo "tbf rate ${bits}bit burst $burst latency 40ms"
}

shape() { # NAMESPACE DEVICE RATE
    local words
    if [ "$3" = none ]; then
        ip netns exec "$1" tc qdisc del dev "$2" root 2>/dev/null || true
        return
    fi
    words=$(bucket "$3")
    # shellcheck disable=SC2086 # words of a tc command
    ip netns exec "$1" tc qdisc replace dev "$2" root $words
}

set_rate() { # HOST RAIL UP [DOWN]
    in_range "$1" "$2"
    shape "$(host "$1")" "r$2" "$3"
    shape "$switch" "h$1r$2" "${4:-$3}"
}

# ---- the bed ----

namespaces() { ip netns list | awk -v p="$1-" 'index($1, p) == 1 { print $1 }'; }

take_down() { # NAME
    local ns pids
    for ns in $(namespaces "$1"); do
        pids=$(ip netns pids "$ns" 2>/dev/null) || true
        # shellcheck disable=SC2086 # one word per process
        [ -z "$pids" ] || kill -KILL $pids 2>/dev/null || true
        ip netns delete "$ns" 2>/dev/null || true
    done
}

take_down_orphans() {
    local bed
    for bed in $(ip netns list | sed -n 's/^\(netbed[0-9]*\)-sw.*/\1/p'); do
        [ -d "/proc/${bed#netbed}" ] || take_down "$bed"
    done
}

make_host() { # HOST RAILS
    local ns r
    ns=$(host "$1")
    ip netns add "$ns"
    ip -n "$ns" link set lo up
    for ((r = 0; r < $2; r++)); do
        ip link add "h$1r$r" netns "$switch" type veth \
            peer name "r$r" netns "$ns"
        ip -n "$switch" link set "h$1r$r" master "br$r" up
        ip -n "$ns" addr add "$(address "$1" "$r")/24" dev "r$r"
        ip -n "$ns" link set "r$r" up
    done
}

up() { # HOSTS [RAILS [RATE]]
    local h r rails=${2:-1} rate=${3:-none}
    case $1$rails in *[!0-9]*) usage ;; esac
    [ "$1" -ge 1 ] && [ "$1" -le "$hosts_max" ] || usage
    [ "$rails" = 1 ] || [ "$rails" = 2 ] || usage
    command -v ip >/dev/null && command -v tc >/dev/null ||
        skip 'iproute2 is not installed'
    take_down_orphans
    name=${name:-netbed$PPID}
    switch=$name-sw
    if ! ip netns add "$switch" 2>/dev/null; then
        [ -z "$(namespaces "$name")" ] || { say "$name exists"; exit 2; }
        skip 'network namespaces are not allowed here'
    fi
    trap 'take_down "$name"' EXIT
    ip -n "$switch" link set lo up
    for ((r = 0; r < rails; r++)); do
        ip -n "$switch" link add "br$r" type bridge 2>/dev/null ||
            skip 'no bridges in this kernel'
        ip -n "$switch" link set "br$r" up
    done
    for ((h = 1; h <= $1; h++)); do make_host "$h" "$rails"; done
    if [ "$rate" != none ]; then
        (shape "$switch" h1r0 "$rate") 2>/dev/null ||
            { bucket "$rate" >/dev/null; skip 'no tbf in this kernel'; }
        for ((h = 1; h <= $1; h++)); do
            for ((r = 0; r < rails; r++)); do set_rate "$h" "$r" "$rate"; done
        done
    fi
    trap - EXIT
    echo "$name"
}

set_link() { # HOST RAIL up|down|cut
    local port=h$1r$2
    in_range "$1" "$2"
    case $3 in
    down) ip -n "$switch" link set "$port" down ;;
    cut) ip netns exec "$switch" bridge link set dev "$port" state 0 ;;
    up)
        ip -n "$switch" link set "$port" up
        ip netns exec "$switch" bridge link set dev "$port" state 3
        ;;
    *) usage ;;
    esac
}

show() {
    local ns
    for ns in $(namespaces "$name"); do
        echo "== $ns"
        ip -n "$ns" -br addr
        ip netns exec "$ns" tc -s qdisc show | grep -A1 tbf || true
    done
}

command=${1:-}
[ $# -ge 1 ] && shift
case $command in
up) [ $# -ge 1 ] && [ $# -le 3 ] || usage; up "$@"; exit ;;
selftest)
    [ $# -eq 1 ] || usage
    exec "$(dirname "$0")/selftest.sh" "$1"
    ;;
esac
[ -n "$name" ] || usage
case $command in
rate) [ $# -ge 3 ] && [ $# -le 4 ] || usage; set_rate "$@" ;;
link) [ $# -eq 3 ] || usage; set_link "$@" ;;
exec)
    [ $# -ge 2 ] || usage
    ns=$(host "$1")
    shift
    exec ip netns exec "$ns" "$@"
    ;;
show) show ;;
down) take_down "$name" ;;
*) usage ;;
esac
