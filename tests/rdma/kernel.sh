#!/usr/bin/env bash
# The guest's kernel: finds Debian's stock package by apt, takes out of it the
# uncompressed kernel and the few modules a guest needs, and prints the folder
# that holds them. Built once, then used again; two at once wait for a lock.
#   kernel.sh [--refresh]      --refresh: ask apt even when one is there
# Nothing is used that does not match the sums written when it was built, and
# a folder appears under its name only when it is whole. Exit 77: cannot be had
# here (the reason is the last line on stderr).
# BATON_RDMA_CACHE: where (default ~/.cache/baton/rdma).
set -euo pipefail

cache=${BATON_RDMA_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/baton/rdma}
recipe=1 # a change of what is taken out makes a new folder
refresh=
case ${1:-} in
'') ;;
--refresh) refresh=1 ;;
*)
    sed -n '2,10s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac

say() { printf 'kernel: %s\n' "$*" >&2; }
skip() {
    say "skipped: $*"
    exit 77
}
need() {
    local tool
    for tool; do
        command -v "$tool" >/dev/null || skip "$tool is not installed"
    done
}

# Groups of modules, loaded in this order by the guest.
wanted() {
    case $1 in
    root) echo virtio_pci 9pnet_virtio 9p overlay ;;
    wire) echo virtio_net veth ;;
    shape) echo sch_netem sch_tbf ;;
    rdma) echo crc32_generic ib_uverbs rdma_ucm rdma_rxe ;;
    esac
}
groups='root wire shape rdma'

# ---- the package ----

apt_args=()
# apt's own lists where they know the package; else lists of our own, which
# need no rights on the system's.
find_package() {
    package=$(ask_apt)
    [ -z "$package" ] || return 0
    say 'apt does not know linux-image-amd64: fetching lists'
    mkdir -p "$cache/apt/lists/partial" "$cache/apt/archives/partial"
    apt_args=(-o "Dir::State=$cache/apt" -o "Dir::Cache=$cache/apt"
        -o Dir::State::status=/var/lib/dpkg/status)
    apt-get "${apt_args[@]}" -q update >&2 ||
        skip 'apt-get update failed, and no kernel is in the cache'
    package=$(ask_apt)
    [ -n "$package" ] ||
        skip 'apt has no linux-image-amd64 (not Debian on amd64?)'
}

# linux-image-amd64 is a name for the current one: follow it. The cloud
# flavour lacks soft-RoCE and is never what it points to.
ask_apt() {
    apt-cache "${apt_args[@]}" depends linux-image-amd64 2>/dev/null |
        awk '$1 == "Depends:" && $2 ~ /^linux-image-[0-9].*-amd64$/ &&
             $2 !~ /cloud/ { print $2; exit }' || true
}

fetch() { # INTO: one verified .deb
    local sum file
    sum=$(apt-cache "${apt_args[@]}" show --no-all-versions "$package" |
        awk '$1 == "SHA256:" { print $2; exit }')
    [ -n "$sum" ] || skip "apt gives no SHA256 for $package"
    say "fetching $package"
    (cd "$1" && apt-get "${apt_args[@]}" -q download "$package" >&2) ||
        skip "apt-get download $package failed"
    file=$(find "$1" -maxdepth 1 -name '*.deb')
    [ -f "$file" ] || skip "apt-get download left no file for $package"
    echo "$sum  $file" | sha256sum --quiet -c - >&2 ||
        skip "$package was torn on its way"
}

# ---- what is taken out ----

# The ELF inside the boot image: QEMU enters it directly, so that nothing is
# unpacked under emulation. Without it the boot image itself will do.
take_kernel() { # BZIMAGE OUT
    local magic tool at
    for magic in '\xFD7zXZ\x00:xz' '\x28\xB5\x2F\xFD:zstd' '\x1F\x8B\x08:gzip'
    do
        tool=${magic##*:}
        command -v "$tool" >/dev/null || continue
        at=$(LC_ALL=C grep -obUaP -m1 "${magic%:*}" "$1" | head -n1 |
            cut -d: -f1) || true
        [ -n "$at" ] || continue
        # What follows the stream is noise to the unpacker: look at the result.
        tail -c +"$((at + 1))" "$1" | "$tool" -dc >"$2" 2>/dev/null || true
        if [ "$(head -c 4 "$2" | od -An -tx1 | tr -d ' ')" = 7f454c46 ]; then
            return
        fi
    done
    say 'no ELF kernel inside the boot image: booting that, which is slower'
    cp "$1" "$2"
}

take_modules() { # UNPACKED VERSION OUT
    local root=$1 version=$2 out=$3 group name path
    depmod -b "$root" "$version"
    mkdir -p "$out/tree/modules"
    for group in $groups; do
        for name in $(wanted "$group"); do
            modprobe -d "$root" -S "$version" --show-depends "$name" ||
                skip "$package has no module $name"
        done | awk '$1 == "insmod" { print $2 }' >"$out/paths.$group"
        while read -r path; do
            name=$(basename "$path")
            [ ! -e "$out/tree/modules/$name" ] || continue
            cp "$path" "$out/tree/modules/"
            echo "$name"
        done <"$out/paths.$group" >"$out/tree/modules/$group"
        rm "$out/paths.$group"
    done
}

build() { # WORK: a scratch folder beside the final one
    local work=$1 version
    mkdir -p "$work/deb" "$work/root" "$work/out"
    fetch "$work/deb"
    dpkg-deb -x "$work"/deb/*.deb "$work/root"
    version=${package#linux-image-}
    [ -f "$work/root/boot/vmlinuz-$version" ] ||
        skip "$package holds no boot/vmlinuz-$version"
    take_kernel "$work/root/boot/vmlinuz-$version" "$work/out/vmlinux"
    take_modules "$work/root" "$version" "$work/out"
    mkdir "$work/out/tree/bin"
    cp "$(command -v busybox)" "$work/out/tree/bin/busybox"
    (cd "$work/out/tree" && find . | cpio -o -H newc --quiet) \
        >"$work/out/base.cpio"
    rm -r "$work/out/tree"
    echo "$version" >"$work/out/version"
    (cd "$work/out" && sha256sum vmlinux base.cpio version >sums && sync -f .)
}

whole() { # FOLDER
    [ -f "$1/sums" ] && (cd "$1" && sha256sum --status -c sums)
}

newest_whole() {
    local folder
    while read -r folder; do
        if whole "$folder"; then
            echo "$folder"
            return
        fi
        say "$folder is damaged: removed"
        rm -rf "$folder"
    done < <(find "$cache" -mindepth 1 -maxdepth 1 -type d \
        -name "*.v$recipe" 2>/dev/null | sort -rV)
}

umask 022
mkdir -p "$cache" 2>/dev/null || skip "cannot write to $cache"
need flock sha256sum
exec 9>"$cache/lock"
flock -w 600 9 || skip "somebody holds $cache/lock for ten minutes"
have=$(newest_whole)
if [ -n "$have" ] && [ -z "$refresh" ]; then
    echo "$have"
    exit
fi
need apt-get apt-cache dpkg-deb depmod modprobe cpio busybox
find_package
final=$cache/${package#linux-image-}.v$recipe
if [ "$have" != "$final" ]; then
    find "$cache" -mindepth 1 -maxdepth 1 -name 'work.*' -exec rm -rf {} +
    work=$(mktemp -d "$cache/work.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    build "$work"
    mv "$work/out" "$final"
fi
echo "$final"
