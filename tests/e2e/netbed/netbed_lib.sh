# Sourced by the tests that run on a bed: hosts, processes on them, waiting on
# what can be observed, and one end for all of it.
#     bed_up HOSTS [RAILS [RATE]]     exits 77 where there can be none
#     bed_start HOST LOG COMMAND...   in the background; its pid in $started
#     bed_until SECONDS COMMAND...    until it succeeds; 1 if it does not
#     bed_line LOG PATTERN            is there such a line?
#     bed_listens HOST PORT           does somebody listen there (TCP)?
#     bed_kill PID [SIGNAL]           one that bed_start began
#     bed rate|link|exec|show ...     netbed.sh on this bed
#     bed_address HOST RAIL
# Logs lie in $bed_dir, which goes away with the bed. On failure all are shown.
# shellcheck shell=bash
netbed=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/netbed.sh
bed_name=netbed$$
bed_dir=$(mktemp -d "${TMPDIR:-/tmp}/baton-netbed.XXXXXX")
bed_pids=()
started=

bed() { "$netbed" -n "$bed_name" "$@"; }
bed_address() { echo "10.$((81 + $2)).0.$1"; }

bed_end() {
    local code=$? pid log
    trap - EXIT
    for pid in ${bed_pids+"${bed_pids[@]}"}; do
        kill -KILL "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    bed down 2>/dev/null || true
    if [ "$code" -ne 0 ] && [ "$code" -ne 77 ]; then
        for log in "$bed_dir"/*.log; do
            [ ! -s "$log" ] || { echo "== $log"; tail -n 30 "$log"; }
        done
    fi
    rm -rf "$bed_dir"
    exit "$code"
}
trap bed_end EXIT
trap 'exit 143' TERM INT HUP

bed_up() {
    local code=0
    bed up "$@" >/dev/null || code=$?
    [ "$code" -eq 0 ] || exit "$code"
}

bed_start() { # HOST LOG COMMAND...
    local ns=$bed_name-h$1 log=$bed_dir/$2.log
    shift 2
    ip netns exec "$ns" "$@" >"$log" 2>&1 </dev/null &
    started=$!
    bed_pids+=("$started")
}

bed_until() { # SECONDS COMMAND...
    local end=$((SECONDS + $1))
    shift
    while ! "$@"; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.02
    done
}

bed_line() { grep -qE -- "$2" "$bed_dir/$1.log"; }

bed_listens() {
    [ -n "$(ip netns exec "$bed_name-h$1" ss -Hltn "sport = :$2")" ]
}

bed_kill() {
    kill -"${2:-KILL}" "$1" 2>/dev/null || true
    case ${2:-KILL} in KILL | TERM) wait "$1" 2>/dev/null || true ;; esac
}
