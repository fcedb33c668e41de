# Sourced by the scripts that break things under rdma_pull, inside the guest
# (rails s<r> - d<r> of guest_net.sh) or on a bed of network namespaces.
# Wants: $pull (program), $dir (scratch). A source and a sink at a time.
#     source_start ARGS...         its pid in $source, its port in $port
#     sink_start NAME ARGS...      lines in $dir/NAME.log; pid in $sink
#     now                          ms of the clock that the lines carry
#     look NAME SINCE [UNTIL]      figures of the pulls of that time: pulls.awk
#     await NAME SINCE SECONDS EXPR WHAT [LAST]   until the awk expression holds,
#                                  over v["ok"], v["failed"]...; then $seen, value.
#                                  LAST: of the last so many pulls only
#     sink_end NAME LIMIT_MS WHAT  orderly end; its exit status in $code
#     port_down R, port_up R       of the guest: the link of s<R>
#     wire_cut R, wire_mend R      nothing passes, ports and routes stay
#     devices_anew                 every soft-RoCE device of the guest, fresh
#     fault WHAT, figure WHAT      a failure, a measured value
# shellcheck shell=bash
faults=0
source='' sink='' code=0 port=0
lib=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

fault() {
    echo "FAILED: $*"
    faults=$((faults + 1))
}
figure() { echo "figure: $*"; }
now() { awk '{ printf "%.0f\n", $1 * 1000 }' /proc/uptime; }

source_start() { # ARGS...
    : >"$dir/source.log"
    "$pull" source "$@" >"$dir/source.log" 2>&1 &
    source=$!
    for _ in $(seq 400); do
        port=$(sed -n 's/.*"ready","port":\([0-9]*\).*/\1/p' "$dir/source.log")
        [ -z "$port" ] || return 0
        kill -0 "$source" 2>/dev/null || break
        sleep 0.05
    done
    fault "no source: $(tail -n 3 "$dir/source.log")"
    return 1
}

sink_start() { # NAME ARGS...
    local name=$1
    shift
    "$pull" sink --port "$port" "$@" >"$dir/$name.log" 2>&1 &
    sink=$!
}

look() { # NAME SINCE [UNTIL [LAST]]
    grep '^{"event":"pull"' "$dir/$1.log" | tail -n "${4:-+1}" |
        awk -v since="$2" -v until="${3:-0}" -f "$lib/pulls.awk"
}
seen='' # what `holds` saw last
holds() { # NAME SINCE EXPRESSION [LAST]
    seen=$(look "$1" "$2" 0 "${4:-+1}")
    awk -v line="$seen" 'BEGIN {
        n = split(line, pairs, " ")
        for (i = 1; i <= n; i++) {
            split(pairs[i], p, "=")
            v[p[1]] = p[2] ~ /^-?[0-9]+$/ ? p[2] + 0 : p[2]
        }
        exit !('"$3"') }'
}
value() { # NAME: of what was seen
    tr ' ' '\n' <<<"$seen" | sed -n "s/^$1=//p"
}
await() { # NAME SINCE SECONDS EXPRESSION WHAT [LAST]
    local end=$((SECONDS + $3))
    while ! holds "$1" "$2" "$4" "${6:-+1}"; do
        if [ "$SECONDS" -ge "$end" ] || ! kill -0 "$sink" 2>/dev/null; then
            fault "$5: not within $3 s: $4 ($seen)"
            tail -n 3 "$dir/$1.log"
            return 1
        fi
        sleep 0.1
    done
}

# Bytes right, no pull past LIMIT_MS, orderly end.
sink_end() { # NAME LIMIT_MS WHAT
    local since
    since=$(now)
    kill -TERM "$sink" 2>/dev/null
    wait "$sink"
    code=$?
    [ "$code" -eq 0 ] || fault "$3: the sink ended with $code"
    [ $(($(now) - since)) -lt 10000 ] || fault "$3: the end took 10 s"
    seen=$(look "$1" 0)
    [ "$(value wrong)" = 0 ] || fault "$3: $(value wrong) wrong blocks"
    [ "$(value slowest)" -lt "$2" ] ||
        fault "$3: a pull took $(value slowest) ms, limit $2"
}
# A port of the guest down or up. A link that comes up has forgotten its
# neighbour, which guest_net.sh told it for a reason.
port_down() { ip link set "s$1" down; }
port_up() {
    ip link set "s$1" up
    ip neigh replace "10.77.$1.2" dev "s$1" nud permanent \
        lladdr "$(cat "/sys/class/net/d$1/address")"
}
wire_cut() {
    local end
    for end in s d; do
        tc qdisc replace dev "$end$1" root netem limit 100000 loss 100%
    done
}
wire_mend() {
    local end
    for end in s d; do tc qdisc del dev "$end$1" root; done
}

# After faults: a device that was removed, or whose management queue pair no
# longer hears (README.md). Nobody may have one open.
devices_anew() {
    local net
    for net in /sys/class/net/[sd][0-9]; do
        net=$(basename "$net")
        rdma link delete "rxe_$net" 2>/dev/null || true
        for _ in $(seq 200); do # a removal that was under way
            rdma link show | grep -q "link rxe_$net/" || break
            sleep 0.05
        done
        ip link set "$net" up
        rdma link add "rxe_$net" type rxe netdev "$net" || fault "rxe_$net"
    done
    for _ in $(seq 100); do
        rdma link show | grep -qv 'state ACTIVE' || return 0
        sleep 0.05
    done
    fault "devices: $(rdma link show | grep -v 'state ACTIVE')"
}
source_end() {
    kill -TERM "$source" 2>/dev/null
    wait "$source" 2>/dev/null
}
