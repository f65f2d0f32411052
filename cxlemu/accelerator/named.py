"""Devices by name, as commands take them: ``cuda:0``, a GPU; ``cuda``, each rank's own; or ``fake``, which is none."""

import re

from cxlemu.accelerator.device import ComputeDevice
from cxlemu.accelerator.fake import FakeDevice
from cxlemu.errors import ArgumentError, DeviceError

FAKE = "fake"
TRIED = "this code has run on one kind of GPU: see docs/accelerator.md"
NO_GPU = "a fake device: its figures say nothing about a GPU"


def device_named(name: str, seed: int = 0) -> ComputeDevice:
    """Return the device "cuda:N" or "fake"; the seed decides when a fake device does its work."""
    if name == FAKE:
        return FakeDevice(seed, eagerness=1.0)
    if not (number := re.fullmatch(r"cuda:([0-9]{1,3})", name, re.ASCII)):
        raise ArgumentError(f"unknown device {name[:40]!r}: write cuda:0, or fake for a stand-in")
    from cxlemu.accelerator.cuda import cuda_device  # NVIDIA's package, for its devices alone

    try:
        return cuda_device(int(number[1]))
    except DeviceError as error:
        raise ArgumentError(f"{name} is not available: {error}") from error


def name_for_rank(name: str, rank: int) -> str:
    """Return the name of a rank's device: with "cuda" GPUs are dealt to the ranks in turn, else all share the one."""
    if name != "cuda":
        return name
    from cxlemu.accelerator.cuda import devices

    try:
        return f"cuda:{rank % len(devices())}"
    except DeviceError as error:
        raise ArgumentError(f"no GPU is available: {error}") from error


def standing(name: str) -> str:
    """Say, for people, how far figures of a device of this name are to be trusted."""
    return NO_GPU if name == FAKE else TRIED
