#!/usr/bin/env bash
# clang-format 14 has nothing to change. Exit 77 where it is not installed.
#   format.sh ROOT | --selftest
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/lib.sh"

tool=clang-format-14
command -v "$tool" >/dev/null || { echo "no $tool: skipped"; exit 77; }

check() {
    cd "$1"
    mapfile -t files < <(project_files . c h)
    [ "${#files[@]}" -gt 0 ] || { echo 'no source files'; return 1; }
    "$tool" --style=file --dry-run -Werror "${files[@]}" || return 1
}

if [ "${1:-}" = --selftest ]; then
    scratch
    cp "$here/../../.clang-format" "$scratch_dir/"
    printf 'int f(void)\n{\n    return 1;\n}\n' >"$scratch_dir/a.c"
    expect_clean "$0" "$scratch_dir"
    printf 'int f(void) {\n  return 1; }\n' >"$scratch_dir/a.c"
    expect_fault 'a.c:1' "$0" "$scratch_dir"
    exit 0
fi
check "$1"
