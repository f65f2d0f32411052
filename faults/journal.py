"""A journal of what takes long, in a file that survives it: one JSON object per line, appended and never changed.

The first line says whose it is, such as a campaign's. The last field of each object, ``checksum``, is a digest of all
lines so far: no line that was changed, moved or taken out is believed. What was killed in the middle of a line goes on
from the line before it.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from cxlemu.errors import ArgumentError

VERSION = 2
LINE_BYTES_MAX = 1 << 22
FILE_BYTES_MAX = 1 << 30
CHECKSUM, DIGEST_BYTES = "checksum", 8


class JournalFile:
    """A journal, open for appending by one process alone; as a context it closes the file.

    Args:
        path: The file.
        noun: What it is of, such as a campaign.
        whose: Which one it is of.
        is_record: Says of the object of a line behind the first one whether it has all that it needs.
    """

    def __init__(
        self, path: Path, noun: str, whose: Mapping[str, Any], is_record: Callable[[Mapping[str, Any]], bool]
    ) -> None:
        self._path, self._noun, self._is_record = path, noun, is_record
        self._first = {"journal": VERSION, noun: dict(whose)}
        self._digest = b""
        self.done: list[dict[str, Any]] = []
        self.dropped = 0
        try:
            if path.exists() and not path.is_file():
                raise ArgumentError(f"--resume {path} is not a regular file")
            self._file = path.open("a+b")
        except OSError as error:
            raise ArgumentError(f"--resume {path}: {error.strerror}") from None
        try:
            end = self._read()
        except BaseException:
            self._file.close()
            raise
        self._file.truncate(end)
        if end == 0:
            self.add(self._first)

    def _read(self) -> int:
        """Lock the file and read the records; return how many bytes whole lines take."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ArgumentError(
                f"--resume {self._path}: another {self._noun} writes to it; wait for its end, or give another file"
            ) from None
        if os.fstat(self._file.fileno()).st_size > FILE_BYTES_MAX:
            raise ArgumentError(f"--resume {self._path} exceeds {FILE_BYTES_MAX} bytes, the limit of a journal")
        self._file.seek(0)
        end = 0
        for number, line in enumerate(iter(lambda: self._file.readline(LINE_BYTES_MAX), b"")):
            if not line.endswith(b"\n"):
                ours = self._line(self._first)[1] if number == 0 else line
                if len(line) == LINE_BYTES_MAX or not ours.startswith(line):
                    raise self._foreign(number)
                self.dropped = number + 1
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
            record: Any = json.loads(line)
            summed = isinstance(record, dict) and record.pop(CHECKSUM, None) is not None
            after, as_written = self._line(record) if summed else (b"", b"")
        except (ValueError, RecursionError):
            raise self._foreign(number) from None
        if number == 0 and isinstance(record, dict) and record.get("journal") == 1:
            raise ArgumentError(
                f"--resume {self._path} is from an older cxlemu and has no checksums: give another file, for a new "
                "journal"
            )
        if not isinstance(record, dict) or not summed:
            raise self._foreign(number)
        if line != as_written:
            raise ArgumentError(
                f"--resume {self._path}: line {number + 1} was changed after it was written, or a line before it was "
                "taken out: its checksum does not match; give another file"
            )
        if number and not self._is_record(record):
            raise self._foreign(number)
        self._digest = after
        return record

    def _line(self, record: Mapping[str, Any]) -> tuple[bytes, bytes]:
        text = json.dumps(record, sort_keys=True, separators=(",", ":")).encode()
        digest = hashlib.blake2b(self._digest + text, digest_size=DIGEST_BYTES).digest()
        return digest, text[:-1] + f',"{CHECKSUM}":"{digest.hex()}"}}\n'.encode()

    def _check_first(self, record: Mapping[str, Any]) -> None:
        if record.get("journal") != VERSION:
            raise self._foreign(0)
        first, noun = json.loads(json.dumps(self._first)), self._noun
        if record != first:
            then, now = record.get(noun), first[noun]
            differs = [name for name in now if isinstance(then, dict) and then.get(name) != now[name]]
            same = f"give the same {' and '.join(differs) or 'flags'} as then, or another file"
            raise ArgumentError(f"--resume {self._path} is of another {noun}: {same}")

    def _foreign(self, number: int) -> ArgumentError:
        return ArgumentError(f"--resume {self._path}: line {number + 1} is not a {self._noun}'s; give another file")

    def add(self, record: Mapping[str, Any]) -> None:
        """Append a record; it is in the kernel's hands when this returns."""
        self._digest, line = self._line(record)
        self._file.write(line)
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
