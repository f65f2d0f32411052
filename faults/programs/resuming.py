"""Journals of searches: a call of one goes on where an earlier call has stopped."""

from __future__ import annotations

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
    """Open a search's journal, if it has one: its runs depend on setting, limits, and sizes and times of the files."""
    if path is None:
        return nullcontext()
    programs = [shutil.which(command.words[0]) for command in setting.commands]
    files = [Path(name).stat() for name in (*programs, *(pool.content for pool in setting.pools)) if name]
    whose = {
        "version": __version__,
        "setting": repr(replace(setting, deadline_s=0.0)),
        "limits": repr(limits),
        "files": [[file.st_size, file.st_mtime_ns] for file in files],
    }
    return JournalFile(path, "search", whose, is_record)
