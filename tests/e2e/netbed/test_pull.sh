#!/usr/bin/env bash
# Pulls between two hosts over two rails of UCX tcp, on links with a rate: both
# rails carry; one turned to a quarter carries about a quarter of the other's
# bytes; one cut in the middle is left, without a wrong byte or a pull past its
# deadline; put back, it is used again. Judged by rdma_pull's own lines.
#   test_pull.sh RDMA_PULL
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
pull=$(realpath "$1")
. "$here/netbed_lib.sh"
dir=$bed_dir
. "$here/../../rdma/guest_lib.sh"
set +e

deadline_ms=10000 limit_ms=12000
common=(--fabric ucx --blocks 128 --block-bytes 32768 --heartbeat-ms 200
    --chunk-bytes 131072)
rails() { # HOST: --rail words
    local r
    words=()
    for r in 0 1; do
        words+=(--rail "address=$(bed_address "$1" "$r"),device=r$r")
    done
}
# Bytes of rail 1 as per cent of all since a moment.
share() { look two "$1" | sed 's/.*rail0=\([0-9]*\) rail1=/\1 /' |
    awk '{ printf "%d\n", $1 + $2 ? $2 * 100 / ($1 + $2) : 0 }'; }
between() { # WHAT PER_CENT FROM TO
    figure "$1: rail 1 carried $2 %"
    [ "$2" -ge "$3" ] && [ "$2" -le "$4" ] || fault "$1: $2 %, not $3..$4"
}

bed_up 2 2 200mbit
rails 1
bed_start 1 source "$pull" source "${common[@]}" "${words[@]}" \
    --host "$(bed_address 1 0)"
bed_until 20 bed_line source '"ready"' || { echo 'no source'; exit 1; }
port=$(sed -n 's/.*"ready","port":\([0-9]*\).*/\1/p' "$dir/source.log")
rails 2
bed_start 2 two "$pull" sink "${common[@]}" "${words[@]}" \
    --host "$(bed_address 1 0)" --port "$port" --pull-blocks 32 --at-once 4 \
    --seconds 600 --deadline-ms "$deadline_ms"
sink=$started

# 4 MiB under way over two links of 25 MB/s: a pull takes about 85 ms.
await two 0 20 'v["ok"] >= 20' 'two rails'
t=$(now)
await two "$t" 20 'v["ok"] >= 60' 'two rails'
between 'two equal rails' "$(share "$t")" 35 65
figure "two equal rails: $(value ok) pulls of 1 MiB, slowest $(value slowest) ms"

bed rate 1 1 50mbit
await two "$(now)" 20 'v["ok"] >= 20' 'rail 1 at a quarter'
t=$(now)
await two "$t" 20 'v["ok"] >= 40' 'rail 1 at a quarter'
between 'rail 1 at a quarter' "$(share "$t")" 8 35
bed rate 1 1 200mbit

t=$(now)
bed link 1 1 cut
await two "$t" 30 'v["ok"] >= 20' 'rail 1 cut'
await two "$t" 20 'v["ok"] == 20 && v["rail1"] == 0' 'rail 1 cut: left' 20
seen=$(look two "$t")
figure "rail 1 cut: slowest $(value slowest) ms, $(value failed) failed"
[ "$(value failed)" = 0 ] || fault "rail 1 cut: $(value failed) pulls failed"

bed link 1 1 up
t=$(now)
await two "$t" 40 'v["rail1"] > 0' 'rail 1 back' &&
    figure "rail 1 back: used again after $(($(now) - t)) ms"
await two "$(now)" 20 'v["ok"] >= 20 && v["rail1"] > v["rail0"] / 4' \
    'rail 1 back: carries its part'
sink_end two "$limit_ms" 'two rails'
echo "$faults failed"
exit "$((faults > 0))"
