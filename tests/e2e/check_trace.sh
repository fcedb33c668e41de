#!/usr/bin/env bash
# `baton trace` as a user meets it: make a trace, look at it, convert others,
# faults with their place, exit codes.   check_trace.sh BATON ROOT
set -u
baton=$1
root=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
. "$(dirname "${BASH_SOURCE[0]}")/expect.sh"
trace() { # CODE STDOUT STDERR ARGUMENT...
    local code=$1 out=$2 err=$3
    shift 3
    expect "$code" "$out" "$err" "$baton" trace "$@"
}

# generate: labelled in every line, the same for the same seed.
made=$dir/made.jsonl
trace 0 '' "made.jsonl: 500 requests over [0-9]+ s, labelled synthetic$" \
    generate --mix chat=2,agent=1,rag=1 --requests 500 --rate 5 --seed 7 \
    --tenants 2 --out "$made"
[ "$(grep -c '"synthetic": true}$' "$made")" = 500 ] ||
    { echo 'lines without the label'; failed=1; }
"$baton" trace generate --mix chat=0.5,agent=0.25,rag=0.25 -n 500 -r 5 -s 7 \
    --tenants 2 --out "$dir/again.jsonl" 2>/dev/null
cmp "$made" "$dir/again.jsonl" || failed=1
"$baton" trace generate -n 500 -s 8 --out "$dir/other.jsonl" 2>/dev/null
cmp -s "$made" "$dir/other.jsonl" && { echo 'the seed does nothing'; failed=1; }

# stats: the label, a table, an answer; the same figures as JSON.
trace 0 '^made.jsonl \(synthetic\): 500 requests' '' stats "$made"
trace 0 'Is routing by prefix worth it here\? Yes\. ' '' stats "$made"
trace 0 ' 100000 +51200000 +[0-9.]+ % +[0-9.]+ %$' '' stats -w 4 "$made"
trace 0 '"synthetic": true' '' stats --output json "$made"
trace 0 '"ideal_hit_tokens": 0\.[0-9]+' '' stats -o json "$made"
"$baton" trace stats -o json "$made" |
    awk -F'[:,]' '/"workers"/ && $2 != 8 { exit 1 }' ||
    { echo 'default of --workers'; failed=1; }
# the crossover of the reference: 9.31 GB/s for 70B on 8 H100
trace 0 'above 9\.31 GB/s' '' stats "$made"
trace 0 'above 6\.61 GB/s' '' stats --compute h100-8b-tp1 --kv llama-3.1-8b \
    "$made"

# A unique load has nothing to gain, and says so.
"$baton" trace generate --mix long=1 -n 100 --out "$dir/long.jsonl" 2>/dev/null
trace 0 'worth it here\? Hardly\. ' '' stats "$dir/long.jsonl"
# A common prefix is no reason to prefer a worker.
"$baton" trace generate --input-fixed 4096 --output-fixed 64 --hit-fixed 0.5 \
    -n 200 --out "$dir/fixed.jsonl" 2>/dev/null
trace 0 'every request has: 4; no reason to prefer' '' stats "$dir/fixed.jsonl"

# convert: other formats become Mooncake's.
cat >"$dir/azure.csv" <<'END'
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
END
trace 0 '' 'out.jsonl: 2 requests over 0 s$' convert "$dir/azure.csv" \
    --out "$dir/out.jsonl"
grep -qxF '{"timestamp": 52, "input_length": 3180, "output_length": 8, "hash_ids": []}' \
    "$dir/out.jsonl" || { cat "$dir/out.jsonl"; failed=1; }
trace 0 'No prefix information' '' stats "$dir/out.jsonl"
cat >"$dir/chats.jsonl" <<'END'
{"chat_id":1,"parent_chat_id":-1,"timestamp":1.5,"input_length":20,"output_length":4,"type":"text","turn":1,"hash_ids":[10,11]}
{"chat_id":2,"parent_chat_id":1,"timestamp":3,"input_length":33,"output_length":4,"type":"text","turn":2,"hash_ids":[10,12,13]}
END
trace 0 '' 'out.jsonl: 2 requests over 2 s$' convert "$dir/chats.jsonl" \
    --out "$dir/out.jsonl"
grep -qxF '{"timestamp": 1500, "input_length": 33, "output_length": 4, "hash_ids": [0, 2, 3], "block_size": 16, "session_id": 1, "turn": 1}' \
    "$dir/out.jsonl" || { cat "$dir/out.jsonl"; failed=1; }
trace 0 '' 'requests over' convert --jitter 3s --seed 4 "$dir/chats.jsonl" \
    --out "$dir/jitter.jsonl"
cmp -s "$dir/out.jsonl" "$dir/jitter.jsonl" &&
    { echo 'the jitter does nothing'; failed=1; }

# faults
echo '{"timestamp": -1}' >"$dir/bad.jsonl"
trace 3 '' "bad.jsonl:1:1: 'input_length' is missing$" stats "$dir/bad.jsonl"
trace 3 '' 'No such file or directory' stats "$dir/none"
trace 1 '' '/nonexistent/x: No such file' generate --out /nonexistent/x
trace 2 '' "no kind 'chta' \(did you mean 'chat'\?\)" generate --mix chta=1 \
    --out "$dir/x"
trace 2 '' 'a share is a number' generate --mix chat=x --out "$dir/x"
trace 2 '' 'KIND=SHARE' generate --mix chat --out "$dir/x"
trace 2 '' 'all shares are 0' generate --mix chat=0 --out "$dir/x"
trace 2 '' 'needs --out' generate
trace 2 '' 'needs --out' convert "$made"
trace 2 '' 'goes with --input-fixed' generate --hit-fixed 0.5 --out "$dir/x"
trace 2 '' "\-\-mix does nothing for 'stats'" stats --mix chat=1 "$made"
trace 2 '' "\-\-workers does nothing for 'generate'" generate -w 3 --out x
trace 2 '' '1 to 4096' stats --workers 0 "$made"
trace 2 '' "no preset 'h100-70b-tp9'" stats --compute h100-70b-tp9 "$made"
trace 2 '' 'auto, mooncake' stats --format csv "$made"
trace 2 '' 'table or json' stats -o xml "$made"
trace 2 '' 'say what to do' "$made"
trace 2 '' 'say what to do'
trace 2 '' 'give one trace file' stats
trace 2 '' 'generate takes no file' generate "$made" --out "$dir/x"
trace 2 '' "did you mean '--requests'" generate --reqests 5 --out "$dir/x"
trace 2 '' 'expects a whole number' generate --requests 5x --out "$dir/x"
trace 0 'usage: baton trace' '' --help

# Figures of a published trace, when it is there.
conversation=$root/../shared/traces/conversation_trace.jsonl
if [ -r "$conversation" ]; then
    trace 0 '^seen before: 37\.4 % of prompt tokens, 36\.6 % of blocks' '' \
        stats "$conversation"
    trace 0 'stamps are rounded' '' stats "$conversation"
else
    echo "no $conversation: its figures were not checked"
fi
exit "$failed"
