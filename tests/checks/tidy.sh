#!/usr/bin/env bash
# clang-tidy 14 over our own .c files (not the tests). A file whose text,
# headers and rules are as at its last clean run is not looked at again. Exit
# 77 where clang-tidy is not installed.
#   tidy.sh ROOT BUILD_DIR | --selftest
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/lib.sh"

tool=clang-tidy-14
command -v "$tool" >/dev/null || { echo "no $tool: skipped"; exit 77; }

# There are findings, and all stand in headers of libraries.
library_only() { # LOG
    grep -q ': error: ' "$1" &&
        ! grep ': error: ' "$1" | grep -qv '^/usr/'
}

# One file: the stamp's name is the digest of all that could change the answer.
# A finding inside a library's header is not ours.
one() { # BUILD_DIR COMMON_DIGEST FILE
    local stamp log
    stamp=$1/tidy/$( (echo "$2 $3"; cat "$3") | sha256sum | cut -c1-32)
    log=$stamp.log
    [ -e "$stamp" ] && return 0
    # The analyzer may look at a sixth of its usual number of states of a
    # function: some of ours have it look at all it may, for ten seconds, and
    # paths through functions are nine tenths of the time of all checks.
    if "$tool" -p "$1" --quiet --extra-arg=-Xclang \
        --extra-arg=-analyzer-config --extra-arg=-Xclang \
        --extra-arg=max-nodes=37500 "$3" >"$log" 2>&1 ||
        library_only "$log"; then
        rm -f "$log"
        : >"$stamp"
    else
        # Without its counts of suppressed warnings.
        grep -vE '^[0-9]+ warnings? ' "$log" || true
        rm -f "$log"
        return 1
    fi
}
# Other tests run beside it and must not notice.
gently=(nice -n 19)
! chrt --idle 0 true 2>/dev/null || gently=(chrt --idle 0)
export tool
export -f one library_only

check() {
    local root build common
    root=$(cd "$1" && pwd)
    build=$(cd "$2" && pwd)
    cd "$root"
    mkdir -p "$build/tidy"
    # Only what this build compiles has its flags known.
    mapfile -t files < <(project_files . c | grep -v '^tests/' |
        while read -r f; do
            if grep -qF "/$f\"" "$build/compile_commands.json"; then
                echo "$f"
            fi
        done)
    [ "${#files[@]}" -gt 0 ] || { echo 'no compiled files'; return 1; }
    common=$(project_files . h | xargs -r cat .clang-tidy | sha256sum |
        cut -c1-32)
    printf '%s\0' "${files[@]}" |
        "${gently[@]}" xargs -0 -P "$(nproc)" -n 1 bash -c 'one "$@"' one "$build" "$common" ||
        return 1
}

if [ "${1:-}" = --selftest ]; then
    scratch
    cp "$here/../../.clang-tidy" "$scratch_dir/"
    cat >"$scratch_dir/compile_commands.json" <<END
[{"directory": "$scratch_dir", "command": "cc -c a.c",
  "file": "$scratch_dir/a.c"}]
END
    printf 'int f(int a);\nint f(int a)\n{\n    return a;\n}\n' \
        >"$scratch_dir/a.c"
    expect_clean "$0" "$scratch_dir" "$scratch_dir"
    printf 'int f(int a);\nint f(int a)\n{\n    return a / (a - a);\n}\n' \
        >"$scratch_dir/a.c"
    expect_fault 'a.c:4' "$0" "$scratch_dir" "$scratch_dir"
    exit 0
fi
check "$1" "$2"
