#!/usr/bin/env bash
# The pure layers call nothing but memory, string and maths functions: what
# their archives leave undefined is compared with pure.allow.
#   pure.sh ARCHIVE... | --selftest
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/lib.sh"

check() {
    local names
    [ $# -gt 0 ] || { echo 'no pure archive given'; return 1; }
    names=$(grep -v '^#' "$here/pure.allow" | paste -sd'|')
    # "libx.a:y.c.o: U name" for undefined symbols, "T name" for ours.
    nm -A "$@" 2>/dev/null | awk -v allowed="^($names)\$" '
        NF < 2 { next }
        { type = $(NF - 1); name = $NF }
        type ~ /^[TtDdBbRrVWC]$/ { defined[name] = 1 }
        type == "U" { where[NR] = $1; what[NR] = name }
        END {
            for (i = 1; i <= NR; i++) {
                if (!(i in what) || what[i] in defined ||
                    what[i] ~ allowed) continue
                sub(/:[0-9a-f]*$/, "", where[i])
                sub(/^.*\//, "", where[i])
                printf "%s: calls %s\n", where[i], what[i]
                bad = 1
            }
            if (NR == 0) { print "no symbols at all"; bad = 1 }
            exit bad
        }'
}

if [ "${1:-}" = --selftest ]; then
    scratch
    cd "$scratch_dir"
    cat >a.c <<'END'
#include <stdlib.h>
#include <string.h>
size_t f(const char *s);
void *g(size_t n);
size_t f(const char *s) { return strlen(s); }
#ifdef BAD
void *g(size_t n) { return malloc(n); }
#endif
END
    cc -c -fno-builtin a.c -o a.o && ar rcs libgood.a a.o
    cc -c -fno-builtin -DBAD a.c -o b.o && ar rcs libbad.a b.o
    expect_clean "$here/pure.sh" libgood.a
    expect_fault 'libbad.a:b.o: calls malloc' "$here/pure.sh" libbad.a
    expect_fault 'no pure archive' "$here/pure.sh"
    exit 0
fi
check "$@"
