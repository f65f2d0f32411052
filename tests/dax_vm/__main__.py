"""All eight collectives between two virtual machines that share nothing but real /dev/dax devices.

The devices are six NVDIMMs, or with --cxl two regions, each of two interleaved CXL memory devices, one of them below a
CXL switch.

Exit code 0: passed. 1: failed. 77: skipped, for the reason printed last.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click

from . import cxl
from .cards import CARDS, devices, format_cards, make_cards, nvdimms
from .checks import Host, all_checks, build_programs
from .cxl_checks import cxl_checks
from .guest import Guest, GuestError
from .packages import Parts, Skip, find_parts

PASSED, FAILED, SKIPPED = 0, 1, 77
BEGAN = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - BEGAN:6.1f} s  {text}", flush=True)


@click.command(help=__doc__)
@click.option("--cxl", "as_cxl", is_flag=True, help="CXL memory devices instead of NVDIMMs.")
@click.option("--install", is_flag=True, help="As root: apt-get update, and install QEMU if it is missing.")
@click.option(
    "--cache",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cxlemu" / "dax-vm",
    show_default=True,
    help="Where Debian's kernel is downloaded to, once (70 MB).",
)
@click.option(
    "--limit-s",
    type=click.IntRange(1),
    help="Skip the rest after so long: a hang is a failure long before, this is for machines that emulate too slowly.",
)
def main(as_cxl: bool, install: bool, cache: Path, limit_s: int | None) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that everything is cleaned up
    signal.signal(signal.SIGALRM, lambda *_: too_slow(limit_s))
    signal.alarm(limit_s or 0)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        parts = find_parts(cache.resolve(), install)
        say(f"packages: {parts.kernel.parent.name}, in {cache}")
        with tempfile.TemporaryDirectory(prefix="cxlemu-dax-vm-") as folder:
            (over_cxl if as_cxl else over_nvdimms)(parts, Path(folder))
    except Skip as skip:
        say(f"skipped: {skip}")
        sys.exit(SKIPPED)
    except GuestError as error:
        say(f"FAILED: {error}")
        sys.exit(FAILED)
    say("passed")
    sys.exit(PASSED)


def too_slow(limit_s: int | None) -> None:
    raise Skip(f"this machine is too slow for it, {limit_s} s have passed; what is said above was seen nevertheless")


def over_nvdimms(parts: Parts, folder: Path) -> None:
    cards, programs = make_cards(folder), build_programs(folder / "programs")
    accelerator = usable_accelerator(parts, nvdimms(cards), folder)
    with Guest("format", parts, nvdimms(cards), accelerator=accelerator, folder=folder) as guest:
        seconds = guest.boot()
        format_cards(guest)
        say(f"formatted: {len(devices(guest, CARDS))} devices; {accelerator} guests boot in {seconds:.1f} s")
    # The second guest finds the cards behind other names than the first.
    with two_guests(parts, [nvdimms(cards), nvdimms([*cards[2:], *cards[:2]])], accelerator, folder) as guests:
        a, b = (Host(guest, devices(guest, CARDS)) for guest in guests)
        say(f"booted 2 guests, each has {' '.join(a.devices)}")
        for seen in all_checks(a, b, programs):
            say(seen)


def over_cxl(parts: Parts, folder: Path) -> None:
    files, programs = cxl.make_memory(folder), build_programs(folder / "programs")
    views = [files, [*files[cxl.WAYS :], *files[: cxl.WAYS]]]
    # QEMU answers accesses to CXL memory as to a device's registers, for which KVM emulates no vector instructions.
    say("software emulation (TCG), as CXL memory needs it")
    with two_guests(parts, [cxl.type3_devices(view) for view in views], "tcg", folder) as guests:
        for guest in guests:
            cxl.connect(guest)
        a, b = (Host(guest, devices(guest, cxl.REGIONS), cxl.DEADLINE_S) for guest in guests)
        say(f"booted 2 guests, each has {' '.join(a.devices)}, made of CXL regions")
        for seen in cxl_checks(a, b, programs, files):
            say(seen)


@contextmanager
def two_guests(
    parts: Parts, hardware: Sequence[Sequence[str]], accelerator: str, folder: Path
) -> Iterator[list[Guest]]:
    with ExitStack() as stack:
        guests = [
            stack.enter_context(Guest(name, parts, words, accelerator=accelerator, folder=folder))
            for name, words in zip(("guest-a", "guest-b"), hardware, strict=True)
        ]
        for guest in guests:
            guest.boot()
        yield guests


def usable_accelerator(parts: Parts, hardware: Sequence[str], folder: Path) -> str:
    """KVM where it boots a guest."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        say("software emulation (TCG), as /dev/kvm is not there or not ours")
        return "tcg"
    with Guest("try-kvm", parts, hardware, accelerator="kvm", folder=folder) as guest:
        try:
            guest.boot()
        except GuestError as error:
            say(f"software emulation (TCG), as KVM does not boot a guest: {'; '.join(str(error).splitlines()[:2])}")
            return "tcg"
    return "kvm"


if __name__ == "__main__":
    main()
