#!/usr/bin/env bash
# Inside the guest: two `baton agent`, one at each end of rail 0, that insist on
# RDMA. One pulls the probe region of the other, which checks the bytes; what
# carries them must be said in its report, its metrics and its log (E18).
#   guest_agents.sh BATON verbs|ucx
set -u
baton=$1 fabric=$2
dir=$(mktemp -d)
. "$(dirname "$0")/guest_lib.sh"
head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$dir/key"
chmod 600 "$dir/key"

pids=()
agent() { # NAME ADDRESS DEVICE
    local more=() word
    # As a user would: the word that topo prints for this port.
    word=$("$baton" topo -r 16 |
        sed -n "s/^rail [0-9]*: --rail r[0-9]*=\($2@${3%:1}:1,gid=.*\)/\1/p")
    [ -n "$word" ] || fault "topo has no rail $2@$3 with a GID"
    case $fabric in
    ucx) more=(--transports rc_verbs,self) ;;
    esac
    BATON_UCX_LOG=warn "$baton" agent --name "$1" --listen "$2:0" --http 127.0.0.1:0 \
        --fabric "$fabric" --require-rdma \
        --rail "r0=$word,partition=0xffff,mtu=1024,class=104" \
        --key-file "$dir/key" --probe-size 4MiB --die-with-parent \
        ${more+"${more[@]}"} >"$dir/$1.out" 2>"$dir/$1.log" &
    pids+=($!)
    for _ in $(seq 400); do
        grep -q '"ready"' "$dir/$1.out" && return 0
        kill -0 $! 2>/dev/null || break
        sleep 0.05
    done
    fault "$fabric agent $1: $(tail -n 3 "$dir/$1.log")"
    return 1
}
port_of() { # NAME http|transfer
    sed -n "s/.*\"$2\":\([0-9]*\).*/\1/p" "$dir/$1.out"
}
ask() { # NAME PATH [BODY]
    curl -s --max-time 60 ${3+-d "$3"} \
        "http://127.0.0.1:$(port_of "$1" http)$2"
}
must() { # WHAT PATTERN TEXT
    grep -qE -- "$2" <<<"$3" || fault "$fabric agents: $1: no $2 in $3"
}

pulls() {
    local device=rxe_d0$1 answer
    agent a0 10.77.0.1 "rxe_s0$1" && agent a1 10.77.0.2 "$device" || return
    answer=$(ask a1 /v1/probe "{\"host\":\"10.77.0.1\",\"port\":$(port_of \
        a0 transfer),\"bytes\":1048576,\"descriptors\":4,\"count\":4}")
    must probe '"status":"ok"' "$answer"
    ! grep -qE '"status":"[^o]' <<<"$answer" || fault "$fabric: $answer"
    must report "\"transport\":\"[^\"]*rc_verbs/rxe_d0:1" "$(ask a1 /v1/agent)"
    must metrics 'path_bytes_total\{.*transport="[^"]*rc_verbs/rxe_d0:1' \
        "$(ask a1 /metrics)"
    # UCX drops an option that it does not know, and only its log says so.
    ! grep -h 'invalid config' "$dir"/a?.log || fault "$fabric: an option"
    must ready ready "$(ask a1 /readyz)"
    must log 'rc_verbs/rxe_d0:1' "$(cat "$dir/a1.log")"
    figure "$fabric agents: $(grep -o 'rail r0 [^"\\]*' "$dir/a1.log" |
        head -n 1)"
}
case $fabric in
ucx) pulls :1 ;;
verbs) pulls '' ;;
esac
for pid in ${pids+"${pids[@]}"}; do
    kill -TERM "$pid"
    wait "$pid" || fault "$fabric: an agent ended with $?"
done
echo "$fabric agents: $faults failed"
rm -rf "$dir"
exit "$((faults > 0))"
