"""What is checked where the guests' devices are CXL regions: what Linux says of them, where bytes lie, and the rest.

An emulated CPU reaches CXL memory by a call into QEMU for every access: sizes are
small.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from .checks import (
    Host,
    collectives,
    foreign_data_is_kept,
    litmus,
    no_shared_memory,
    one_pool_under_other_names,
    programs_of_others,
    two_pools_are_refused,
)
from .cxl import GRANULARITY, REGIONS, WAYS, interleaved
from .guest import GuestError

PATTERN = bytes(range(251)) * 33  # no period of it is a granule
# Stores the pattern in each device, from its first or second byte; or expects it there, and stores zeros.
PROGRAM = f"""import mmap, os, sys
pattern = bytes(range(251)) * {len(PATTERN) // 251}
for index, name in enumerate(sys.argv[2:]):
    with mmap.mmap(os.open(name, os.O_RDWR), 2 << 20) as device:
        place = slice(index, index + len(pattern))
        if sys.argv[1] == "load":
            assert device[place] == pattern, f"{{name}} holds something else"
        device[place] = bytes(len(pattern)) if sys.argv[1] == "load" else pattern
"""


def cxl_checks(a: Host, b: Host, programs: Path, files: Sequence[Path]) -> Iterator[str]:
    yield no_shared_memory(a, b)
    yield doctor_knows_regions(a)
    yield bytes_are_interleaved(a, b, files)
    yield programs_of_others(a, b, programs)
    yield foreign_data_is_kept(a)
    yield one_pool_under_other_names(a, b)
    yield collectives([a, b], "reference", [32, 1024])
    yield collectives([a, b], "native", [32, 1024, 32768])
    yield litmus([a, b])
    yield two_pools_are_refused(a, b)


def doctor_knows_regions(a: Host) -> str:
    """`doctor` tells devices, windows, regions and what they hold, of the kernel's own files."""
    rows = json.loads(a.cxlemu("doctor", "--json", "-", devices=[]))
    seen = {row["what"]: f"{row['value']}; {row['meaning']}" for row in rows if row["what"].startswith("CXL")}
    regions = [said for what, said in seen.items() if re.fullmatch(r"CXL region\d", what)]
    held = sorted(device for said in regions for device in re.findall(r"/dev/dax\d\.\d", said))
    pattern = rf"512 MiB on mem\d mem\d, interleaved every {GRANULARITY} B; holds /dev/dax\d\.\d"
    memories = [said for what, said in seen.items() if re.fullmatch(r"CXL mem\d", what)]
    serials = sorted(re.findall(r"256 MiB persistent, serial (0x\d);", " ".join(memories)))
    if len(regions) != REGIONS or not all(re.fullmatch(pattern, said) for said in regions) or held != a.devices:
        raise GuestError(f"doctor does not know the regions: {seen}")
    if serials != [f"{index + 1:#x}" for index in range(REGIONS * WAYS)]:
        raise GuestError(f"doctor does not know the memory devices: {seen}")
    if not seen["CXL decoders"].startswith("7 of 7 in use"):
        raise GuestError(f"two host bridges, a switch and four devices decode, says Linux, but doctor: {seen}")
    return "doctor: " + "; ".join(f"{what} {said}" for what, said in seen.items() if "region" in what)


def bytes_are_interleaved(a: Host, b: Host, files: Sequence[Path]) -> str:
    """What one guest stores in each region lies where its decoders say, and the other loads it from there.

    The second guest has the regions in the other order, and its first device is the first one's second.
    """
    nbytes = len(PATTERN) + 1
    a.guest.run([sys.executable, "-c", PROGRAM, "store", *a.devices])
    for index, device in enumerate(a.devices):
        if interleaved(files[WAYS * index : WAYS * (index + 1)], nbytes)[index : len(PATTERN) + index] != PATTERN:
            raise GuestError(f"{device}: what was stored is not on its {WAYS} devices, {GRANULARITY} B on each in turn")
    b.guest.run([sys.executable, "-c", PROGRAM, "load", *reversed(b.devices)])
    if any(any(interleaved(files[start : start + WAYS], nbytes)) for start in range(0, len(files), WAYS)):
        raise GuestError(f"{b.guest.name}: what was overwritten with zeros is there")
    return (
        f"{len(PATTERN)} B of each region lie on {WAYS} devices, {GRANULARITY} B on each in turn; both hosts see them"
    )
