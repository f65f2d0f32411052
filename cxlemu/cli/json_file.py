"""``--json FILE``: looked at before the work begins, written whole when it is done. And JSON that is read back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cxlemu.errors import ArgumentError
from cxlemu.files import check_writable, write_atomically

BYTES_MAX = 1 << 25


def check_json_file(path: Path | None) -> None:
    """Raises ArgumentError for a file that could not be written in the end."""
    if path is not None:
        with _as_argument_errors(path):
            check_writable(path)


def write_json(path: Path | None, data: Any) -> None:
    """Raises ArgumentError where the file cannot be written after all."""
    if path is not None:
        with _as_argument_errors(path):
            write_atomically(path, (json.dumps(data, indent=2) + "\n").encode())


def read_json(path: Path, option: str) -> Any:
    """Raises ArgumentError for a file that cannot be read, is too large, or is not JSON."""
    try:
        if not path.is_file():  # a FIFO or a device could be read for ever
            raise ArgumentError(f"{option} {path}: not a regular file")
        with path.open("rb") as file:
            raw = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise ArgumentError(f"{option} {path} cannot be read: {error.strerror}") from error
    if len(raw) > BYTES_MAX:
        raise ArgumentError(f"{option} {path}: larger than {BYTES_MAX} bytes, which no such file is")
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise ArgumentError(f"{option} {path}: not JSON") from None


@contextmanager
def _as_argument_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ArgumentError(f"--json {path} cannot be written: {error.strerror}") from error
