# Shared by the checks: file lists and the self-test helper. Sourced.

# Paths, relative to ROOT, of the files with one of the given endings that
# belong to the project: tracked or not, but not ignored; no ending: every
# file. Outside git: all in the tree.
project_files() { # ROOT ENDING...
    local root=$1 ending args=()
    shift
    for ending in "$@"; do args+=("*.$ending"); done
    if [ -e "$root/.git" ] &&
        git -c safe.directory='*' -C "$root" ls-files -co \
            --exclude-standard -- "${args[@]}" 2>/dev/null |
        (cd "$root" && while read -r f; do
            if [ -f "$f" ]; then echo "$f"; fi
        done) | sort -u; then
        return
    fi
    [ $# -gt 0 ] || args=('*')
    (cd "$root" && for ending in "${args[@]}"; do
        find . -path ./build -prune -o -type f -name "$ending" -print
    done) | sed 's,^\./,,' | sort -u
}

# The check must fail on what is bad and name each place.
expect_fault() { # WHAT_MUST_BE_PRINTED COMMAND...
    local want=$1 out code=0
    shift
    out=$("$@" 2>&1) || code=$?
    if [ "$code" -ne 1 ]; then
        printf 'selftest: exit %s instead of 1\n%s\n' "$code" "$out"
        exit 1
    fi
    if ! grep -qF -- "$want" <<<"$out"; then
        printf 'selftest: "%s" was not reported:\n%s\n' "$want" "$out"
        exit 1
    fi
}

expect_clean() { # COMMAND...
    local out code=0
    out=$("$@" 2>&1) || code=$?
    if [ "$code" -ne 0 ]; then
        printf 'selftest: exit %s on a good sample\n%s\n' "$code" "$out"
        exit 1
    fi
}

scratch() {
    scratch_dir=$(mktemp -d)
    trap 'rm -rf "$scratch_dir"' EXIT
}
