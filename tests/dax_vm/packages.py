"""What guests are made of: QEMU, installed; Debian's kernel and busybox, downloaded and unpacked, never installed."""

from __future__ import annotations

import lzma
import os
import platform
import re
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

EMULATOR = "qemu-system-x86_64"
INSTALL = "apt-get install --no-install-recommends qemu-system-x86"
KERNEL = "linux-image-amd64"  # the cloud flavour has no 9p
MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay", "nfit", "nd_pmem", "dax_pmem", "device_dax")
MODULES += ("cxl_acpi", "cxl_pci", "cxl_port", "cxl_mem", "cxl_pmem")
APT_S = 300


class Skip(Exception):
    """These guests cannot run here, and why."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Files in the cache."""

    kernel: Path
    busybox: Path
    modules: tuple[Path, ...]  # in an order in which they load


def find_parts(cache: Path, install: bool) -> Parts:
    """What is missing is downloaded into ``cache``, and QEMU installed if ``install`` says so."""
    if platform.machine() != "x86_64":
        raise Skip(f"the guests are x86_64, this machine is {platform.machine()}")
    for tool in ("apt-get", "dpkg-deb", "setpriv"):
        if shutil.which(tool) is None:
            raise Skip(f"{tool} is not here: the guests are made of Debian's packages")
    if install:
        _run("apt-get", "update", "-q")
    if install and shutil.which(EMULATOR) is None:
        _run(*INSTALL.split(), "-q", "-y")
    if shutil.which(EMULATOR) is None:
        raise Skip(f"{EMULATOR} is not installed; as root: {INSTALL} (or use --install)")
    package = _real_kernel_package()
    ready = (
        cache / f"{package}-{zlib.crc32(' '.join(MODULES).encode()):08x}"
    )  # what was unpacked for other modules stays
    if not ready.exists():
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            _fill(Path(folder) / package, package)
            (Path(folder) / package).rename(ready)  # whole, or not there
    return Parts(ready / "kernel", ready / "busybox", tuple(sorted(ready.glob("*.ko"))))


def _real_kernel_package() -> str:
    """Such as linux-image-6.1.0-56-amd64: the one that ``KERNEL`` depends on."""
    names = re.findall(r"Depends: (linux-image-\d\S+)", _run("apt-cache", "depends", KERNEL))
    if not names:
        raise Skip(f"apt knows no package {KERNEL}; on Debian, after: apt-get update")
    return str(names[0])


def _fill(where: Path, package: str) -> None:
    where.mkdir()
    _run("apt-get", "download", "-q", package, "busybox-static", cwd=where)
    with _contents(next(where.glob("busybox*.deb"))) as files:
        (where / "busybox").write_bytes(_read(files, "./bin/busybox"))
    (where / "busybox").chmod(0o755)
    with _contents(next(where.glob("linux-image*.deb"))) as files:
        names = files.getnames()
        image = _read(files, next(name for name in names if name.startswith("./boot/vmlinuz-")))
        (where / "kernel").write_bytes(_uncompressed(image))
        paths = {Path(name).name.partition(".")[0].replace("-", "_"): name for name in names if ".ko" in name}
        for index, (module, binary) in enumerate(_in_load_order(files, paths, MODULES, {}).items()):
            (where / f"{index:02}-{module}.ko").write_bytes(binary)
    for archive in where.glob("*.deb"):
        archive.unlink()


def _in_load_order(
    files: tarfile.TarFile, paths: dict[str, str], wanted: Iterable[str], loaded: dict[str, bytes]
) -> dict[str, bytes]:
    """Every wanted module after those that it depends on; what is no file is built into the kernel."""
    for module in wanted:
        if module in loaded or module not in paths:
            continue
        binary = _uncompressed(_read(files, paths[module]))
        depends = re.search(rb"\0depends=([^\0]*)\0", binary)
        needs = depends[1].decode().replace("-", "_").split(",") if depends else []
        _in_load_order(files, paths, filter(None, needs), loaded)
        loaded[module] = binary
    return loaded


def _uncompressed(image: bytes) -> bytes:
    """What an xz archive inside ``image`` holds. An emulated CPU would take seconds to unpack its own kernel."""
    start = image.find(b"\xfd7zXZ\x00")
    return image if start < 0 else lzma.LZMADecompressor().decompress(image[start:])


@contextmanager
def _contents(package: Path) -> Iterator[tarfile.TarFile]:
    with tempfile.TemporaryFile(dir=package.parent) as unpacked:
        subprocess.run(["dpkg-deb", "--fsys-tarfile", package], stdout=unpacked, check=True, timeout=APT_S)
        unpacked.seek(0)
        with tarfile.open(fileobj=unpacked) as files:
            yield files


def _read(files: tarfile.TarFile, name: str) -> bytes:
    member = files.extractfile(name)
    assert member is not None, f"{name} is not a file"
    return member.read()


def _run(*command: str, cwd: Path | None = None) -> str:
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    try:
        done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=APT_S)
    except subprocess.TimeoutExpired:
        raise Skip(f"{' '.join(command)} took more than {APT_S} s") from None
    if done.returncode:
        raise Skip(f"{' '.join(command)} failed: {(done.stderr or done.stdout).strip().splitlines()[-1:]}")
    return done.stdout
