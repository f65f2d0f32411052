"""Journals of searches: a call of one goes on where an earlier call has stopped."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from cxlemu.version import __version__
from faults.journal import JournalFile
from faults.programs.result import ExecSetting

SAVED_EACH_S = 30.0  # beside the end of a call


def journal_of(
    path: Path | None, setting: ExecSetting, limits: object, is_record: Callable[[Mapping[str, Any]], bool]
) -> AbstractContextManager[JournalFile | None]:
    """Open a search's journal, if it has one: its runs depend on flags, programs, and sizes and times of files."""
    if path is None:
        return nullcontext()
    programs = [shutil.which(command.words[0]) for command in setting.commands]
    files = [Path(pool.content).stat() for pool in setting.pools if pool.content]
    whose = {
        "version": __version__,
        "flags": [repr(replace(setting, deadline_s=0.0)), repr(limits)],
        "programs": [_digest(name) for name in programs if name],
        "files of pools": [[file.st_size, file.st_mtime_ns] for file in files],
    }
    return JournalFile(path, "search", whose, is_record)


def _digest(program: str) -> str:
    with Path(program).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
