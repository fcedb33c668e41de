#!/usr/bin/env bash
# `baton bench transfer` as a user types it: without ucx_perftest, with one
# whose figures are known, faults of the command line.
#   check_bench_transfer.sh BATON
set -euo pipefail
baton=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/bin" "$dir/empty"
failed=0

search=$PATH # of baton, for ucx_perftest

# bench CODE PATTERN ARG...: exit code and a line of the output.
bench() {
    local code=$1 pattern=$2 got=0
    shift 2
    env PATH="$search" "$baton" bench transfer "$@" \
        >"$dir/out" 2>&1 || got=$?
    if [ "$got" != "$code" ] || ! grep -qE -- "$pattern" "$dir/out"; then
        echo "bench transfer $*: exit $got (due $code), no '$pattern' in:"
        cat "$dir/out"
        failed=1
    fi
}

bench 2 '64 MiB or more' --size 32MiB

search=$dir/empty
bench 0 'ucx_perftest is not installed' --size 64MiB
grep -qE '^tcp +64 KiB +[0-9.]+ GB/s +not measured' "$dir/out" ||
    { cat "$dir/out"; failed=1; }
grep -qE '^shm +random +on ' "$dir/out" || { cat "$dir/out"; failed=1; }

# One that always says 1 MiB/s overall, and keeps what it was asked and under
# which transports. Without an address it is the server: it ends at once.
cat >"$dir/bin/ucx_perftest" <<EOS
#!/bin/sh
echo "\$UCX_TLS \$@" >>"$dir/asked"
case "\$*" in
*127.0.0.1*) echo 'Final: 64 1.0 1.0 1.0 9.0 1.00 9 9' ;;
esac
EOS
chmod +x "$dir/bin/ucx_perftest"
search=$dir/bin:$PATH
bench 0 '^\{"results":\[' --size 64MiB -o json
# Six rows beside it, each ratio that of its two figures within what medians of
# ratios allow: here all of its figures are the same, so exactly.
tr '{' '\n' <"$dir/out" | sed -nE 's/^"transport":"(tcp|shm)","size":([0-9]+),"in_flight":[0-9]+,"bytes_per_s":([0-9]+),"cpu_load":[0-9.]+,"ucx_perftest":"[a-z_]+","ucx_perftest_bytes_per_s":([0-9]+),"ratio":([0-9.]+)\}.*/\1 \2 \3 \4 \5/p' >"$dir/rows"
awk '{
    seen[$1 " " $2]++
    if ($4 != 1048576 || $5 - $3 / $4 > 0.001 || $3 / $4 - $5 > 0.001) {
        print "wrong row: " $0
        bad = 1
    }
}
END {
    for (key in seen) count++
    if (count != 6 || NR != 6) { print NR " rows, 6 due"; bad = 1 }
    exit bad
}' "$dir/rows" || failed=1
# Twelve of blocks: a speed-up over a get per block that fits its two times.
tr '{' '\n' <"$dir/out" | sed -nE 's/^"transport":"(tcp|shm)","shape":"([a-z]+)","checksums":(true|false),"count":10000,"bytes":4096,"seconds":([0-9.]+),"large_ratio":([0-9.]+),"naive_seconds":([0-9.]+),"over_naive":([0-9.]+)\}.*/\1 \2 \3 \4 \5 \6 \7/p' >"$dir/blocks"
awk '{
    seen[$1 " " $2 " " $3]++
    off = $6 / $4 - $7
    if ($4 <= 0 || $5 <= 0 || off > 0.01 * $7 || -off > 0.01 * $7) {
        print "wrong blocks: " $0
        bad = 1
    }
}
END {
    for (key in seen) count++
    if (count != 12 || NR != 12) { print NR " of blocks, 12 due"; bad = 1 }
    exit bad
}' "$dir/blocks" || failed=1
grep -qE '^tcp,self -p [0-9]+ 127\.0\.0\.1 -t ucp_am_bw -s 1048576 -n 64 ' \
    "$dir/asked" ||
    { echo 'ucx_perftest was not asked for the same size'; failed=1; }
grep -q '^posix,sysv,cma,self .*-t ucp_get ' "$dir/asked" ||
    { echo 'ucx_perftest was not asked over shared memory'; failed=1; }
exit "$failed"
