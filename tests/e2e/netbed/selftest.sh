#!/usr/bin/env bash
# Does a bed do what it says? Rates each way and on each rail, pairs that do
# not touch each other, a link cut, down and back, isolation, and an end that
# leaves nothing. Measured by netbed_flow at the receiver.
#   selftest.sh FLOW_PROGRAM
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
flow=$(realpath "$1")
. "$here/netbed_lib.sh"
failed=0
port=20100

fault() {
    echo "FAILED: $*"
    failed=1
}

# One flow, its figure in the log flow.<port>.
flow_begin() { # FROM TO RAIL SECONDS
    port=$((port + 1))
    bed_start "$2" "serve$port" "$flow" serve "$(bed_address "$2" "$3")" \
        "$port" "$4"
    server=$started
    bed_until 10 bed_listens "$2" "$port" || fault "no server on host $2"
    bed_start "$1" "send$port" "$flow" send "$(bed_address "$1" "$3")" \
        "$(bed_address "$2" "$3")" "$port"
}
flow_end() { # SERVER_PID PORT: figure in $mbit
    mbit=0
    if wait "$1"; then mbit=$(cat "$bed_dir/serve$2.log"); fi
}
# Payload is 1448 of 1514 bytes in a full packet.
near() { # WHAT MBIT EXPECTED_RATE PART_BELOW
    awk -v got="$2" -v want="$3" -v part="$4" 'BEGIN {
        want *= 1448 / 1514
        exit !(got > want * (1 - part) && got < want * 1.10) }' ||
        fault "$1: $2 Mbit/s of a $3 Mbit/s link"
    echo "$1: $2 of $3 Mbit/s"
}
measure() { # WHAT FROM TO RAIL EXPECTED
    flow_begin "$2" "$3" "$4" 1
    flow_end "$server" "$port"
    near "$1" "$mbit" "$5" 0.10
}
# Nobody listens there: a refusal has come all the way.
reaches() { # FROM ADDRESS
    [[ $(timeout 1 ip netns exec "$bed_name-h$1" \
        bash -c ": </dev/tcp/$2/9" 2>&1 || true) == *refused* ]]
}
to2=$(bed_address 2 0)

before=$(ip -br link | wc -l)
bed_up 4 2 100mbit
[ "$(ip -br link | wc -l)" = "$before" ] ||
    fault 'the own namespace of the machine has other devices now'

measure 'rail 0, 1 to 2' 1 2 0 100
measure 'rail 1, 2 to 1' 2 1 1 100
bed rate 2 0 200mbit 40mbit
measure 'asymmetric, up is 200: the receiver limits' 2 3 0 100
measure 'asymmetric, down is 40' 1 2 0 40
bed rate 3 0 none
measure 'asymmetric, up is 200: receiver not limited' 2 3 0 200
bed rate 2 0 100mbit
bed rate 3 0 100mbit

# Two pairs at once, and both rails of one pair.
flow_begin 1 2 0 2
a=$server a_port=$port
flow_begin 3 4 0 2
b=$server b_port=$port
flow_begin 1 2 1 2
c=$server c_port=$port
flow_end "$a" "$a_port"; near 'at once: 1 to 2' "$mbit" 100 0.25
flow_end "$b" "$b_port"; near 'at once: 3 to 4' "$mbit" 100 0.25
flow_end "$c" "$c_port"; near 'at once: 1 to 2, rail 1' "$mbit" 100 0.25

carrier() { bed exec "$1" cat "/sys/class/net/r$2/carrier"; }
reaches 1 "$to2" || fault 'no way from 1 to 2'
bed link 2 0 cut
! reaches 1 "$to2" || fault 'a cut cable carries'
[ "$(carrier 2 0)" = 1 ] || fault 'a cut is seen as a lost carrier'
reaches 1 "$(bed_address 2 1)" || fault 'a cut on rail 0 took rail 1'
reaches 1 "$(bed_address 3 0)" || fault 'a cut at host 2 took host 3'
bed link 2 0 up
bed_until 5 reaches 1 "$to2" || fault 'not back after a cut'
bed link 2 0 down
! reaches 1 "$to2" || fault 'a link that is down carries'
[ "$(carrier 2 0)" = 0 ] || fault 'no lost carrier when down'
bed link 2 0 up
bed_until 5 reaches 1 "$to2" || fault 'not back after down'
measure 'after all that' 1 2 0 100
! bed exec 1 ip route get 192.0.2.1 >/dev/null 2>&1 ||
    fault 'a host has a way to the outside'

bed down
[ -z "$(ip netns list | grep "^$bed_name-")" ] || fault 'namespaces are left'
[ "$failed" = 0 ] && echo 'all as it says'
exit "$failed"
