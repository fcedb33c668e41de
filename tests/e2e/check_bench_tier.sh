#!/usr/bin/env bash
# `baton bench tier` as a user types it: without fio, with a fio whose figures
# are known, faults of the command line; its files are gone afterwards.
#   check_bench_tier.sh BATON
set -euo pipefail
baton=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/bin" "$dir/data" "$dir/empty"
failed=0

search=$PATH # of baton, for fio

# bench CODE PATTERN ARG...: exit code and a line of the output.
bench() {
    local code=$1 pattern=$2 got=0
    shift 2
    env PATH="$search" "$baton" bench tier --directory "$dir/data" "$@" \
        >"$dir/out" 2>&1 || got=$?
    if [ "$got" != "$code" ] || ! grep -qE -- "$pattern" "$dir/out"; then
        echo "bench tier $*: exit $got (due $code), no '$pattern' in:"
        cat "$dir/out"
        failed=1
    fi
    if [ -n "$(ls -A "$dir/data")" ]; then
        echo "bench tier $*: left files behind"
        failed=1
    fi
}

bench 2 'multiple of 2 MiB' --size 17MiB
bench 2 'at least 16 MiB' --size 2MiB
bench 1 'no file can be made there' --directory /nonexistent --size 16MiB

search=$dir/empty
bench 0 'no comparison with fio' --size 16MiB
grep -qE '^nvme_read +128 +1 ' "$dir/out" || { cat "$dir/out"; failed=1; }
grep -qE '^host_copy_huge +2048 ' "$dir/out" || { cat "$dir/out"; failed=1; }

# A fio that always says 1 MB/s, and keeps what it was asked.
cat >"$dir/bin/fio" <<EOS
#!/bin/sh
echo "\$@" >>"$dir/asked"
echo 'warning: before the object'
echo '{"jobs":[{"read":{"bw_bytes":1000000},"write":{"bw_bytes":1000000}}]}'
EOS
chmod +x "$dir/bin/fio"
search=$dir/bin:$PATH
bench 0 '^\{"results":\[$' --size 16MiB -o json
# 36 rows beside fio, each ratio that of its two figures.
sed -nE 's/^\{"what":"(nvme_[a-z_]+)","block_bytes":([0-9]+),"depth":([0-9]+),"bytes_per_s":([0-9]+),"fio_bytes_per_s":([0-9]+),"ratio":([0-9.]+)\}.*/\1 \2 \3 \4 \5 \6/p' \
    "$dir/out" >"$dir/rows"
awk '{
    seen[$1 " " $2 " " $3]++
    if ($5 != 1000000 || $6 - $4 / $5 > 0.001 || $4 / $5 - $6 > 0.001) {
        print "wrong row: " $0
        bad = 1
    }
}
END {
    for (key in seen) count++
    if (count != 36 || NR != 36) { print NR " rows, 36 due"; bad = 1 }
    exit bad
}' "$dir/rows" || failed=1
grep -q -- '--bs=131072 --iodepth=8 --rw=randread .*--direct=1' "$dir/asked" ||
    { echo 'fio was not asked for the same block and depth'; failed=1; }
exit "$failed"
