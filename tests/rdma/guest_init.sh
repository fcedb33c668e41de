#!/bin/busybox sh
# First process of the guest: loads modules, makes the host's / (read-only,
# over 9p) writable for this boot by a tmpfs on top, and runs the job in it.
# The job's status goes to rc in the job folder; without that file the host
# knows that the guest died. Kernel messages go to the second serial port.
export PATH=/bin
/bin/busybox --install -s /bin
mkdir -p /proc /sys /dev /host /over /root /job
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev

load() {
    while read -r module; do
        insmod "/modules/$module" || echo "init: cannot load $module"
    done <"/modules/$1"
}
stage() {
    read -r up _ </proc/uptime
    echo "$1 $up" >>/job/times
}
end() {
    echo "$1" >/job/rc.new && mv /job/rc.new /job/rc
    sync
    reboot -f
    sleep 60
}

for group in root wire shape rdma; do
    load "$group"
done
options=trans=virtio,version=9p2000.L,msize=512000
mount -t 9p -o "$options,cache=none" job /job || reboot -f
stage modules
. /job/settings
mount -t 9p -o "$options,cache=loose,ro" root /host || end 77
mount -t tmpfs -o size=80% over /over
mkdir /over/up /over/work
mount -t overlay -o lowerdir=/host,upperdir=/over/up,workdir=/over/work \
    over /root || end 77
for folder in proc sys dev; do
    mount -o bind "/$folder" "/root/$folder"
done
ln -s /proc/self/fd /dev/fd
mkdir -p /root/dev/shm /root/dev/pts /root/run /root/tmp
mount -t tmpfs shm /root/dev/shm
mount -t devpts pts /root/dev/pts
mount -t tmpfs run /root/run
mkdir -p /root/run/vm
mount -o bind /job /root/run/vm
n=0
for folder in $share; do
    mkdir -p "/root$folder"
    mount -t 9p -o "$options,cache=none" "share$n" "/root$folder" || end 77
    n=$((n + 1))
done
hostname baton-rdma
ulimit -l unlimited
ulimit -c 0
cd /root
chroot /root /bin/bash /run/vm/guest_net.sh || end 125
stage rdma
stty -F /dev/ttyS0 raw
chroot /root /bin/bash /run/vm/command </dev/null >/dev/ttyS0 2>&1
code=$?
stage command
end "$code"
