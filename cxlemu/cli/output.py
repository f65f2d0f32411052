"""Files that a flag names: refused before a run, written after it, in one sentence where that fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cxlemu.errors import ArgumentError
from cxlemu.files import check_writable, write_atomically


def check_output_file(flag: str, path: Path) -> None:
    """Raises ArgumentError for a file that could not be written in the end."""
    with _as_argument_errors(flag, path):
        check_writable(path)


def write_output(flag: str, path: Path, data: bytes) -> None:
    """Raises ArgumentError where it cannot be written."""
    with _as_argument_errors(flag, path):
        write_atomically(path, data)


@contextmanager
def _as_argument_errors(flag: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ArgumentError(f"{flag} {path} cannot be written: {error.strerror}") from error
