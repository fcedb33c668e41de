#!/usr/bin/env bash
# `baton check` and the frame of the program as a user meets them: exit codes,
# data on stdout, talk on stderr.   check_cli.sh BATON ROOT
set -u
baton=$1
root=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
. "$(dirname "${BASH_SOURCE[0]}")/expect.sh"

good=$root/deploy/config/baton.yaml
expect 0 'baton.yaml: ok: 4 workers \(2 prefill, 2 decode\), 1 model, policy joint$' '' \
    "$baton" check "$good"
expect 0 '"ok":true,"workers":4,"prefill":2,"decode":2,"models":1,"policy":"joint"' '' \
    "$baton" check --output json "$good"
expect 0 '^workers\[\]\.role +both ' '' "$baton" check --defaults
expect 0 '"topology":null,"hold":false,"slo":false,"journal":null' '' \
    "$baton" check --output json "$good"
sed -e 's/^policy: joint/policy: "joint:guard=0"/' "$good" >"$dir/deep.yaml"
printf 'planner: {hold: on}\nslo: {ttft_factor: 5}\njournal: {file: j}\n' \
    >>"$dir/deep.yaml"
expect 0 'policy joint:guard=0, requests held back, SLO, journal j$' '' \
    "$baton" check "$dir/deep.yaml"
expect 0 '"hold":true,"slo":true,"journal":"j"' '' \
    "$baton" check -o json "$dir/deep.yaml"
expect 0 '^    guard=' '' "$baton" check --policies
expect 0 '^round_robin ' '' "$baton" check --policies
expect 0 '"policy":"round_robin","text":".*","knobs":\[\]\}' '' \
    "$baton" check --policies --output json
expect 2 '' 'usage: baton check' "$baton" check --policies "$good"
expect 2 '' 'usage: baton check' "$baton" check --policies --defaults
expect 2 '' "policy 'joint' has no knob 'gard' .did you mean 'guard'" \
    "$baton" serve --config "$good" --policy joint:gard=1

expect 3 '' '^baton replay: /nonexistent/j: No such file or directory$' \
    "$baton" replay /nonexistent/j
expect 3 '' 'a directory, not a journal' "$baton" replay /tmp

map=$root/deploy/config/topology.yaml
expect 0 '^  rack r0  up 200 GB/s, down 200 GB/s  \(4.0:1\)$' '' \
    "$baton" topo --file "$map"
expect 0 '^pod +8  196 GB/s ' '' "$baton" topo --file "$map"
expect 0 '^remark: r1 is oversubscribed 3.0:1 upwards$' '' \
    "$baton" topo -f "$map"
expect 0 '"class":"rack","pairs":4,"min_bytes_per_s":200000000000,' '' \
    "$baton" topo --file "$map" --output json
printf 'nodes:\n  - {name: n0, rack: r0}\n' >"$dir/map.yaml"
expect 3 '' "map.yaml:2:22: unknown rack 'r0'" \
    "$baton" topo --file "$dir/map.yaml"
expect 3 '"ok":false,"status":"invalid"' 'map.yaml:2:22: ' \
    "$baton" topo --file "$dir/map.yaml" -o json
expect 2 '' 'usage: baton topo' "$baton" topo extra
expect 0 'RAIL' '' "$baton" topo
# What topo prints is what the agent takes: --require-rdma ends it right after.
sockets=$root/tests/lib/data/two_sockets.xml
expect 0 '^rail 0: --rail r0=@mlx5_0:1$' '' \
    "$baton" topo --hwloc-xml "$sockets" -r 2
expect 0 '^rail 1: --rail r1=@mlx5_2:1,gid=0$' '' \
    "$baton" topo --hwloc-xml "$sockets" -r 2
expect 0 '"rails":\["r0=@mlx5_0:1","r1=@mlx5_2:1,gid=0"\]' '' \
    "$baton" topo --hwloc-xml "$sockets" -r 2 -o json
mapfile -t words < <("$baton" topo --hwloc-xml "$sockets" -r 2 |
    sed -n 's/^rail [0-9]*: --rail //p')
expect 3 '' 'require-rdma: the sim fabric is none' "$baton" agent \
    --fabric sim --require-rdma "${words[@]/#/--rail=}"
expect 2 '' "--rail 'r0=@m,gid=300': column 11: gid is an index" \
    "$baton" agent --rail r0=@m,gid=300
expect 2 '' "--transfer-rail 'r0=@m,mut=1024': column 7: .* 'mtu'" \
    "$baton" engine --transfer-rail r0=@m,mut=1024
expect 3 '' 'require-rdma: UCX would use tcp' "$baton" agent --require-rdma \
    --transports rc_verbs,self --rail r0=127.0.0.1,transports=tcp+self
# Names are resolved at start (127.1 is one that no server is asked for).
expect 3 '' "--rail r0: host 'no..name': " "$baton" agent --rail r0=no..name
expect 3 '' "--listen: host 'no..name': " "$baton" agent --listen no..name:0
expect 3 '' "--transfer-rail r0: host 'no..name': " \
    "$baton" engine --transfer-rail r0=no..name
expect 3 '' 'r0: ucx: tcp,self, device nosuch9: ' \
    "$baton" agent --listen 127.1:0 --rail r0=127.1@nosuch9
expect 3 '' 'class need a rail of RDMA alone' \
    "$baton" agent --rail r0=127.0.0.1,class=104
expect 2 '' 'no GPU at' "$baton" topo --gpu 0000:ff:1f.7
expect 2 '' 'output is table or json' "$baton" topo -f "$map" -o xml
printf 'topology: map.yaml\n' | cat "$good" - >"$dir/with_map.yaml"
expect 3 '' "map.yaml:2:22: unknown rack 'r0'" "$baton" check "$dir/with_map.yaml"
sed 's/, rack: r0//' "$dir/map.yaml" >"$dir/map2.yaml"
mv "$dir/map2.yaml" "$dir/map.yaml"
expect 0 'ok: 4 workers' '' "$baton" check "$dir/with_map.yaml"
expect 0 '"key":"limits.body","default":"64MiB"' '' \
    "$baton" check --defaults --output json

cp "$good" "$dir/bad.yaml"
echo 'polcy: joint' >>"$dir/bad.yaml"
line=$(wc -l <"$dir/bad.yaml")
expect 3 '' "^$dir/bad.yaml:$line:1: unknown key 'polcy' \(did you mean 'policy'\?\)$" \
    "$baton" check "$dir/bad.yaml"
expect 3 '"ok":false,"status":"invalid","error":"' "unknown key" \
    "$baton" check -o json "$dir/bad.yaml"
expect 3 '' 'No such file or directory' "$baton" check "$dir/none.yaml"

expect 2 '' 'usage: baton check' "$baton" check
expect 2 '' 'usage: baton check' "$baton" check "$good" "$good"
expect 2 '' "unknown option '--outptu' \(did you mean '--output'\?\)" \
    "$baton" check --outptu json "$good"
expect 2 '' "unknown option '-q'" "$baton" check -q "$good"
expect 2 '' '--output needs a value' "$baton" check --output
expect 2 '' '--defaults takes no value' "$baton" check --defaults=1
expect 2 '' 'table or json' "$baton" check --output xml "$good"

expect 2 '' "unknown command 'chekc' \(did you mean 'check'\?\)" "$baton" chekc
expect 2 '' 'usage: baton COMMAND' "$baton"
expect 0 'usage: baton COMMAND' '' "$baton" --help
expect 0 'usage: baton check' '' "$baton" help check
expect 0 'usage: baton check' '' "$baton" check --help
expect 2 '' 'unknown command' "$baton" help nothing
expect 0 '^baton [0-9]+\.[0-9]+\.[0-9]+$' '' "$baton" --version
expect 2 '' 'usage: baton completion bash' "$baton" completion zsh
expect 0 'complete -o filenames -F _baton baton' '' "$baton" completion bash

# Output that cannot be written is a failure.
if [ -w /dev/full ]; then
    if "$baton" check --defaults >/dev/full 2>"$dir/err"; then
        echo 'a full disk looks like success'
        failed=1
    fi
fi

# The completion script completes.
"$baton" completion bash >"$dir/complete"
words() { # WORD... (the last is being typed)
    bash -c '. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
             _baton; echo "${COMPREPLY[*]}"' bash "$dir/complete" "$@"
}
[ "$(words baton comp)" = completion ] || { echo 'baton comp<TAB>'; failed=1; }
[ "$(words baton check --o)" = --output ] ||
    { echo 'baton check --o<TAB>'; failed=1; }
exit "$failed"
