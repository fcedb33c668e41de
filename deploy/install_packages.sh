#!/usr/bin/env bash
# Install what baton needs from packages.txt; does nothing when all is there.
#   install_packages.sh [--test] [--bench]     these sections as well
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
sections=build
for option in "$@"; do
    case $option in
    --test | --bench) sections="$sections ${option#--}" ;;
    *)
        sed -n '2,3s/^# \{0,1\}//p' "$0" >&2
        exit 2
        ;;
    esac
done

say() { printf 'packages: %s\n' "$*" >&2; }

# Lines of the wanted sections, without comments.
wanted() {
    awk -v want=" $sections " '
        { sub(/#.*/, ""); gsub(/[ \t]/, "") }
        /^\[/ { section = substr($0, 2, length($0) - 2); next }
        $0 != "" && index(want, " " section " ")' "$here/packages.txt"
}

installed() {
    dpkg-query -W -f '${Status}' "$1" 2>/dev/null |
        grep -q '^install ok installed$'
}

# apt-cache show also answers for names that are only referred to; policy's
# candidate is what could be installed.
known() {
    apt-cache policy "$1" 2>/dev/null |
        awk '/Candidate:/ && $2 != "(none)" { ok = 1 } END { exit !ok }'
}

# Lines of which no alternative is installed.
missing() {
    local line name ok
    while read -r line; do
        ok=
        for name in $(tr '|' ' ' <<<"${line#\?}"); do
            if installed "$name"; then ok=1; fi
        done
        if [ -z "$ok" ]; then echo "$line"; fi
    done < <(wanted)
}

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    say 'no apt here: install the equivalents of these yourself:'
    wanted >&2
    exit 1
fi
lines=$(missing)
if [ -z "$lines" ]; then
    say 'all there'
    exit 0
fi
sudo=
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
        say 'not root and no sudo: as root, run' "$0"
        exit 1
    fi
    sudo=sudo
fi
choose() {
    local line name found
    while read -r line; do
        found=
        for name in $(tr '|' ' ' <<<"${line#\?}"); do
            if known "$name"; then
                found=$name
                break
            fi
        done
        if [ -n "$found" ]; then
            echo "$found"
        elif [ "${line:0:1}" = '?' ]; then
            say "left out, apt does not know it: ${line#\?}"
        else
            say "apt does not know: $line"
            return 1
        fi
    done <<<"$lines"
}
# The network is asked only for what is required, or known by apt already.
if grep -qv '^?' <<<"$lines" || ! choose >/dev/null 2>&1; then
    say 'apt-get update'
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get -q update </dev/null >&2
fi
names=$(choose)
if [ -z "$names" ]; then
    exit 0
fi
say "apt-get install" $names
# shellcheck disable=SC2086 # one word per package
$sudo env DEBIAN_FRONTEND=noninteractive apt-get -q -y \
    --no-install-recommends install $names </dev/null >&2
