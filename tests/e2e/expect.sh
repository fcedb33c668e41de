# Sourced by the checks of the command line: expect() and its counter.
# Wants dir, a scratch folder.
# shellcheck shell=bash
failed=0

# expect CODE STDOUT_PATTERN STDERR_PATTERN COMMAND...; an empty pattern means
# that nothing may be printed there.
expect() {
    local code=$1 out=$2 err=$3 got=0 stream pattern
    shift 3
    "$@" >"$dir/out" 2>"$dir/err" </dev/null || got=$?
    if [ "$got" -ne "$code" ]; then
        printf 'exit %s, expected %s: %s\n' "$got" "$code" "$*"
        cat "$dir/err"
        failed=1
    fi
    for stream in out err; do
        pattern=${!stream}
        if [ -z "$pattern" ]; then
            [ ! -s "$dir/$stream" ] && continue
        elif grep -qE -- "$pattern" "$dir/$stream"; then
            continue
        fi
        printf 'std%s is not as expected ("%s"): %s\n' "$stream" "$pattern" "$*"
        cat "$dir/$stream"
        failed=1
    done
}
