"""Rank 1 ends, but its process stays until rank 0 has its error: URL RANK HOW FILE."""

import atexit
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from tests.helpers.tiers import PATIENT_S


def stay(until: Path) -> None:
    """Wait for a file, as Python waits for much when it ends."""
    end = time.monotonic() + PATIENT_S
    while not until.exists() and time.monotonic() < end:
        time.sleep(0.01)


url, number, how, told = sys.argv[1:]
if number == "1":
    atexit.register(stay, Path(told))
dist.init_process_group("cxl", init_method=url, rank=int(number), world_size=2)
if number == "1":
    if how == "raises":
        raise KeyError("mine")
    sys.exit(0)
try:
    dist.all_reduce(torch.ones(4))
except dist.DistBackendError as error:
    print(error, flush=True)
    Path(told).touch()
