#!/usr/bin/env bash
# Install what is needed, build, and run every test. Last line: ctest's
# summary of the dev build. Non-zero when anything fails.
#   tests/run.sh [--quick] [-j N]      --quick: the dev build alone
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
jobs=$(nproc)
quick=

usage() {
    sed -n '2,4s/^# \{0,1\}//p' "$0" >&2
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

step() { printf '\n== %s (%ss)\n' "$*" "$SECONDS"; }

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

build() { # PRESET [CMAKE_BUILD_ARG...]
    local preset=$1
    shift
    run cmake --preset "$preset" >"build/$preset.configure.log" 2>&1 || {
        cat "build/$preset.configure.log"
        return 1
    }
    run cmake --build --preset "$preset" -j "$jobs" "$@"
}

mkdir -p build
step 'packages'
deploy/install_packages.sh --test
if [ -z "$quick" ]; then
    step 'clang build'
    build clang || true
    step 'address and undefined-behaviour sanitizers'
    if build asan; then
        export ASAN_OPTIONS=detect_leaks=1:abort_on_error=0
        export UBSAN_OPTIONS=print_stacktrace=1
        run ctest --preset asan -j "$jobs" \
            -L '^(unit|property|scenario|conformance|fuzz|torture)$' || true
        run ctest --preset asan -j 1 -L '^e2e$' -LE '^slow$' || true
        unset ASAN_OPTIONS UBSAN_OPTIONS
    fi
fi
step 'dev build'
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
ctest --preset dev -j "$jobs" 2>&1 | tee build/dev.ctest.log |
    awk '/tests passed,/ { summary = $0; next }
         { print; fflush() }
         END { print summary }' || code=1
exit "$code"
