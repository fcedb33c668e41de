#!/usr/bin/env bash
# Inside the guest: everything about one fabric in one boot, part after part,
# each with fresh devices: what one breaks the next does not see.
#   guest_all.sh verbs|ucx RDMA_PULL [PROGRAM...]
# Suites are programs of tests/conformance (names with test_), `baton` means
# two agents; anything else is run as it is.
set -u
fabric=$1 pull=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d)
. "$here/guest_lib.sh"
suites=() others=()
for program; do
    case $(basename "$program") in
    test_*) suites+=("$program") ;;
    *) others+=("$program") ;;
    esac
done
part() { # NAME COMMAND...
    local name=$1 began=$SECONDS
    shift
    "$@" || fault "$fabric $name"
    figure "$fabric $name: $((SECONDS - began)) s"
    devices_anew
}
part refusals bash "$here/guest_refusals.sh" "$pull" "$fabric"
part faults bash "$here/guest_faults.sh" "$pull" "$fabric"
for program in ${others+"${others[@]}"}; do
    case $(basename "$program") in
    baton) part agents bash "$here/guest_agents.sh" "$program" "$fabric" ;;
    *) part "$(basename "$program")" "$program" ;;
    esac
done
[ ${#suites[@]} -eq 0 ] ||
    part conformance bash "$here/guest_conformance.sh" "$fabric" "${suites[@]}"
rm -rf "$dir"
exit "$((faults > 0))"
