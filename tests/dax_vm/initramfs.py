"""The guest's first file system, and what it does: load drivers, mount the host's ``/`` read-only, obey its orders."""

from __future__ import annotations

from collections.abc import Iterator

from .packages import Parts

# Orders are files of a shared folder: N.sh is run in the background, its output is N.out, its exit code N.rc.
# /dev/shm is not there on purpose: what runs in a guest has the devices and nothing else.
INIT = """#!/bin/busybox sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp
bb=/bin/busybox
$bb mount -t devtmpfs none /dev
$bb mount -t proc none /proc
for module in /modules/*; do $bb insmod $module || $bb echo "init: $module does not load"; done
options=trans=virtio,version=9p2000.L,msize=524288
$bb mount -t 9p -o ro,cache=loose,$options host /host || $bb poweroff -f
$bb mount -t tmpfs none /upper && $bb mkdir /upper/files /upper/work
$bb mount -t overlay -o lowerdir=/host,upperdir=/upper/files,workdir=/upper/work none /root || $bb poweroff -f
$bb mount -t proc none /root/proc
$bb mount -t sysfs none /root/sys
$bb mount -t devtmpfs none /root/dev
$bb mkdir -p /root/orders
$bb mount -t 9p -o cache=none,$options orders /root/orders || $bb poweroff -f
orders=/root/orders
n=0
while :; do
  while [ ! -e $orders/$n.sh ]; do $bb sleep 0.02; done
  ( $bb chroot /root /bin/sh /orders/$n.sh >$orders/$n.out 2>&1
    echo $? >$orders/$n.code
    $bb mv $orders/$n.code $orders/$n.rc ) &
  n=$((n + 1))
done
"""
FOLDERS = ("bin", "dev", "host", "modules", "proc", "root", "upper")


def initramfs(parts: Parts) -> bytes:
    """A cpio archive in the kernel's newc format (Documentation/driver-api/early-userspace/buffer-format.rst)."""
    return b"".join(_members(parts))


def _members(parts: Parts) -> Iterator[bytes]:
    for folder in FOLDERS:
        yield _member(folder, 0o040755, b"")
    yield _member("init", 0o100755, INIT.encode())
    for path in (parts.busybox, *parts.modules):
        folder = "bin" if path == parts.busybox else "modules"
        yield _member(f"{folder}/{path.name}", 0o100755, path.read_bytes())
    yield _member("TRAILER!!!", 0, b"")


def _member(name: str, mode: int, content: bytes) -> bytes:
    """inode, mode, uid, gid, links, time, bytes, four device numbers, bytes of the name, no checksum."""
    fields = (0, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
    return _padded(b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0") + _padded(content)


def _padded(text: bytes) -> bytes:
    return text + bytes(-len(text) % 4)
