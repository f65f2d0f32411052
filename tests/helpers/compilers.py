"""Every C and C++ compiler that is installed: gcc and clang, and all versions that a distribution names by number."""

import os
import re
import shutil
from functools import cache
from pathlib import Path

import pytest

NUMBERED = re.compile(r"(gcc|clang)-\d+")
CXX = {"gcc": "g++", "clang": "clang++"}


@cache
def installed() -> dict[str, tuple[str, str]]:
    """The C and the C++ compiler by a name, each version once; `gcc` and `clang` whether they are there or not."""
    found, seen = {}, set()
    folders = [Path(folder) for folder in os.get_exec_path() if Path(folder).is_dir()]
    numbered = {file.name for folder in folders for file in folder.iterdir() if NUMBERED.fullmatch(file.name)}
    for name in ("gcc", "clang", *sorted(numbered)):
        family, _, number = name.partition("-")
        both = (name, CXX[family] + (f"-{number}" if number else ""))
        real = tuple(os.path.realpath(path) for path in map(shutil.which, both) if path)
        if not number or (len(real) == 2 and real not in seen):
            found[name] = both
        seen.add(real)
    return found


def use_compiler(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let `cxlemu cc` and `cxlemu c++` call one of them; skips the test where it is not there."""
    if not all(map(shutil.which, installed()[name])):
        pytest.skip(f"there is no {name}")
    for variable, command in zip(("CXLEMU_CC", "CXLEMU_CXX"), installed()[name], strict=True):
        monkeypatch.setenv(variable, command)
