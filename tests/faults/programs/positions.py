"""Stores that one host does not flush, and another one loads: through NumPy, an mmap and a memoryview of it."""

import mmap
import os
import sys

import numpy as np

from cxlemu import program

file = os.open(sys.argv[1], os.O_RDWR)
mapped = mmap.mmap(file, 2 << 20)
view = memoryview(mapped)
flag, data = np.frombuffer(mapped, np.uint64)[:8], np.frombuffer(mapped, np.uint8)[4096:8192]


def send() -> None:
    data[:] = 7  # so many bytes that NumPy gives the interpreter's lock back meanwhile
    mapped[128:132] = b"text"
    view[256] = 3
    flag[0] = 1
    program.flush(flag)
    program.fence()


def receive() -> None:
    while flag[0] != 1:
        program.invalidate(flag)
    got = data.copy(), mapped[128:132]
    print(got, view[256])


send() if sys.argv[2] == "w" else receive()
