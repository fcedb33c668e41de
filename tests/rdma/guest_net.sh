#!/usr/bin/env bash
# Inside the guest, once: the rails. Rail r is a veth pair
#     s<r> 10.77.<r>.1  <->  d<r> 10.77.<r>.2
# with a soft-RoCE device over each end, rxe_s<r> and rxe_d<r>: packets really
# cross the pair, so that tc and link state apply to RDMA.
set -euo pipefail
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
. /run/vm/settings # rails, shaping

# A 4 MiB read is a thousand packets at once: the default backlog drops its
# tail. Both ends live in one host, so that a packet comes from one of its own
# addresses.
cd /proc/sys/net
echo 100000 >core/netdev_max_backlog
for which in all default; do
    echo 0 >"ipv4/conf/$which/rp_filter"
    echo 1 >"ipv4/conf/$which/accept_local"
done

up() { # NETDEV ADDRESS END: with room for 4 KiB of payload in a packet
    ip link set "$1" mtu 4200 up
    ip addr add "$2/24" dev "$1"
    rdma link add "rxe_$3" type rxe netdev "$1"
}
# The other end's hardware address is told, not asked for: over a veth pair the
# answer comes before rdma_cm has begun to wait for it, and it then sleeps for
# the whole of its time-out (2 s in rping, 10 s in UCX).
neighbour() { # NETDEV PEER_NETDEV PEER_ADDRESS
    ip neigh replace "$3" dev "$1" nud permanent \
        lladdr "$(cat "/sys/class/net/$2/address")"
}

ip link set lo up
for ((r = 0; r < rails; r++)); do
    ip link add "s$r" type veth peer name "d$r"
    ip link set "d$r" up
    up "s$r" "10.77.$r.1" "s$r"
    up "d$r" "10.77.$r.2" "d$r"
    neighbour "s$r" "d$r" "10.77.$r.2"
    neighbour "d$r" "s$r" "10.77.$r.1"
done
# "RAIL tc-words": both directions.
while read -r rail words; do
    [ -n "$rail" ] || continue
    for end in s d; do
        # shellcheck disable=SC2086 # words of a tc command
        tc qdisc replace dev "$end$rail" root $words
    done
done <<<"$shaping"
for _ in $(seq 100); do
    # "link rxe_s0/1 state ACTIVE physical_state LINK_UP netdev s0"
    [ -n "$(rdma link show | grep -v 'state ACTIVE')" ] || break
    sleep 0.05
done
rdma link show >/run/vm/links
if grep -v 'state ACTIVE' /run/vm/links; then
    exit 1
fi
