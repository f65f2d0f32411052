"""What a device or a file is, and its mapping. A made-up sysfs turns /dev/zero into a device-DAX."""

import errno
import mmap
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cxlemu import _native
from cxlemu.errors import PoolError
from cxlemu.pool import device as device_module
from cxlemu.pool.device import map_device
from tests.helpers.commands import cxlemu
from tests.helpers.tables import with_rows

MIB = 1 << 20
ZERO = "/dev/zero"  # 1:5


@pytest.fixture
def sysfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As the kernel shows dax0.1, with 1:5 as its number."""
    real = tmp_path / "sys/devices/platform/dax0/dax0.1"
    real.mkdir(parents=True)
    (real / "size").write_text(f"{4 * MIB}\n")
    (real / "align").write_text(f"{2 * MIB}\n")
    for link in ("dev/char/1:5", "bus/dax/devices/dax0.1"):
        (tmp_path / "sys" / link).parent.mkdir(parents=True)
        (tmp_path / "sys" / link).symlink_to(real)
    monkeypatch.setattr(device_module, "SYSFS", tmp_path / "sys")
    return real


def test_size_and_alignment_of_a_device_come_from_sysfs_by_its_number(sysfs: Path, tmp_path: Path) -> None:
    (tmp_path / "renamed").symlink_to(ZERO)
    for path in (ZERO, str(tmp_path / "renamed")):
        device, pages, how = map_device(path)
        assert (device.path, device.kind, device.nbytes, device.align_bytes) == (path, "device-DAX", 4 * MIB, 2 * MIB)
        assert (pages.nbytes, how) == (4 * MIB, "MAP_SHARED")
        assert pages.flags.writeable
    assert map_device(ZERO).device.identity == map_device(str(tmp_path / "renamed")).device.identity


def test_a_device_is_mapped_in_whole_multiples_of_its_alignment(sysfs: Path) -> None:
    (sysfs / "size").write_text(f"{5 * MIB}\n")
    assert map_device(ZERO).pages.nbytes == 4 * MIB


@with_rows(
    ("size", "0", "/dev/zero has 0 B, which is less than its alignment, 2 MiB"),
    ("size", str(MIB), "/dev/zero has 1 MiB, which is less than its alignment, 2 MiB"),
    ("size", "much", "/dev/zero has an unknown size: {}/size says 'much', not a number"),
    ("align", "", "/dev/zero has an unknown align: {}/align says '', not a number"),
    ("align", "0", "/dev/zero has alignment 0, which is not a power of two of 4096 or more"),
    ("align", "12288", "/dev/zero has alignment 12288, which is not a power of two of 4096 or more"),
    ("align", None, "/dev/zero has an unknown align: {}/align: No such file or directory"),
)
def test_a_device_without_sense_is_refused(
    fact: str, text: str | None, sentence: str, sysfs: Path, tmp_path: Path
) -> None:
    if text is None:
        (sysfs / fact).unlink()
    else:
        (sysfs / fact).write_text(text)
    with pytest.raises(PoolError) as caught:
        map_device(ZERO)
    assert str(caught.value) == sentence.format(tmp_path / "sys/bus/dax/devices/dax0.1")


def test_a_block_device_is_refused_before_it_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    block = next((path for path in Path("/dev").iterdir() if path.is_block_device()), None)
    if block is None:
        pytest.skip("there is no block device here")
    monkeypatch.setattr(device_module.os, "open", None)
    sentence = f"{block} is a block device: give its /dev/daxX.Y, or a file on it mounted with -o dax"
    with pytest.raises(PoolError) as caught:
        map_device(str(block))
    assert str(caught.value) == sentence


class Kernel:
    """Stands for the mapping in C: notes the flags, and refuses MAP_SYNC as told."""

    def __init__(self, refusal: int | None) -> None:
        self.flags: list[int] = []
        self._refusal = refusal
        self._map_pages = _native.map_pages

    def __call__(self, fd: int, flags: int, offset: int, nbytes: int, writable: bool, by_lines: bool) -> Any:
        self.flags.append(flags)
        if flags != mmap.MAP_SHARED and self._refusal is not None:
            raise OSError(self._refusal, "refused")
        return self._map_pages(fd, mmap.MAP_SHARED, offset, nbytes, writable, by_lines)


SYNC = 0x80003  # MAP_SYNC | MAP_SHARED_VALIDATE


@with_rows((None, [SYNC], "MAP_SYNC"), (errno.EOPNOTSUPP, [SYNC, mmap.MAP_SHARED], "MAP_SHARED"))
def test_a_file_is_mapped_with_map_sync_where_its_file_system_knows_that(
    refusal: int | None, flags: list[int], how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "card").write_bytes(bytes(MIB))
    kernel = Kernel(refusal)
    monkeypatch.setattr(_native, "map_pages", kernel)
    assert map_device(str(tmp_path / "card")).how == how
    assert kernel.flags == flags


def test_any_other_refusal_of_map_sync_is_no_reason_to_do_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "card").write_bytes(bytes(MIB))
    monkeypatch.setattr(_native, "map_pages", Kernel(errno.EAGAIN))
    with pytest.raises(PoolError, match=f"^{tmp_path}/card cannot be mapped: refused$"):
        map_device(str(tmp_path / "card"))


def test_the_mapping_is_the_file(tmp_path: Path) -> None:
    (tmp_path / "card").write_bytes(bytes(MIB + 100))  # what is no whole page stays unused
    mapped = map_device(str(tmp_path / "card"))
    assert (mapped.device.kind, mapped.device.align_bytes, mapped.pages.nbytes) == ("file", 4096, MIB)
    mapped.pages[5000] = 42
    assert (tmp_path / "card").read_bytes()[5000] == 42


def test_the_holes_of_a_file_are_filled_before_it_is_mapped(tmp_path: Path) -> None:
    with (tmp_path / "card").open("wb") as file:
        file.write(b"x")
        file.truncate(MIB)
    assert bytes(map_device(str(tmp_path / "card")).pages[:2]) == b"x\0"
    assert (tmp_path / "card").stat().st_blocks * 512 >= MIB


@pytest.mark.parametrize("command", ["format", "show"])
@pytest.mark.parametrize("said", ["in advance", "meanwhile"])
def test_a_full_file_system_is_a_sentence_and_no_sigbus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, said: str
) -> None:
    def full(fd: int, *numbers: int) -> SimpleNamespace:
        if numbers:
            raise OSError(errno.ENOSPC, "No space left on device")
        return SimpleNamespace(f_bavail=0 if said == "in advance" else 1 << 20, f_frsize=4096)

    with (tmp_path / "card").open("wb") as file:
        file.truncate(MIB)
    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr(os, "fstatvfs", full)
    monkeypatch.setattr(_native, "map_pages", None)  # nothing is mapped
    result = cxlemu("pool", command, "--device", tmp_path / "card")
    sentence = f"cxlemu: {tmp_path / 'card'} has no room for 1M: No space left on device\n"
    assert (result.exit_code, result.stderr) == (2, sentence)
