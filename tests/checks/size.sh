#!/usr/bin/env bash
# Functions of at most 70 lines, files of at most 1,000, nothing at the top of
# the tree that the layout does not name, folder READMEs of at most 100 lines
# (the front page: 150).
#   size.sh ROOT | --selftest
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/lib.sh"

layout='CMakeLists.txt CMakePresets.json README.md LICENSE orchestrator transfer planner include tests bench deploy'

check_functions() {
    ctags --languages=C --c-kinds=f --fields=ne -o - "${files[@]}" | awk '
        {
            line = end = 0
            for (i = 4; i <= NF; i++) {
                if ($i ~ /^line:/) line = substr($i, 6)
                if ($i ~ /^end:/) end = substr($i, 5)
            }
            if (end - line + 1 > 70) {
                printf "%s:%d: function %s has %d lines (70)\n", $2, line, $1,
                       end - line + 1
                bad = 1
            }
        }
        END { exit bad }' FS='\t'
}

check_lengths() { # MAX FILE...
    local max=$1
    shift
    [ $# -eq 0 ] || awk -v max="$max" '
        FNR == max + 1 {
            printf "%s:%d: file longer than %d lines\n", FILENAME, FNR, max
            bad = 1
        }
        END { exit bad }' "$@"
}

check_layout() {
    local bad=0 name
    for name in $(project_files . | cut -d/ -f1 | sort -u); do
        case " $layout " in *" $name "*) continue ;; esac
        case $name in .*) continue ;; esac
        echo "$name:1: not in the top-level layout"
        bad=1
    done
    return "$bad"
}

check() {
    local bad=0
    cd "$1"
    mapfile -t files < <(project_files . c h)
    mapfile -t readmes < <(project_files . md | grep -E '/README\.md$' || true)
    [ "${#files[@]}" -gt 0 ] || { echo 'no source files'; return 1; }
    check_functions || bad=1
    check_lengths 1000 "${files[@]}" || bad=1
    check_lengths 100 "${readmes[@]}" || bad=1
    [ ! -e README.md ] || check_lengths 150 README.md || bad=1
    check_layout || bad=1
    return "$bad"
}

scratch
if [ "${1:-}" = --selftest ]; then
    t=$scratch_dir/t
    mkdir -p "$t/planner"
    printf 'int f(void)\n{\n    return 1;\n}\n' >"$t/planner/a.c"
    expect_clean "$0" "$t"
    { printf '\nint f(int a)\n{\n'; for i in $(seq 67); do echo '    a++;'; done
      printf '    return a;\n}\n'; } >"$t/planner/a.c"
    expect_fault 'a.c:2: function f has 71 lines' "$0" "$t"
    seq -f '/* %g */' 1001 >"$t/planner/a.c"
    expect_fault 'a.c:1001' "$0" "$t"
    echo 'int a;' >"$t/planner/a.c"
    mkdir "$t/misc"
    echo x >"$t/misc/a.c"
    expect_fault 'misc:1: not in the top-level layout' "$0" "$t"
    exit 0
fi
check "$1"
