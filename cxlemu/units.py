"""Sizes in bytes, as people of this field write them: ``64K`` is 64 * 1024, as in nccl-tests.

Every suffix is a power of 1024: ``K``, ``KB`` and ``KiB`` mean the same, in either case.
"""

import re
from collections.abc import Iterable
from decimal import Decimal

from cxlemu.errors import ArgumentError, runs_of

_SUFFIXES = "KMGTPE"
_SIZE = re.compile(rf"(\d{{1,20}}(?:\.\d{{1,20}})?)\s*(?:([{_SUFFIXES}])i?)?B?", re.IGNORECASE | re.ASCII)


def parse_bytes(text: str | int) -> int:
    """Read a size in bytes: ``"64K"``, ``"1.5 MiB"``, ``"128GB"``, ``"4096"`` or a whole number."""
    if isinstance(text, int) and not isinstance(text, bool) and text >= 0:
        return text
    match = _SIZE.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise ArgumentError(f"{shortened(text)} is not a size in bytes; write 4096, 64K, 1MiB or 128GiB")
    number, suffix = match.groups()
    power = _SUFFIXES.index(suffix.upper()) + 1 if suffix else 0
    size = Decimal(number) * 1024**power
    if size != size.to_integral_value():
        raise ArgumentError(f"{shortened(text)} is not a whole number of bytes; write 4096, 64K or 1.5MiB")
    return int(size)


def parse_whole(name: str, text: str, most: int, *, least: int = 0) -> int:
    """Read a whole number that an environment variable holds."""
    if re.fullmatch("[0-9]{1,20}", text, re.ASCII) and least <= int(text) <= most:
        return int(text)
    raise ArgumentError(f"{name} is {shortened(text)}, expected a whole number from {least} to {most}")


def format_bytes(nbytes: int) -> str:
    """Write a size for people to read: ``512 B``, ``64 KiB``, ``1.5 MiB``; rounded to one decimal where it must be."""
    if nbytes < 1024:
        return f"{nbytes} B"
    power = min((nbytes.bit_length() - 1) // 10, len(_SUFFIXES))
    return f"{round(nbytes / 1024**power, 1):g} {_SUFFIXES[power - 1]}iB"


def typed_bytes(nbytes: int) -> str:
    """Write a size exactly, as users type it: ``100``, ``64K``, ``1025G``."""
    power = min(((nbytes & -nbytes).bit_length() - 1) // 10, len(_SUFFIXES)) if nbytes else 0
    return f"{nbytes >> 10 * power}{_SUFFIXES[power - 1] if power else ''}"


def counted(number: int, one: str, several: str = "") -> str:
    """Write how many there are: ``1 result``, ``2 results``; 1,234 of them have a comma."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def format_numbers(numbers: Iterable[int]) -> str:
    """Write ascending numbers for people to read: ``2-5, 7, 8``."""
    runs = runs_of(numbers)
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def shortened(value: object) -> str:
    """Write a value for people to read, in at most 40 characters."""
    text = repr(value)
    return text if len(text) <= 40 else text[:36] + " ..."


def how_far(done: bool, error: BaseException | None) -> str:
    """Write how far something under way has come: ``under way``, ``done``, ``failed with DeadlineError``."""
    return "under way" if not done else "done" if error is None else f"failed with {type(error).__name__}"
