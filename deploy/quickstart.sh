#!/usr/bin/env bash
# From a fresh clone to the demo: packages, release build, `baton demo`.
#   deploy/quickstart.sh [OPTION OF baton demo...]
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

step() { printf '\n== %s\n' "$*" >&2; }
fail() {
    printf '\nquickstart: stopped in step "%s"\n' "$now" >&2
    printf 'the output above says why; running it again is safe\n' >&2
}
trap fail ERR

now='packages'
step '1/3 packages (deploy/packages.txt)'
deploy/install_packages.sh
now='build'
step '2/3 release build (build/release)'
cmake --preset release -DBATON_TESTS=OFF >&2
cmake --build --preset release --target baton >&2
baton=build/release/orchestrator/cli/baton
now='demo'
step "3/3 $baton demo $*"
"$baton" demo "$@"
trap - ERR
cat >&2 <<END

What to try next:
  $baton demo --uniform        equal links: the policies should tie
  $baton demo --keep           leave it up; prints URLs and a curl line
  $baton demo --output json    the table as data
  $baton sim                   policies on a simulated cluster of 16 nodes
  $baton check deploy/config/baton.yaml
  $baton serve --help          your own workers
  $baton topo                  this node's NICs, rails, and what costs bandwidth
  $baton agent --help          a node's KV pool and transfers (orchestrator/agent/README.md)
  $baton bench transfer        UCX tcp and shared memory beside ucx_perftest
  tests/run.sh                 every test
END
