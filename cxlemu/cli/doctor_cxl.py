"""The page of ``cxlemu doctor`` about CXL: memory devices, windows, regions and their interleave, as Linux shows them.

Linux lays a region into a window of addresses (a root decoder). It programs a decoder in each host bridge, switch and
device on the way, and a driver makes the region a DAX device or a NUMA node (Documentation/ABI/testing/sysfs-bus-cxl).
"""

import re
from collections.abc import Iterator
from pathlib import Path

from cxlemu.cli.doctor_rows import DoctorRow, entries, integer, row, text
from cxlemu.units import counted, format_bytes

MOST_WAYS = 16  # that a CXL region can have


def cxl_rows(root: Path) -> Iterator[DoctorRow]:
    """Yield a row for each memory device, window and region in /sys/bus/cxl, and one that counts decoders."""
    devices = root / "sys/bus/cxl/devices"
    memories = entries(devices, "mem[0-9]*")
    for memory in memories:
        yield row(f"CXL {memory.name}", True, _memory(memory), "reached through its /dev/dax* or NUMA node")
    if not memories:
        yield row("CXL devices", False, "", "none in /sys/bus/cxl")
    decoders = entries(devices, "decoder[0-9]*")
    windows = [each for each in decoders if text(each / "devtype") == "cxl_decoder_root"]
    for window in windows:
        takes = ", ".join(kind for kind in ("ram", "pmem") if integer(window / f"cap_{kind}") == 1) or "neither"
        value = f"{_size(window)} at {integer(window / 'start'):#x}, takes {takes}"
        yield row(f"CXL window {window.name}", True, value, "addresses that regions are laid into")
    regions = entries(devices, "region[0-9]*")
    for region in regions:
        yield _region(region, devices, root)
    if memories and not regions:
        yield row("CXL regions", False, "", "no memory of a device is mapped: cxl create-region, or the firmware")
    if below := [each for each in decoders if each not in windows]:
        used = sum(integer(each / "size") > 0 for each in below)
        yield row("CXL decoders", used, f"{used} of {len(below)} in use", "of host bridges, switches and devices")


def _memory(memory: Path) -> str:
    sizes = {"volatile": integer(memory / "ram/size"), "persistent": integer(memory / "pmem/size")}
    parts = [f"{format_bytes(size)} {kind}" for kind, size in sizes.items() if size]
    serial = integer(memory / "serial")
    return ", ".join([*(parts or ["size unknown"]), *([f"serial {serial:#x}"] if serial else [])])


def _region(region: Path, devices: Path, root: Path) -> DoctorRow:
    ways, granularity = integer(region / "interleave_ways"), integer(region / "interleave_granularity")
    value = f"{_size(region)}, not committed"
    if integer(region / "commit") == 1:
        value = f"{_size(region)} on {' '.join(_targets(region, devices, ways)) or 'unknown devices'}"
    if ways > 1:
        value += f", interleaved every {format_bytes(granularity)}" if granularity else f", {counted(ways, 'way')}"
    users = _dax_devices(region, root)
    return row(f"CXL {region.name}", True, value, f"holds {' '.join(users)}" if users else "no /dev/dax* in it is seen")


def _targets(region: Path, devices: Path, ways: int) -> Iterator[str]:
    """Name the memory devices in the order of interleaving: a target is a decoder of an endpoint, that of a device."""
    for way in range(min(ways, MOST_WAYS)):
        decoder = text(region / f"target{way}")
        endpoint = re.fullmatch(r"decoder([0-9]{1,9})\.[0-9]{1,9}", decoder)
        # The endpoint's uport is a link to the device; its name is all that is taken from it.
        memory = (devices / f"endpoint{endpoint[1]}/uport").resolve().name if endpoint else ""
        yield memory if re.fullmatch(r"mem[0-9]{1,9}", memory) else "?"


def _dax_devices(region: Path, root: Path) -> list[str]:
    """Find the DAX devices whose memory lies in the region; without root's rights Linux tells no addresses: none."""
    start, size = integer(region / "resource"), integer(region / "size")
    devices = entries(root / "sys/bus/dax/devices", "dax[0-9]*")
    return [f"/dev/{each.name}" for each in devices if start and start <= integer(each / "resource") < start + size]


def _size(entry: Path) -> str:
    size = integer(entry / "size")
    return format_bytes(size) if size else "size unknown"
