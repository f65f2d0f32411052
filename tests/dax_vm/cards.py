"""The NVDIMM way: sparse files, which every guest has as NVDIMMs and, once they are formatted, as /dev/dax devices."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from .guest import GUEST_MIB, Guest, GuestError

CARDS = 6
CARD_BYTES = 128 << 20  # the least that Linux takes for an NVDIMM; its first 2 MiB hold the format
# By sysfs alone, what `ndctl create-namespace --mode devdax --map mem` does for each of them.
FORMAT = """
set -e
cd /sys/bus/nd
for region in devices/region*; do
  namespace=$(basename $region/namespace*.0)
  dax=$(cat $region/dax_seed)
  echo $namespace >drivers/nd_pmem/unbind
  cat /proc/sys/kernel/random/uuid >devices/$dax/uuid
  echo 2097152 >devices/$dax/align
  echo ram >devices/$dax/mode
  echo $namespace >devices/$dax/namespace
  echo $dax >drivers/dax_pmem/bind
done
"""


def make_cards(folder: Path) -> list[Path]:
    """Files of zeros."""
    cards = [folder / f"card{index}" for index in range(CARDS)]
    for card in cards:
        card.touch()
        os.truncate(card, CARD_BYTES)
    return cards


def nvdimms(cards: Sequence[Path]) -> list[str]:
    """QEMU's options."""
    most = f"{GUEST_MIB + (len(cards) * CARD_BYTES >> 20)}M"
    words = ["-M", "q35,nvdimm=on", "-cpu", "max", "-m", f"{GUEST_MIB}M,slots={len(cards)},maxmem={most}"]
    for index, card in enumerate(cards):
        words += ["-object", f"memory-backend-file,id=card{index},share=on,mem-path={card},size={CARD_BYTES}"]
        words += ["-device", f"nvdimm,id=nvdimm{index},memdev=card{index}"]
    return words


def format_cards(guest: Guest) -> None:
    """From then on every guest that has these files has one /dev/dax device for each."""
    guest.run(["sh", "-c", FORMAT], deadline_s=60)


def devices(guest: Guest, number: int) -> list[str]:
    """The /dev/dax devices of a guest; raises GuestError if they are not so many."""
    found = sorted(guest.run(["sh", "-c", "ls /dev/dax* || true"]).split())
    if len(found) != number:
        raise GuestError(f"{guest.name} has not {number} /dev/dax devices, but: {' '.join(found)}")
    return found
