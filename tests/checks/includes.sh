#!/usr/bin/env bash
# Include edges between folders and of third-party headers: includes.allow. A
# private header is found in its own folder (planner/policies: or planner).
#   includes.sh ROOT | --selftest
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/lib.sh"

check() {
    local bad=0 at name folder
    cd "$1"
    mapfile -t files < <(project_files . c h)
    [ "${#files[@]}" -gt 0 ] || { echo 'no source files'; return 1; }
    grep -nE '^[ ]*#[ ]*include' "${files[@]}" /dev/null |
        sed -nE -e 's/^([^:]*:[0-9]+):[^"]*"([^"]*)".*/\1:q \2/p' \
            -e 's/^([^:]*:[0-9]+):[^<]*<([^>]*)>.*/\1:a \2/p' \
            >"$scratch_dir/includes"
    awk -f "$here/includes.awk" "$here/includes.allow" \
        "$scratch_dir/includes" || bad=1
    # Private headers must be near.
    while read -r at name; do
        case $name in baton/* | *..*) continue ;; esac
        # Unit tests of a folder's internals see that folder (INCLUDES).
        case $at in tests/*) continue ;; esac
        folder=$(dirname "${at%%:*}")
        if [ ! -e "$folder/$name" ] &&
            ! { [ "$folder" = planner/policies ] && [ -e "planner/$name" ]; }
        then
            echo "${at%:q}: $name: no such header in its own folder"
            bad=1
        fi
    done < <(grep ':q ' "$scratch_dir/includes")
    return "$bad"
}

scratch
if [ "${1:-}" = --selftest ]; then
    t=$scratch_dir/t
    mkdir -p "$t/planner/base" "$t/orchestrator/core" "$t/orchestrator/cli"
    bad() { # FILE INCLUDE WHAT
        printf '\n#include %s\n' "$2" >"$t/$1"
        expect_fault "$1:2: $3" "$0" "$t"
        rm "$t/$1"
    }
    printf '#include "baton/base/ids.h"\n#include <string.h>\n' \
        >"$t/planner/a.c"
    expect_clean "$0" "$t"
    bad planner/base/b.c '"baton/planner/cost.h"' baton/planner/cost.h
    bad orchestrator/core/b.c '"baton/orchestrator/config.h"' baton
    bad orchestrator/core/b.c '<time.h>' 'time.h: not for the pure'
    bad orchestrator/cli/b.c '<microhttpd.h>' 'microhttpd.h: a library'
    bad orchestrator/cli/b.c '<unknown/x.h>' 'unknown/x.h: no rule'
    bad orchestrator/cli/b.c '"../core/p.h"' '../core/p.h: a private'
    bad orchestrator/cli/b.c '"p.h"' 'p.h: no such header'
    exit 0
fi
check "$1"
