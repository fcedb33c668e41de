#!/usr/bin/env bash
# Run a command in a small virtual machine that has real RDMA devices in
# software (soft-RoCE): the host's own files, read-only with a layer on top
# that is thrown away, so that programs of the build tree run as they are.
#   vm.sh [options] -- COMMAND [ARGUMENT...]
#     --rails N         1..4 rails (default 2): 10.77.<r>.1 on rxe_s<r>, and
#                       10.77.<r>.2 on rxe_d<r>, over a veth pair s<r> - d<r>
#     --netem R:SPEC    rail R delayed or lossy, e.g. '0:loss 1%', '1:delay 2ms'
#     --rate R:RATE     rail R limited, e.g. 1:200mbit (tbf)
#     --down R:AT[:FOR] rail R's link down AT seconds after the command began,
#                       up again FOR seconds later
#     --memlock KIB     locked memory of the command, which also loses the
#                       right to lock more (default: no limit)
#     --env N=V         variable of the command (others are not passed on)
#     --share DIR       DIR is writable for the guest, and stays written
#     --keep DIR        kernel messages and times are left there
#     --timeout S       default 120, boot included
#     --memory MIB      default 2048     --cpus N   default 2
# BATON_RDMA_KVM=1: by KVM (default: emulated, which runs everywhere).
# Exit: the command's status; 124 over the time, 125 guest died, 77 cannot run
# here (reason on stderr). Ends with the command; nothing stays behind.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

say() { printf 'vm: %s\n' "$*" >&2; }
skip() {
    say "skipped: $*"
    exit 77
}
usage() {
    [ $# -eq 0 ] || say "$*"
    sed -n '2,24s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

rails=2 timeout=120 memory=2048 cpus=2 memlock= keep=
shaping= downs=() envs=() shares=()
number() {
    case $2 in '' | *[!0-9]*) usage "$1 is not a number: $2" ;; esac
}
rail_of() { # R:REST
    case $1 in [0-3]:?*) ;; *) usage "not RAIL:...: $1" ;; esac
}
while [ $# -gt 0 ]; do
    option=$1
    [ "$option" != -- ] || { shift; break; }
    case $option in -h | --help) usage ;; esac
    [ $# -ge 2 ] || usage "$option: no value"
    value=$2
    shift 2
    case $option in
    --rails) number "$option" "$value"; rails=$value ;;
    --netem)
        rail_of "$value"
        shaping+="${value%%:*} netem limit 100000 ${value#*:}"$'\n'
        ;;
    --rate)
        rail_of "$value"
        shaping+="${value%%:*} tbf rate ${value#*:} burst 256kb limit 8mb"$'\n'
        ;;
    --down) rail_of "$value"; downs+=("$value") ;;
    --memlock) number "$option" "$value"; memlock=$value ;;
    --env) envs+=("$value") ;;
    --share) shares+=("$(realpath "$value")") ;;
    --keep) keep=$value ;;
    --timeout) number "$option" "$value"; timeout=$value ;;
    --memory) number "$option" "$value"; memory=$value ;;
    --cpus) number "$option" "$value"; cpus=$value ;;
    *) usage "no such option: $option" ;;
    esac
done
[ $# -gt 0 ] || usage 'no command'
[ "$rails" -ge 1 ] && [ "$rails" -le 4 ] || usage '--rails: 1..4'

# ---- can it be done here ----

qemu=qemu-system-x86_64
for tool in "$qemu" ip rdma tc setpriv sha256sum; do
    command -v "$tool" >/dev/null || PATH=$PATH:/usr/sbin:/sbin
    command -v "$tool" >/dev/null || skip "$tool is not installed"
done
[ "$(uname -m)" = x86_64 ] || skip "programs here are $(uname -m)'s"
"$qemu" -device help 2>/dev/null | grep -q '"virtio-9p-pci"' ||
    skip 'this QEMU has no 9p'
kernel=$("$here/kernel.sh") || exit $?

# ---- the job ----

job=$(mktemp -d "${TMPDIR:-/tmp}/baton-vm.XXXXXX")
pid=
cleanup() {
    if [ -n "$pid" ]; then
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    fi
    if [ -n "$keep" ]; then
        mkdir -p "$keep"
        cp -f "$job"/{dmesg,times,links,rc} "$keep/" 2>/dev/null || true
    fi
    rm -rf "$job"
}
trap cleanup EXIT
trap 'exit 143' TERM INT HUP

cp "$here/guest_net.sh" "$job/"
mkdir "$job/tree"
cp "$here/guest_init.sh" "$job/tree/init"
chmod 755 "$job/tree/init"
{ cat "$kernel/base.cpio"; (cd "$job/tree" && find . |
    cpio -o -H newc --quiet -R 0:0); } >"$job/initrd"
rm -r "$job/tree"
{
    printf 'rails=%q shaping=%q\n' "$rails" "$shaping"
    printf 'share=%q\n' "${shares[*]}"
} >"$job/settings"

# The command as a script of the guest: faults by the clock beside it.
{
    echo '#!/usr/bin/env bash'
    echo 'export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'
    echo 'export HOME=/root LANG=C.UTF-8 TERM=dumb BATON_IN_VM=1'
    for word in ${envs+"${envs[@]}"}; do printf 'export %q\n' "$word"; done
    for down in ${downs+"${downs[@]}"}; do
        IFS=: read -r rail at for_s <<<"$down"
        printf '(sleep %q; ip link set s%q down' "$at" "$rail"
        [ -z "$for_s" ] ||
            printf '; sleep %q; ip link set s%q up; %s' "$for_s" "$rail" \
                "ip neigh replace 10.77.$rail.2 dev s$rail nud permanent \
                lladdr \$(cat /sys/class/net/d$rail/address)"
        printf ') &\n'
    done
    printf 'cd %q\n' "$PWD"
    if [ -n "$memlock" ]; then
        printf 'ulimit -l %q\n' "$memlock"
        printf 'exec setpriv --bounding-set -ipc_lock,-sys_resource '
        printf -- '--inh-caps -ipc_lock,-sys_resource '
    elif [ ${#downs[@]} -eq 0 ]; then
        printf 'exec '
    fi
    printf '%q ' "$@"
    printf '\n'
} >"$job/command"

# ---- the machine ----

plain=security_model=none,multidevs=remap
share_args=()
n=0
for folder in ${shares+"${shares[@]}"}; do
    share_args+=(-virtfs
        "local,path=$folder,mount_tag=share$n,$plain")
    n=$((n + 1))
done
accel=(-accel tcg,thread=multi)
# Only when asked for: a /dev/kvm that is there may still run no guest.
if [ -n "${BATON_RDMA_KVM:-}" ]; then
    accel=(-accel kvm "${accel[@]}")
fi
# qemu64: richer models make emulated programs choose wide vector code, which
# is slow. The machine must not outlive this script, however that ends.
orphan=(setpriv --pdeathsig KILL)
machine() {
    started=$SECONDS
    rm -f "$job/times"
    "${orphan[@]}" timeout --foreground -s KILL "$timeout" "${orphan[@]}" \
        "$qemu" -M q35 "${accel[@]}" -cpu qemu64 -smp "$cpus" -m "$memory" \
        -nodefaults -display none -no-reboot \
        -kernel "$kernel/vmlinux" -initrd "$job/initrd" \
        -append 'console=ttyS1 panic=-1 mitigations=off rdinit=/init tsc=reliable' \
        -chardev stdio,id=out,signal=off -serial chardev:out \
        -serial "file:$job/dmesg" \
        -virtfs "local,path=/,mount_tag=root,$plain,readonly=on" \
        -virtfs "local,path=$job,mount_tag=job,$plain" \
        -nic none ${share_args+"${share_args[@]}"} </dev/null 2>"$job/qemu" &
    pid=$!
}
# Seen once in some fifty boots, with the processors taken: the emulation stands
# still before the first process. Then once more.
machine
while [ ! -e "$job/times" ] && kill -0 "$pid" 2>/dev/null; do
    if [ $((SECONDS - started)) -ge 90 ] && [ "$timeout" -gt 120 ]; then
        say 'the guest does not come up: once more'
        kill "$pid"
        { wait "$pid" || true; } 2>/dev/null
        machine
        break
    fi
    sleep 0.1
done
{ wait "$pid" || true; } 2>/dev/null
pid=
if [ -f "$job/rc" ]; then
    rc=$(cat "$job/rc")
    [ -z "${rc//[0-9]/}" ] && [ -n "$rc" ] || rc=125
    [ "$rc" != 125 ] || tail -n 15 "$job/dmesg" >&2
    exit "$rc"
fi
if [ $((SECONDS - started)) -ge "$timeout" ]; then
    say "over $timeout s"
    exit 124
fi
say 'the guest died:'
tail -n 15 "$job/qemu" "$job/dmesg" >&2 || true
exit 125
