"""What ``cxlemu doctor`` says of devices: whether a pool can be registered with them, and how fast they copy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cxlemu.cli.doctor_rows import DoctorRow, entries, row, text
from cxlemu.errors import CxlemuError

if TYPE_CHECKING:  # NumPy, which --help does without
    from cxlemu.accelerator.device import ComputeDevice
    from cxlemu.memory.protocol import Bytes

POOL_BYTES = 1 << 26  # of shared memory, half of it for each direction
FAKE_POOL_BYTES = 1 << 21  # a fake device copies for show


def accelerator_rows(root: Path, asked: str | None) -> Iterator[DoctorRow]:
    """Yield rows for GPUs that NVIDIA's driver shows, and for what they can do."""
    gpus = entries(root / "proc/driver/nvidia/gpus", "[0-9a-fA-F]*")
    for gpu in gpus:
        model = re.search(r"(?m)^Model:\s*(\S.{0,99})$", text(gpu / "information"))
        meaning = "cxlemu[cuda] takes its arrays; it has run on one kind of GPU: see docs/accelerator.md"
        yield row(f"accelerator {gpu.name}", True, model[1] if model else "model unknown", meaning)
    if not gpus:
        yield row("accelerators", False, "none", "tests of device arrays use a fake device: see docs/accelerator.md")
    dax = [str(root / "dev" / entry.name) for entry in entries(root / "sys/bus/dax/devices", "dax[0-9]*")]
    if asked is not None:
        yield from _device_rows(asked, dax)
        return
    names: Sequence[str] = ()
    if gpus:
        try:
            from cxlemu.accelerator.cuda import devices  # NVIDIA's package, where there are GPUs alone

            names = [f"cuda:{number}" for number in range(len(devices()))]
        except CxlemuError as error:
            yield DoctorRow("CUDA", "look", "not used", str(error))
    for name in names:
        try:
            yield from _device_rows(name, dax)
        except CxlemuError as error:
            yield DoctorRow(name, "look", "fails", str(error))


def _device_rows(name: str, dax: Sequence[str]) -> Iterator[DoctorRow]:
    from cxlemu.accelerator.named import FAKE, device_named, standing
    from cxlemu.calibrate.device_copies import device_copies
    from cxlemu.calibrate.measure import memory

    device = device_named(name)
    yield row(name, True, device.name, standing(name))
    pool = memory(FAKE_POOL_BYTES if name == FAKE else POOL_BYTES, None)
    cannot = _defect(device, pool)
    yield _registered(f"{name}, shared memory", cannot)
    for path in dax:
        yield _registered(f"{name}, {Path(path).name}", _defect(device, path))
    if cannot:
        return
    copies = device_copies(device, pool)
    value = f"{copies.to_pool:.1f} to, {copies.from_pool:.1f} from, {copies.both:.1f} GB/s both at once"
    yield row(f"{name}, copies", True, value, f"to and from shared memory; {standing(name)}")
    plain = f"{copies.to_pinned:.1f} to, {copies.from_pinned:.1f} from, GB/s"
    yield row(f"{name}, plain copies", True, plain, "to and from pinned memory: an upper limit for copies to a pool")


def _registered(what: str, cannot: str) -> DoctorRow:
    if cannot:
        return DoctorRow(what, "look", "not registered", cannot)
    return row(what, True, "registered", "calls on its arrays reach a pool there")


def _defect(device: ComputeDevice, pool: Bytes | str) -> str:
    """Say what keeps a device from reaching memory of this host or a device of DAX; empty if nothing does."""
    from cxlemu.pool.device import examine_device, map_part

    try:
        if isinstance(pool, str):  # its first page alone, of which no byte is touched
            card = examine_device(pool)
            pool = map_part(card, 0, card.align_bytes)
        device.register([pool])
    except CxlemuError as error:
        return str(error)
    return ""
