"""Files that a command writes besides what it prints: a mistake is one sentence, found before any work is done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cxlemu.errors import ArgumentError
from cxlemu.files import check_writable, write_atomically


def check_output(path: Path, flag: str) -> None:
    """Raises ArgumentError for a file that could not be written in the end."""
    with _as_argument_errors(path, flag):
        check_writable(path)


def write_output(path: Path, data: bytes, flag: str) -> None:
    """Whole or not at all. Raises ArgumentError."""
    with _as_argument_errors(path, flag):
        write_atomically(path, data)


@contextmanager
def _as_argument_errors(path: Path, flag: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ArgumentError(f"{flag} {path} cannot be written: {error.strerror}") from error
