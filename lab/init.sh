#!/bin/busybox sh
# The guest's first process. It makes the RDMA device, and then becomes the lab's agent. The kernel's
# command line has set LAB_ADDR4 and LAB_ADDR6 (with prefix lengths), LAB_MTU, LAB_DEVICE (rxe or
# siw), and LAB_GIDS (in the notation of sysfs).
bb=/bin/busybox
fail() { echo "adverb lab: guest: $*"; $bb poweroff -f; }
$bb mount -t devtmpfs dev /dev && $bb mount -t proc proc /proc && $bb mount -t sysfs sys /sys || fail "mount"
for m in $($bb cat /modules.$LAB_DEVICE); do
	$bb insmod "/modules.d/$m" || fail "insmod $m"
done
# The tree of Debian packages becomes the root. It is read-only, so the host has made the mount points.
$bb mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose deb /deb || fail "mount the packages"
for dir in dev proc sys; do $bb mount --move /$dir /deb/$dir || fail "move /$dir"; done
for dir in tmp run; do $bb mount -t tmpfs tmpfs /deb/$dir || fail "mount /$dir"; done
$bb cp /agentd $bb /deb/run/ || fail "copy the agent"
$bb mkdir /deb/run/applets && $bb chroot /deb /run/busybox --install -s /run/applets || fail "install busybox"
export PATH=/usr/sbin:/usr/bin:/run/applets HOME=/tmp LC_ALL=C.UTF-8
exec $bb switch_root /deb /usr/bin/bash -c '
fail() { echo "adverb lab: guest: $*"; /run/busybox poweroff -f; }
ip link set lo up
echo 0 >/proc/sys/net/ipv6/conf/eth0/router_solicitations
ip link set eth0 mtu "$LAB_MTU" up || fail "no network device"
ip addr add "$LAB_ADDR4" dev eth0 && ip addr add "$LAB_ADDR6" dev eth0 nodad || fail "set addresses"
until read -r state </sys/class/net/eth0/operstate && [ "$state" = up ]; do usleep 2000; done
rdma link add "${LAB_DEVICE}0" type "$LAB_DEVICE" netdev eth0 || fail "make ${LAB_DEVICE}0"
# The kernel fills the table of GIDs from a work queue.
for gid in $LAB_GIDS; do
	until grep -qsx "$gid" /sys/class/infiniband/"${LAB_DEVICE}0"/ports/1/gids/*; do usleep 2000; done
done
exec /run/agentd'
