"""All eight collectives between two virtual machines that share nothing but six real /dev/dax devices.

Exit code 0: passed. 1: failed. 77: skipped, for the reason printed last.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import click

from .cards import devices, format_cards, make_cards
from .checks import Host, all_checks
from .guest import Guest, GuestError
from .packages import Parts, Skip, find_parts

CARDS = 6
PASSED, FAILED, SKIPPED = 0, 1, 77
BEGAN = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - BEGAN:6.1f} s  {text}", flush=True)


@click.command(help=__doc__)
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
def main(install: bool, cache: Path, limit_s: int | None) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that everything is cleaned up
    signal.signal(signal.SIGALRM, lambda *_: too_slow(limit_s))
    signal.alarm(limit_s or 0)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        parts = find_parts(cache.resolve(), install)
        say(f"packages: {parts.kernel.parent.name}, in {cache}")
        with tempfile.TemporaryDirectory(prefix="cxlemu-dax-vm-") as folder:
            between_guests(parts, Path(folder))
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


def between_guests(parts: Parts, folder: Path) -> None:
    cards = make_cards(folder, CARDS)
    accelerator = format_and_choose(parts, cards, folder)
    # The second guest finds the cards behind other names than the first.
    views = {"guest-a": cards, "guest-b": [*cards[2:], *cards[:2]]}
    with ExitStack() as stack:
        guests = [
            stack.enter_context(Guest(name, parts, view, accelerator=accelerator, folder=folder))
            for name, view in views.items()
        ]
        for guest in guests:
            guest.boot()
        a, b = (Host(guest, devices(guest, CARDS)) for guest in guests)
        say(f"booted 2 guests, each has {' '.join(a.devices)}")
        for seen in all_checks(a, b):
            say(seen)


def format_and_choose(parts: Parts, cards: list[Path], folder: Path) -> str:
    """The boot that formats the cards also finds out whether KVM is usable."""
    for accelerator in ("kvm", "tcg"):
        if accelerator == "kvm" and not os.access("/dev/kvm", os.R_OK | os.W_OK):
            say("software emulation (TCG), as /dev/kvm is not there or not ours")
            continue
        with Guest(f"format-{accelerator}", parts, cards, accelerator=accelerator, folder=folder) as guest:
            try:
                seconds = guest.boot()
            except GuestError as error:
                if accelerator == "tcg":
                    raise
                say(f"software emulation (TCG), as KVM does not boot a guest: {'; '.join(str(error).splitlines()[:2])}")
                continue
            format_cards(guest)
            say(f"formatted: {len(devices(guest, CARDS))} devices; {accelerator} guests boot in {seconds:.1f} s")
            return accelerator
    raise AssertionError("a failed TCG boot is raised")


if __name__ == "__main__":
    main()
