# Sourced by the cluster_* tests: a bed as a cluster file says, `baton demo` on
# it, and figures out of its JSON, serve's metrics and the decision log.
#     cluster_up RAILS [FABRIC]        hosts 1.. the engines, one more: serve
#     cluster_run OPTION...            baton demo, report to $bed_dir/demo.json
#     cluster_begin OPTION...          the same in the background
#     cluster_rate ENGINE PART         its links at PART (0.25) of the file's
#     figure JQ_FILTER                 of demo.json
#     decisions POLICY JQ_FILTER       over the lines of the decision log
#     metric NAME                      of serve, with its labels
# shellcheck shell=bash
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/netbed_lib.sh"
cluster_file=$here/../../../bench/clusters/netbed.yaml
cluster_dir=$bed_dir/run
faults=0

command -v jq >/dev/null || { echo 'skipped: jq is not installed'; exit 77; }

fault() {
    echo "FAILED: $*"
    faults=$((faults + 1))
}

# Bits on the link for bytes that TCP carries: 1514 of 1448.
bits() { awk -v b="$1" -v part="$2" 'BEGIN {
    printf "%.0f", b * 8 * 1514 / 1448 * part }'; }

cluster_up() { # RAILS [FABRIC]
    cluster_rails=$1 cluster_fabric=${2:-slow}
    cluster_hosts=$("$baton" demo --cluster "$cluster_file" \
        --fabric "$cluster_fabric" --hosts)
    bed_up "$(($(wc -l <<<"$cluster_hosts") + 1))" "$1" none
    local host name rate
    while read -r host name rate; do cluster_rate "$name" 1; done \
        <<<"$cluster_hosts"
}

cluster_host() { awk -v n="$1" '$2 == n { print $1 }' <<<"$cluster_hosts"; }

cluster_rate() { # ENGINE PART
    local host rate r
    host=$(cluster_host "$1")
    rate=$(awk -v n="$1" '$2 == n { print $3 }' <<<"$cluster_hosts")
    for ((r = 0; r < cluster_rails; r++)); do
        bed rate "$host" "$r" "$(bits "$((rate / cluster_rails))" "$2")bit"
    done
}

demo_words() { # OPTION...
    words=("$baton" demo --cluster "$cluster_file" --fabric "$cluster_fabric"
        --netbed "$bed_name" --rails "$cluster_rails" --dir "$cluster_dir"
        --output json "$@")
}

cluster_run() {
    local words
    demo_words "$@"
    "${words[@]}" >"$bed_dir/demo.json" 2>"$bed_dir/demo.log"
}

cluster_begin() {
    local words
    demo_words "$@"
    "${words[@]}" >"$bed_dir/demo.json" 2>"$bed_dir/demo.log" </dev/null &
    demo=$!
    bed_pids+=("$demo")
}

figure() { jq -r "$1" "$bed_dir/demo.json"; }
# Half a line at the end of a log that is being written is left out.
decisions() { grep '}$' "$cluster_dir/decisions-$1.jsonl" | jq -s "$2"; }
serve_host() { echo $(($(wc -l <<<"$cluster_hosts") + 1)); }
metric() { # NAME{labels}
    bed exec "$(serve_host)" curl -s -m 2 http://127.0.0.1:9464/metrics |
        awk -v n="$1" 'index($0, n) == 1 { print $NF }'
}
