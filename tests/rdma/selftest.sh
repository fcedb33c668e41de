#!/usr/bin/env bash
# Do vm.sh and kernel.sh do what they say? The cache is tested with a package
# of our own making (no network): built once by two at a time, a torn one and a
# damaged folder refused. Then three machines: one that looks at everything
# from inside, one that hangs, one that dies.
#   selftest.sh
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0
fault() {
    echo "FAILED: $*"
    failed=1
}

# ---- the cache ----

real=$("$here/kernel.sh") || exit $?

# Modules of the real kernel, and any ELF file as the kernel: small, and whole
# enough for depmod, modprobe and the unpacking of the boot image.
fake_package() {
    local tree=$dir/package version=9.9.9-amd64
    mkdir -p "$tree/DEBIAN" "$tree/boot" "$tree/lib/modules/$version/kernel"
    (cd "$dir" && cpio -id --quiet 'modules/*' <"$real/base.cpio")
    cp "$dir"/modules/*.ko "$tree/lib/modules/$version/kernel/"
    { echo noise; xz -c "$(command -v busybox)"; echo noise; } \
        >"$tree/boot/vmlinuz-$version"
    printf '%s\n' "Package: linux-image-$version" 'Version: 1' \
        'Architecture: amd64' 'Maintainer: test <test@example.org>' \
        'Description: a small kernel' >"$tree/DEBIAN/control"
    dpkg-deb -b "$tree" "$dir/fake.deb" >/dev/null
}
# apt as kernel.sh uses it, for that package; each download leaves a line.
fake_apt() {
    mkdir -p "$dir/bin"
    cat >"$dir/bin/apt-cache" <<EOS
#!/bin/sh
case \$* in
*depends*) echo '  Depends: linux-image-9.9.9-amd64' ;;
*show*) echo "SHA256: $(sha256sum "$dir/fake.deb" | cut -d' ' -f1)" ;;
esac
EOS
    cat >"$dir/bin/apt-get" <<EOS
#!/bin/sh
case \$* in *download*) ;; *) exit 1 ;; esac
echo one >>"$dir/downloads"
sleep 1
cp "$dir/fake.deb" ./linux-image.deb
[ ! -e "$dir/torn" ] || truncate -s -100 ./linux-image.deb
EOS
    chmod +x "$dir"/bin/*
}
cached() { # OUT: kernel.sh with that apt and a cache of its own
    PATH=$dir/bin:$PATH BATON_RDMA_CACHE=$dir/cache "$here/kernel.sh" \
        >"$1" 2>"$1.err"
}
# The same with an apt that knows nothing and reaches nothing.
offline() {
    mkdir -p "$dir/none"
    printf '#!/bin/sh\nexit 100\n' >"$dir/none/apt-get"
    cp "$dir/none/apt-get" "$dir/none/apt-cache"
    chmod +x "$dir"/none/*
    PATH=$dir/none:$PATH BATON_RDMA_CACHE=$dir/cache "$here/kernel.sh" \
        >"$1" 2>"$1.err"
}
test_cache() {
    local code=0 folder
    fake_package
    fake_apt
    : >"$dir/torn"
    cached "$dir/o1" || code=$?
    [ "$code" = 77 ] && grep -q torn "$dir/o1.err" ||
        fault "torn package: exit $code, $(cat "$dir/o1.err")"
    [ -z "$(find "$dir/cache" -mindepth 1 -type d)" ] ||
        fault 'a torn package left something'
    rm "$dir/torn" "$dir/downloads"
    cached "$dir/o1" &
    cached "$dir/o2" || fault "second of two: $(cat "$dir/o2.err")"
    wait $! || fault "first of two: $(cat "$dir/o1.err")"
    cmp -s "$dir/o1" "$dir/o2" || fault 'two at once differ'
    [ "$(wc -l <"$dir/downloads")" = 1 ] || fault 'two at once: two downloads'
    folder=$(cat "$dir/o1")
    cmp -s "$folder/vmlinux" "$(command -v busybox)" ||
        fault 'not the file that was in the boot image'
    offline "$dir/o3" && cmp -s "$dir/o1" "$dir/o3" ||
        fault "a built one needs the network: $(cat "$dir/o3.err")"
    printf x | dd of="$folder/base.cpio" bs=1 seek=5000 conv=notrunc \
        status=none
    code=0
    offline "$dir/o4" || code=$?
    [ "$code" = 77 ] || fault "damaged: exit $code"
    [ ! -e "$folder" ] || fault 'a damaged folder is still there'
}
test_cache

# ---- the machine ----

inside=$dir/inside.sh
cat >"$inside" <<'EOS'
set -u
bad() { echo "inside: $*"; exit 1; }
[ "$(rdma link show | grep -c 'state ACTIVE')" = 4 ] || bad 'four ports'
ibv_devinfo >/dev/null 2>&1 || [ -e /dev/infiniband/uverbs3 ] || bad devices
[ -e /dev/infiniband/rdma_cm ] || bad rdma_cm
grep -q '10.77.1.2' <(ip -br addr show d1) || bad address
tc qdisc show dev s1 | grep -q 'netem.*loss 3%' || bad netem
tc qdisc show dev d0 | grep -q 'tbf.*rate 200Mbit' || bad rate
[ "$WORD" = 'two words' ] || bad environment
[ -z "${BATON_NOT_PASSED:-}" ] || bad 'a variable of the host came in'
[ "$(ulimit -l)" = 64 ] || bad memlock
# CAP_IPC_LOCK is bit 14: with it the limit would not count.
caps=0x$(awk '$1 == "CapEff:" { print $2 }' /proc/self/status)
[ $((caps >> 14 & 1)) = 0 ] || bad 'may lock what it likes'
carrier() { cat /sys/class/net/d1/carrier; }
[ "$(carrier)" = 1 ] || bad 'down too early'
until [ "$(carrier)" = 0 ]; do sleep 0.05; done
until [ "$(carrier)" = 1 ]; do sleep 0.05; done
echo written >"$SHARE/file" || bad share
echo x >/etc/baton-vm-was-here || bad 'the layer on top'
echo seen
exit 3
EOS
code=0
BATON_NOT_PASSED=1 "$here/vm.sh" --netem '1:loss 3%' --rate 0:200mbit \
    --down 1:4:1 --memlock 64 --env 'WORD=two words' --env "SHARE=$dir" \
    --share "$dir" --keep "$dir/keep" --timeout 120 -- bash "$inside" \
    >"$dir/out" 2>&1 || code=$?
[ "$code" = 3 ] && [ "$(cat "$dir/out")" = seen ] ||
    fault "exit $code: $(cat "$dir/out")"
[ "$(cat "$dir/file")" = written ] || fault 'the share was not written'
[ ! -e /etc/baton-vm-was-here ] || fault 'the guest wrote to the host'
grep -q rdma "$dir/keep/times" || fault 'nothing kept'

ends() { # EXPECTED SECONDS COMMAND
    code=0
    "$here/vm.sh" --rails 1 --timeout "$2" -- sh -c "$3" >"$dir/out" 2>&1 ||
        code=$?
    [ "$code" = "$1" ] || fault "$3: exit $code: $(cat "$dir/out")"
}
ends 124 12 'sleep 1000'
ends 125 60 'echo c >/proc/sysrq-trigger; sleep 1000'
code=0
"$here/vm.sh" --rails 9 -- true >/dev/null 2>&1 || code=$?
[ "$code" = 2 ] || fault "nine rails: exit $code"

[ "$failed" = 0 ] && echo 'all as it says'
exit "$failed"
