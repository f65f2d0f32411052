"""What a device-DAX answers to system calls, for `cxlemu exec` to answer the same: run on both, and compared."""

import mmap
import os
import sys

MIB = 1 << 20
device = os.open(sys.argv[1], os.O_RDWR | os.O_TRUNC)
calls = {
    "4 KiB": lambda: mmap.mmap(device, 4096),
    "3 MiB": lambda: mmap.mmap(device, 3 * MIB),
    "4 MiB": lambda: mmap.mmap(device, 4 * MIB),
    "private": lambda: mmap.mmap(device, 2 * MIB, mmap.MAP_PRIVATE),
    "from 4 KiB on": lambda: mmap.mmap(device, 2 * MIB, offset=4096),
    "from 2 MiB on": lambda: mmap.mmap(device, 2 * MIB, offset=2 * MIB),
    "read": lambda: os.read(device, 8),
    "pread": lambda: os.pread(device, 8, 0),
    "write": lambda: os.write(device, b"word"),
    "pwrite": lambda: os.pwrite(device, b"word", 0),
    "ftruncate": lambda: os.ftruncate(device, 4096),
    "lseek": lambda: os.lseek(device, 0, os.SEEK_END),
    "st_size": lambda: os.fstat(device).st_size,
}
for name, call in calls.items():
    try:
        answer = call()
        print(name, "mapped" if isinstance(answer, mmap.mmap) else answer)
    except OSError as error:
        print(name, os.strerror(error.errno))
