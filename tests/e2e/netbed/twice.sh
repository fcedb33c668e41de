#!/usr/bin/env bash
# Run a measurement; when it fails, once more, and say so: rates are judged on
# two processors that others may be using. What fails twice is a fault.
#   twice.sh SCRIPT [ARG...]
set -u
"$@" && exit 0
code=$?
[ "$code" -eq 77 ] && exit 77
echo "== failed with $code: a second and last try"
exec "$@"
