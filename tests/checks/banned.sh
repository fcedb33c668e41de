#!/usr/bin/env bash
# Banned calls, typedef'd structs, unfinished-work markers.
#   banned.sh ROOT | --selftest
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/lib.sh"

calls='strcpy|strcat|sprintf|vsprintf|gets|strtok|strtok_r|atoi|atol|atoll|atof|strncpy|alloca|system|popen'

check() {
    local bad=0
    cd "$1"
    mapfile -t files < <(project_files . c h)
    [ "${#files[@]}" -gt 0 ] || { echo 'no source files'; return 1; }
    awk -f "$here/strip.awk" "${files[@]}" >"$scratch_dir/code"
    if grep -nE "(^|[^A-Za-z0-9_])($calls)[ ]*\(" "$scratch_dir/code" |
        sed -E 's/^[0-9]+:/banned call: /'; then bad=1; fi
    if grep -E 'typedef[ ]+(const[ ]+)?(struct|union|enum)' \
        "$scratch_dir/code" | grep -vF '(*' | sed 's/^/typedef of a struct, union or enum: /'
    then bad=1; fi
    if grep -nwE 'TODO|FIXME|XXX' "${files[@]}" /dev/null |
        sed 's/^/unfinished: /'; then bad=1; fi
    return "$bad"
}

scratch
if [ "${1:-}" = --selftest ]; then
    mkdir "$scratch_dir/t"
    good='/* strcpy( in a comment */ const char *s = "strcpy(x)"; my_gets(s);'
    printf '%s\n' "$good" >"$scratch_dir/t/a.c"
    expect_clean "$0" "$scratch_dir/t"
    printf '\nint f(char *a)\n{\n    strcpy(a, "x");\n}\n' \
        >"$scratch_dir/t/a.c"
    expect_fault 'a.c:4' "$0" "$scratch_dir/t"
    printf 'typedef struct x x_t;\n' >"$scratch_dir/t/a.c"
    expect_fault 'a.c:1' "$0" "$scratch_dir/t"
    printf '\n/* %s: later */\nint a;\n' 'TO''DO' >"$scratch_dir/t/a.c"
    expect_fault 'a.c:2' "$0" "$scratch_dir/t"
    exit 0
fi
check "$1"
