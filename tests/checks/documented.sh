#!/usr/bin/env bash
# Every subcommand and option is in baton.1, every configuration key with its
# default in baton.yaml.5, every metric in its folder's METRICS.md, and no metric
# is there that the program lacks.
#   documented.sh ROOT BATON | --selftest
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/lib.sh"

man1=deploy/man/baton.1.scd
man5=deploy/man/baton.yaml.5.scd
metrics=orchestrator/shell/METRICS.md

# Lines of the page between "## NAME" and the next heading.
section() {
    awk -v name="$1" '/^#/ { on = ($0 == "## " name) } on' "$man1"
}

check_commands() {
    local command option bad=0
    for command in $("$baton" --help |
        awk '/^commands:/ { on = 1; next } /^$/ { on = 0 } on { print $1 }'); do
        [ "$command" = help ] && continue
        if [ -z "$(section "$command")" ]; then
            echo "$man1:1: no section '## $command'"
            bad=1
            continue
        fi
        for option in $("$baton" help "$command" |
            awk '/^options:/ { on = 1; next } on' |
            grep -oE '^  (-., |    )--[a-z0-9-]+' | grep -oE -- '--[a-z0-9-]+'); do
            [ "$option" = --help ] && continue
            if ! section "$command" | grep -F -- "*$option*" >/dev/null; then
                echo "$man1:1: section '## $command' lacks *$option*"
                bad=1
            fi
        done
    done
    return "$bad"
}

check_keys() {
    local bad=0
    "$baton" check --defaults --output json | tr '{' '\n' |
        sed -nE 's/^"key":"([^"]*)","default":(null|"[^"]*"),.*/\1 \2/p' \
            >"$scratch_dir/keys"
    [ -s "$scratch_dir/keys" ] || { echo 'no keys'; return 1; }
    while read -r key fallback; do
        fallback=${fallback//\"/}
        fallback=${fallback//\*/\\*} # scdoc takes a bare one as markup
        case $fallback in
        null) want="*$key* (required" ;;
        '') want="*$key* (default empty" ;;
        *) want="*$key* (default $fallback" ;;
        esac
        if ! grep -qF -- "$want" "$man5"; then
            echo "$man5:1: lacks $want"
            bad=1
        fi
    done <"$scratch_dir/keys"
    return "$bad"
}

check_metrics() { # FOLDER
    local name bad=0 metrics=$1/METRICS.md
    mapfile -t files < <(project_files . c | grep "^$1/" || true)
    [ "${#files[@]}" -gt 0 ] || return 0
    grep -nohE '"baton_[a-z0-9_]+' "${files[@]}" | sed 's/.*"//' | sort -u \
        >"$scratch_dir/used"
    for name in $(cat "$scratch_dir/used"); do
        if ! grep -qwF -- "$name" "$metrics" 2>/dev/null; then
            grep -nF "\"$name" "${files[@]}" /dev/null | head -1 |
                sed -E "s/^([^:]*:[0-9]*):.*/\1: $name is not in METRICS.md/"
            bad=1
        fi
    done
    for name in $(grep -ohE '`baton_[a-z0-9_]+' "$metrics" 2>/dev/null |
        tr -d '`' | grep -v '_$' | sort -u); do
        if ! grep -qxF -- "$name" "$scratch_dir/used" &&
            ! grep -qxF -- "${name%_*}" "$scratch_dir/used"; then
            echo "$metrics:1: $name is not in the program"
            bad=1
        fi
    done
    return "$bad"
}

check() {
    local bad=0
    baton=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
    cd "$1"
    check_commands || bad=1
    check_keys || bad=1
    check_metrics orchestrator/shell || bad=1
    check_metrics orchestrator/index || bad=1
    check_metrics orchestrator/events || bad=1
    check_metrics orchestrator/agent || bad=1
    return "$bad"
}

scratch
if [ "${1:-}" = --selftest ]; then
    t=$scratch_dir/t
    mkdir -p "$t/deploy/man" "$t/orchestrator/shell"
    cat >"$t/baton" <<'END'
#!/bin/sh
case "$*" in
--help) printf 'usage\n\ncommands:\n  go  do\n\nmore\n' ;;
'help go') printf 'usage\n\noptions:\n  -o, --output F  x\n' ;;
check*) echo '{"keys":[{"key":"a.b","default":"3","values":"x"}]}' ;;
esac
END
    chmod +x "$t/baton"
    good() {
        printf '## go\n*-o*, *--output* _F_\n' >"$t/$man1"
        printf '*a.b* (default 3; x)\n' >"$t/$man5"
        printf '`baton_x_total`\n' >"$t/$metrics"
        printf 'f("baton_x_total");\n' >"$t/orchestrator/shell/m.c"
    }
    good
    expect_clean "$0" "$t" "$t/baton"
    printf '## go\n' >"$t/$man1"
    expect_fault "lacks *--output*" "$0" "$t" "$t/baton"
    printf '## stop\n' >"$t/$man1"
    expect_fault "no section '## go'" "$0" "$t" "$t/baton"
    good
    printf '*a.b* (default 4)\n' >"$t/$man5"
    expect_fault 'lacks *a.b* (default 3' "$0" "$t" "$t/baton"
    good
    printf '\nf("baton_y");\n' >>"$t/orchestrator/shell/m.c"
    expect_fault 'm.c:3: baton_y is not in METRICS.md' "$0" "$t" "$t/baton"
    good
    printf '`baton_old`\n' >>"$t/$metrics"
    expect_fault 'baton_old is not in the program' "$0" "$t" "$t/baton"
    good
    for folder in index events agent; do
        mkdir -p "$t/orchestrator/$folder"
        printf 'f("baton_%s_x");\n' "$folder" >"$t/orchestrator/$folder/m.c"
        expect_fault "$folder/m.c:1: baton_${folder}_x is not in METRICS.md" \
            "$0" "$t" "$t/baton"
        rm -r "$t/orchestrator/$folder"
    done
    exit 0
fi
check "$1" "$2"
