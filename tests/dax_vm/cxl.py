"""The CXL way: type-3 devices behind host bridges, as DAX devices by Linux' own CXL stack.

Two pairs of devices, each a region that is interleaved over both: one below two root ports, the other below a switch.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from .guest import GUEST_MIB, Guest

REGIONS, WAYS, GRANULARITY = 2, 2, 256
DEVICE_BYTES = 256 << 20  # the least that a CXL decoder takes
DEADLINE_S = 600.0  # of a command: on a busy machine, storing to CXL memory takes a guest this long
FORMAT_BYTES = 2 << 20  # of a region, before the DAX device's first byte
# What firmware or `cxl create-region -t pmem` and `ndctl create-namespace -m devdax` do, by sysfs alone. Memory devices
# are told apart by serial number: in which order their driver finds them is chance. The labels that describe a
# namespace are the guest's own, so each guest makes a region and a namespace of the same memory.
CONNECT = f"""
set -e
cd /sys/bus/cxl/devices
decoder_of() {{
  for endpoint in endpoint*; do
    [ $(($(cat $endpoint/uport/serial))) != $1 ] || basename $endpoint/decoder*.0
  done
}}
make_region() {{
  window=$1; shift
  region=$(cat $window/create_pmem_region)
  echo $region >$window/create_pmem_region
  cat /proc/sys/kernel/random/uuid >$region/uuid
  echo {GRANULARITY} >$region/interleave_granularity
  echo $# >$region/interleave_ways
  for serial in $@; do
    decoder=$(decoder_of $serial)
    echo pmem >$decoder/mode
    echo {DEVICE_BYTES} >$decoder/dpa_size
  done
  echo $(($# * {DEVICE_BYTES})) >$region/size
  position=0
  for serial in $@; do
    decoder_of $serial >$region/target$position
    position=$((position + 1))
  done
  echo 1 >$region/commit
  echo $region >/sys/bus/cxl/drivers/cxl_region/bind
}}
make_region decoder0.0 1 2
make_region decoder0.1 3 4
cd /sys/bus/nd
for region in devices/region*; do
  namespace=$(cat $region/namespace_seed)
  cat /proc/sys/kernel/random/uuid >$region/$namespace/uuid
  cat $region/available_size >$region/$namespace/size
  dax=$(cat $region/dax_seed)
  cat /proc/sys/kernel/random/uuid >devices/$dax/uuid
  echo 2097152 >devices/$dax/align
  echo ram >devices/$dax/mode
  echo $namespace >devices/$dax/namespace
  echo $dax >drivers/dax_pmem/bind
done
"""


def make_memory(folder: Path) -> list[Path]:
    """Files of zeros, one for each type-3 device."""
    files = [folder / f"device{index}" for index in range(REGIONS * WAYS)]
    for file in files:
        file.touch()
        os.truncate(file, DEVICE_BYTES)
    return files


def type3_devices(files: Sequence[Path]) -> list[str]:
    """QEMU's options. Serial numbers are 1, 2 below the first host bridge's root ports, 3, 4 below the second's switch.

    A host bridge needs two root ports: with one, Linux takes it that there is nothing to decode, QEMU decodes
    nevertheless, and what is written is lost without a word.
    """
    windows = [f"cxl-fmw.{n}.targets.0=bridge{n},cxl-fmw.{n}.size={WAYS * DEVICE_BYTES >> 20}M" for n in range(REGIONS)]
    # Newer kernels program no decoder under a hypervisor: caches can't be dropped there, they say.
    words = ["-M", ",".join(["q35,cxl=on", *windows]), "-cpu", "max,-hypervisor", "-m", f"{GUEST_MIB}M"]
    for bridge in range(REGIONS):
        words += ["-device", f"pxb-cxl,bus_nr={64 + 64 * bridge},bus=pcie.0,id=bridge{bridge}"]
        for port in range(WAYS):
            name = f"port{bridge}{port}"
            words += ["-device", f"cxl-rp,port={port},bus=bridge{bridge},id={name},chassis={bridge + 1},slot={port}"]
    words += ["-device", "cxl-upstream,bus=port10,id=switch"]
    words += [
        word
        for port in range(WAYS)
        for word in ("-device", f"cxl-downstream,port={port},bus=switch,id=below{port},chassis=3,slot={port}")
    ]
    for index, (file, bus) in enumerate(zip(files, ("port00", "port01", "below0", "below1"), strict=True)):
        words += ["-object", f"memory-backend-file,id=memory{index},share=on,mem-path={file},size={DEVICE_BYTES}"]
        words += ["-object", f"memory-backend-ram,id=labels{index},size=256K"]
        words += ["-device", f"cxl-type3,bus={bus},memdev=memory{index},lsa=labels{index},sn={index + 1}"]
    return words


def connect(guest: Guest) -> None:
    """Make the regions, and a /dev/dax device of each."""
    guest.run(["sh", "-c", CONNECT], deadline_s=120)


def interleaved(files: Sequence[Path], number: int) -> bytes:
    """The first bytes of a DAX device whose region lies on ``files``, read from these."""
    granules = []
    for offset in range(FORMAT_BYTES, FORMAT_BYTES + number, GRANULARITY):
        row, way = divmod(offset // GRANULARITY, WAYS)
        with files[way].open("rb") as file:
            file.seek(row * GRANULARITY)
            granules.append(file.read(GRANULARITY))
    return b"".join(granules)[:number]
