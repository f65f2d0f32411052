"""A journal of a campaign, in a file that survives it: one JSON object per line, appended and never changed.

The first line says which campaign it is; each of the others is a case that was judged. A campaign that was killed in
the middle of a line goes on from the line before it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cxlemu.errors import ArgumentError

VERSION = 1
LINE_BYTES_MAX = 1 << 22
FILE_BYTES_MAX = 1 << 30


class Journal:
    """A campaign's journal, open for appending; as a context it closes the file.

    Args:
        path: The file, which is created if it does not exist.
        campaign: What identifies the campaign, as JSON has it.

    Attributes:
        done: The records that the file already has: the cases that were judged before.

    Raises:
        ArgumentError: The file cannot be opened, or is not the journal of this campaign.
    """

    def __init__(self, path: Path, campaign: Mapping[str, Any]) -> None:
        self._path = path
        self._first = {"journal": VERSION, "campaign": dict(campaign)}
        self.done: list[dict[str, Any]] = []
        try:
            if path.exists() and not path.is_file():
                raise ArgumentError(f"--resume {path} is not a regular file")
            self._file = path.open("a+b")
        except OSError as error:
            raise ArgumentError(f"--resume {path}: {error.strerror}") from None
        self._file.seek(0)
        try:
            end = self._read()
        except BaseException:
            self._file.close()
            raise
        self._file.truncate(end)
        if end == 0:
            self.add(self._first)

    def _read(self) -> int:
        """Read the records; return how many bytes whole lines take."""
        if os.fstat(self._file.fileno()).st_size > FILE_BYTES_MAX:
            raise ArgumentError(
                f"--resume {self._path} is larger than {FILE_BYTES_MAX} bytes: no journal grows so large"
            )
        end = 0
        for number, line in enumerate(iter(lambda: self._file.readline(LINE_BYTES_MAX), b"")):
            if not line.endswith(b"\n"):
                if len(line) == LINE_BYTES_MAX or number == 0:
                    raise self._foreign(number)
                break  # it was killed while it wrote this
            record = self._parse(line, number)
            if number == 0:
                self._check_first(record)
            else:
                self.done.append(record)
            end += len(line)
        return end

    def _parse(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            raise self._foreign(number) from None
        if not isinstance(record, dict) or (number and not isinstance(record.get("case"), str)):
            raise self._foreign(number)
        return record

    def _check_first(self, record: dict[str, Any]) -> None:
        if record.get("journal") != VERSION:
            raise self._foreign(0)
        if record != json.loads(json.dumps(self._first)):
            raise ArgumentError(
                f"--resume {self._path} is of another campaign: give the same flags as then, or another file"
            )

    def _foreign(self, number: int) -> ArgumentError:
        return ArgumentError(f"--resume {self._path}: line {number + 1} is not a campaign's; give another file")

    def add(self, record: Mapping[str, Any]) -> None:
        """Append a record; it is in the kernel's hands when this returns.

        Args:
            record: JSON values; a case's record has its id under ``case``.
        """
        self._file.write(json.dumps(record, sort_keys=True, separators=(",", ":")).encode() + b"\n")
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
