"""A header and pages that one host writes and another one reads, as any Python program does it: mmap and NumPy."""

import mmap
import os
import sys

import numpy as np

from cxlemu import program

PATH, ROLE, HOW = sys.argv[1:4]
MAGIC, PAGE, ROUNDS = 0x51, 4096, 4

file = os.open(PATH, os.O_RDWR | os.O_CREAT)
if ROLE == "new":
    os.ftruncate(file, 1 << 20)
mapped = mmap.mmap(file, 1 << 20)
words = np.frombuffer(mapped, np.uint64)
header, written, read = words[:8], words[8:16], words[16:24]
page = np.frombuffer(mapped, np.uint8)[PAGE : 2 * PAGE]


def publish(array: np.ndarray) -> None:
    program.flush(array)
    program.fence()


def wait_for(word: np.ndarray, value: int) -> None:
    while word[0] != value:
        program.invalidate(word)


if ROLE == "new":
    header[0] = MAGIC
    if HOW == "msync":
        mapped.flush()  # which is for files, and does nothing for the caches of processors
    else:
        publish(header)
    sys.exit()
program.invalidate(header)
if header[0] != MAGIC:
    sys.exit(f"the header is {header[0]}")
for n in range(1, ROUNDS):
    if ROLE == "write":
        page[:] = n
        publish(page)
        written[0] = n
        publish(written)
        wait_for(read, n)
    else:
        wait_for(written, n)
        program.invalidate(page)
        if (page != n).any():
            sys.exit(f"round {n}: the page is {page}")
        read[0] = n
        publish(read)
