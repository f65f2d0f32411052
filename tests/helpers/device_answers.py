"""What Linux 6.1's device-DAX answers to tests/faults/programs/device.py, and so `cxlemu exec`."""

import re

ANSWERS = {  # python -m tests.dax_vm asks real ones
    **dict.fromkeys(("4 KiB", "3 MiB", "private"), "Invalid argument"),
    **dict.fromkeys(("4 MiB", "from 4 KiB on", "from 2 MiB on"), "mapped"),
    **dict.fromkeys(("read", "pread", "write", "pwrite", "ftruncate"), "Invalid argument"),
    **dict.fromkeys(("lseek", "st_size"), "0"),
}


def read_answers(output: str) -> dict[str, str]:
    return dict(re.findall(r"^([\w ]+?) (Invalid argument|mapped|0)$", output, re.MULTILINE))
