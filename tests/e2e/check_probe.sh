#!/usr/bin/env bash
# `baton probe` and POST /v1/probe between two agents on loopback: what is
# refused, what is measured, the JSON and the file; no times are judged.
#   check_probe.sh BATON
set -euo pipefail
baton=$1
dir=$(mktemp -d)
pids=()
end() {
    for pid in ${pids+"${pids[@]}"}; do
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    rm -rf "$dir"
}
trap end EXIT
. "$(dirname "$0")/expect.sh"

start() { # NAME [OPTION...]
    : >"$dir/$1"
    "$baton" agent --name "$1" --probe-size 4MiB --die-with-parent "${@:2}" \
        >"$dir/$1" 2>"$dir/$1.log" &
    pids+=($!)
    for _ in $(seq 500); do
        grep -q ready "$dir/$1" && break
        sleep 0.02
    done
    port=$(sed -n 's/.*"transfer":\([0-9]*\).*/\1/p' "$dir/$1")
    http=$(sed -n 's/.*"http":\([0-9]*\).*/\1/p' "$dir/$1")
}
start one
one_port=$port one=http://127.0.0.1:$http
start two
two=http://127.0.0.1:$http
nobody=http://127.0.0.1:9 # discard: nobody listens

# ---- the endpoint ----
post() { # BODY...: a member list without braces
    curl -s -w '\n%{http_code}\n' -d "{\"host\":\"127.0.0.1\",\"port\":$one_port,$1}" \
        "$two/v1/probe"
}
expect 0 '^200$' '' post '"bytes":1048576,"descriptors":16,"count":3,"parallel":2'
for what in '"status":"ok"' '"descriptors":16,' '"bytes":1048576,' \
    '"region":"probe"' '"began_ns":[0-9]+' '"setup_ns":[1-9]'; do
    [ "$(grep -oE "$what" "$dir/out" | wc -l)" = 3 ] ||
        { echo "not three times $what:"; cat "$dir/out"; failed=1; }
done
expect 0 '^400$' '' post '"bytes":1000'
expect 0 '^400$' '' post '"bytes":8388608'
expect 0 '^400$' '' post '"bytes":8192,"descriptors":3'
expect 0 '^400$' '' post '"bytes":4194304,"descriptors":2' # no room for a gap
expect 0 '^400$' '' post '"bytes":4096,"count":65'
expect 0 '^400$' '' post '"bytes":4096,"at_ns":99999999999999999'
expect 0 '^400$' '' post '"bytes":4096,"remote_blocks":0'
expect 0 '"clock_ns":[1-9]' '' curl -s "$two/v1/probe"
# A region that is larger than it says is not read beyond its end.
expect 0 '"status":"(invalid|not_found|lease_expired)"' '' \
    post '"bytes":4096,"count":20,"remote_blocks":4294967295'

# One at a time, unless both agree. The first waits for its moment.
clock=$(curl -s "$two/v1/probe" | sed -n 's/.*"clock_ns":\([0-9]*\).*/\1/p')
post "\"bytes\":4096,\"beside\":true,\"at_ns\":$((clock + 3000000000))" \
    >"$dir/first" &
first=$!
for _ in $(seq 100); do
    curl -s "$two/v1/probe" | grep -q '"running":1' && break
    sleep 0.02
done
expect 0 '^409$' '' post '"bytes":4096'
expect 0 '^200$' '' post '"bytes":4096,"beside":true'
wait "$first"
grep -q '"status":"ok"' "$dir/first" || { cat "$dir/first"; failed=1; }
expect 0 '"running":0' '' curl -s "$two/v1/probe"

# ---- the command ----
quick=(--repeats 3 --share 1 --longest 5ms --max-bytes 64MiB)
expect 0 '^one +two +[0-9.]+ .B/s' '' "$baton" probe -a "$one" -a "$two/" \
    "${quick[@]}" --pairwise --incast --map one=prefill-0 --write "$dir/topo.yaml"
grep -qE '^two +one +[0-9.]+ .B/s.*rail0 100%' "$dir/out" || failed=1
expect 0 '^rack +2 ' '' "$baton" topo --file "$dir/topo.yaml"
grep -q prefill-0 "$dir/out" || failed=1
expect 0 '"probe_schema": 1' '' "$baton" probe -a "$one" -a "$two" \
    "${quick[@]}" --pair one:two --output json
[ "$(grep -c '"measured": true' "$dir/out")" = 1 ] || failed=1
# An agent of that name that begins with it foresees its first pull.
cp "$dir/out" "$dir/calibration"
old=$two
start two --calibration "$dir/calibration"
two=http://127.0.0.1:$http
expect 0 '"predicted_ns":[1-9]' '' post '"bytes":1048576'
expect 0 '"rate_bytes_per_s":[1-9]' '' curl -s "$two/v1/agent"
two=$old
expect 0 '"predicted_ns":[1-9]' '' curl -s "$two/v1/agent" # learned
expect 3 '' 'calibration .*: not what baton probe' "$baton" agent \
    --calibration <(echo '{}')
expect 3 '' 'calibration /nonexistent' "$baton" agent --calibration /nonexistent
expect 5 'NOT MET' '' "$baton" probe -a "$one" -a "$two" "${quick[@]}" \
    --verify --alone-median 0 --alone-p95 0
expect 4 '^one +two +[0-9.]+ .B/s' "baton probe: $nobody: ." "$baton" probe \
    -a "$one" -a "$nobody" -a "$two" "${quick[@]}"
expect 4 '' "baton probe: $nobody: ." "$baton" probe -a "$one" -a "$nobody"
expect 4 'not measured: --max-bytes' 'one > two: --max-bytes' "$baton" probe \
    -a "$one" -a "$two" --pair one:two --max-bytes 300KiB
expect 2 '' 'given 2 to 32' "$baton" probe -a "$one"
expect 2 '' 'the same one twice' "$baton" probe -a "$one" -a "$one/"
expect 2 '' 'http://HOST:PORT' "$baton" probe -a one -a two
expect 2 '' 'no such path' "$baton" probe -a "$one" -a "$two" --pair one:three
expect 2 '' 'table or json' "$baton" probe -a "$one" -a "$two" -o xml
expect 2 '' '0.01 to 1' "$baton" probe -a "$one" -a "$two" --share 0
expect 1 'MB|GB' 'No such file' "$baton" probe -a "$one" -a "$two" "${quick[@]}" \
    --write /nonexistent/topo.yaml
[ "$failed" = 0 ] && echo 'as due'
exit "$failed"
