#!/usr/bin/env bash
# `baton bench index` as a user types it: a small run in both forms, faults of
# the command line, a trace by name, and the synthetic one said so.
#   check_bench_index.sh BATON ROOT
set -euo pipefail
baton=$1
root=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0

# bench CODE PATTERN ARG...: exit code and a line of the output (either stream).
bench() {
    local code=$1 pattern=$2 got=0
    shift 2
    "$baton" bench index "$@" >"$dir/out" 2>&1 || got=$?
    if [ "$got" != "$code" ] || ! grep -qE -- "$pattern" "$dir/out"; then
        echo "bench index $*: exit $got (due $code), no '$pattern' in:"
        cat "$dir/out"
        failed=1
    fi
}

made=$dir/made.jsonl
"$baton" trace generate -n 60 --out "$made" 2>/dev/null
bench 0 '^block events  ' -t "$made" -w 2,3 --block-tokens 64
bench 0 '^workers  *2  *3$' -t "$made" -w 2,3 --block-tokens 64
bench 0 'made\.jsonl, 60 requests, blocks of 512 tokens, synthetic' \
    -t "$made" -w 2
bench 0 '50 requests' -t "$made" -w 2 -n 50 --block-tokens 512
bench 0 '^\{"results":\[\{"workers":2,"block_tokens":512,.*"block_events_per_s":[0-9].*"lookups_per_s":[0-9].*"lookup_p99_us":[0-9].*"bytes_per_block":[0-9]' \
    -t "$made" -w 2 -o json
BATON_TRACES=$dir bench 0 'made\.jsonl' -t made -w 2 --cache 20
bench 2 'must divide' -t "$made" -w 2 --block-tokens 100
bench 2 'workers is N,N' -t "$made" -w 2,,3
bench 2 'workers is N,N' -t "$made" -w 5000
bench 2 'block-tokens is N,N' -t "$made" --block-tokens 0
bench 3 'no-such' -t no-such -w 2
printf '0,1,2\n' >"$dir/bad.csv"
bench 3 'bad.csv:1' -t "$dir/bad.csv" -w 2
bench 2 'at least 1' -t "$made" -n 0
if "$baton" bench place -t "$made" >"$dir/out" 2>&1 ||
    ! grep -q 'belong to index' "$dir/out"; then
    echo 'bench place takes --trace'
    failed=1
fi
if [ -r "$root/../shared/traces/conversation_trace.jsonl" ]; then
    bench 0 'conversation_trace\.jsonl, 100 requests' -n 100 -w 2
else
    bench 0 'made by the generator' -n 100 -w 2
fi
exit "$failed"
