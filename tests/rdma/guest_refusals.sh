#!/usr/bin/env bash
# Inside the guest: what cannot work must be said when a fabric is opened, in
# words that name the thing, not later and not by a number.
#   guest_refusals.sh RDMA_PULL verbs|ucx
set -u
pull=$1 fabric=$2
dir=$(mktemp -d)
. "$(dirname "$0")/guest_lib.sh"

# refuse WHAT PATTERN RAIL [WORDS...]: ends at once with exit 3, and a line of
# the given kind; WORDS go before the program.
refuse() {
    local what=$1 pattern=$2 rail=$3 code=0
    shift 3
    timeout 30 "$@" "$pull" source --fabric "$fabric" --rail "$rail" \
        --host 10.77.0.1 --blocks 512 --block-bytes 65536 \
        >"$dir/refused" 2>&1 || code=$?
    if [ "$code" -ne 3 ]; then
        fault "$what: exit $code, not 3: $(tail -n 3 "$dir/refused")"
    elif ! grep -q '"event":"error"' "$dir/refused" ||
        ! grep -qiE -- "$pattern" "$dir/refused"; then
        fault "$what: does not say \"$pattern\": $(tail -n 3 "$dir/refused")"
    else
        figure "$fabric, $what: $(sed 's/.*"text":"\([^"]*\)".*/\1/' \
            "$dir/refused" | tail -n 1)"
    fi
}

at=address=10.77.0.1
limited=(bash -c 'ulimit -l 64; exec setpriv \
    --bounding-set -ipc_lock,-sys_resource \
    --inh-caps -ipc_lock,-sys_resource "$@"' limited)
case $fabric in
verbs)
    refuse 'no such device' 'nosuch0' "$at,device=nosuch0"
    refuse 'address of no device' '10\.99\.0\.1' address=10.99.0.1
    refuse 'no such GID index' 'GID.*200|200.*GID' "$at,device=rxe_s0,gid=200"
    refuse 'no such partition' 'partition.*0x1234|0x1234.*partition' \
        "$at,device=rxe_s0,partition=0x1234"
    refuse 'no MTU' 'MTU.*1000' "$at,device=rxe_s0,mtu=1000"
    refuse 'port has no such MTU' 'MTU.*4096' \
        "$at,device=rxe_s0,mtu=4096" \
        bash -c 'ip link set s0 mtu 1500; "$@"; c=$?; ip link set s0 mtu 4200
            exit $c' mtu
    # 32 MiB to register, 64 KiB allowed.
    refuse 'memlock too low' '(memlock|locked memory).*(64 ?K|65536)' \
        "$at,device=rxe_s0" "${limited[@]}"
    ;;
ucx)
    ucx=transports=rc_verbs+self
    refuse 'no such GID index' 'cannot reach a peer' \
        "$at,device=rxe_s0:1,gid=200,$ucx"
    refuse 'no such partition' 'partition is not in the port' \
        "$at,device=rxe_s0:1,partition=0x1234,$ucx"
    refuse 'an MTU that UCX has not' 'MTU of 256' \
        "$at,device=rxe_s0:1,mtu=256,$ucx"
    refuse 'a GID without RDMA' 'RDMA alone' "$at,gid=1,transports=tcp+self"
    refuse 'no such device' 'nosuch0' "$at,device=nosuch0:1,$ucx"
    refuse 'memlock too low' '(memlock|locked memory).*(64 ?K|65536)' \
        "$at,device=rxe_s0:1,$ucx" "${limited[@]}"
    ;;
esac
echo "$fabric: $faults failed"
rm -rf "$dir"
exit "$((faults > 0))"
