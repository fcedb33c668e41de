#!/usr/bin/env bash
# Install what is needed, build, and run every test. Last line: ctest's
# summary of the dev build. Non-zero when anything fails.
#   tests/run.sh [--quick] [-j N]      --quick: the dev build alone
# gcc builds dev, clang the sanitizers' build: both see every source with all
# warnings as errors. -j: processors to use (default: all).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
jobs=$(nproc)
quick=

usage() {
    sed -n '2,6s/^# \{0,1\}//p' "$0" >&2
    exit 2
}
while [ $# -gt 0 ]; do
    case $1 in
    --quick) quick=1 ;;
    -j) [ $# -ge 2 ] || usage; jobs=$2; shift ;;
    -j*) jobs=${1#-j} ;;
    *) usage ;;
    esac
    shift
done
case $jobs in '' | *[!0-9]* | 0) usage ;; esac
# Many tests wait most of their time: two more than there are processors.
# Those that want the machine for themselves say so (PROCESSORS, RUN_SERIAL).
beside=$((jobs + 2))

step_name= step_began=0
step() { # [NAME]: ends the one before
    [ -z "$step_name" ] || printf '== %s: %s s\n' "$step_name" \
        "$((SECONDS - step_began))"
    step_name=$* step_began=$SECONDS
    [ $# -eq 0 ] || printf '\n== %s (at %s s)\n' "$step_name" "$SECONDS"
}

# No test may wait for a terminal.
exec </dev/null
failed=

# Not under `set -e`: a failing build or suite does not hide the next one.
run() {
    "$@" || {
        failed="$failed
  $*"
        printf '== FAILED: %s\n' "$*"
        return 1
    }
}

build() { # PRESET
    run cmake --preset "$1" >"build/$1.configure.log" 2>&1 || {
        cat "build/$1.configure.log"
        return 1
    }
    run cmake --build --preset "$1" -j "$jobs"
}

# The ten slowest tests of a log of ctest.
slowest() { # LOG
    printf '\nslowest tests (seconds):\n'
    awk '/ Test +#[0-9]+: .* sec *$/ {
        sub(/.* Test +#[0-9]+: /, "")
        printf "%8.1f  %s\n", $(NF - 1), $1 }' "$1" | sort -rn | sed -n 1,10p
}

mkdir -p build
step 'packages'
deploy/install_packages.sh --test
if [ -z "$quick" ]; then
    step 'sanitizer build (clang)'
    if build asan; then
        step 'sanitizer tests'
        # They mostly wait: the dev build takes what they leave. What it says,
        # the next step says again.
        { chrt --idle 0 cmake --preset dev &&
            chrt --idle 0 cmake --build --preset dev -j "$jobs"; } \
            >build/dev.early.log 2>&1 &
        early=$!
        export ASAN_OPTIONS=detect_leaks=1:abort_on_error=0
        export UBSAN_OPTIONS=print_stacktrace=1
        run ctest --preset asan -j "$beside" -LE '^(slow|checks)$' \
            --output-log build/asan.ctest.log || true
        unset ASAN_OPTIONS UBSAN_OPTIONS
        wait "$early" || true
        slowest build/asan.ctest.log || true
    fi
fi
step 'dev build (gcc)'
if ! build dev; then
    printf '\nfailed:%s\n' "$failed"
    exit 1
fi
step 'dev tests'
code=0
if [ -n "$failed" ]; then
    printf 'failed before the dev tests:%s\n' "$failed"
    code=1
fi
# The summary line is held back so that it comes last.
ctest --preset dev -j "$beside" 2>&1 | tee build/dev.ctest.log |
    awk '/tests passed,/ { summary = $0; next }
         { print; fflush() }
         END { print summary >"build/dev.summary" }' || code=1
slowest build/dev.ctest.log || true
step
printf 'in all: %s s\n' "$SECONDS"
cat build/dev.summary
exit "$code"
