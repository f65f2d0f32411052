"""The package in a folder of its own, with the machine's C built from other sources: how tests break it on purpose."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "cxlemu/native"
IMAGE_C = ROOT / "tests/helpers/native/lines_image.c"
MODULE = f"cxlemu/_native{sysconfig.get_config_var('EXT_SUFFIX')}"


def _flags() -> list[str]:
    """setup.py's, which runs when it is imported."""
    for statement in ast.parse((ROOT / "setup.py").read_text()).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "FLAGS":
            includes = [f"-I{sysconfig.get_path('include')}", f"-I{NATIVE}", "-isystem", numpy.get_include()]
            return [*ast.literal_eval(statement.value), "-O1", "-fPIC", "-pthread", "-w", *includes]
    raise AssertionError("setup.py has no FLAGS")


class ImageBuild:
    """``where``: a copy of the packages whose host keeps an image of every real card (see lines_image.c)."""

    def __init__(self, where: Path) -> None:
        self.where, self._objects = where, where / "objects"
        skipped = shutil.ignore_patterns("__pycache__", "_native*.so", "build")
        for folder in ("cxlemu", "collectives", "faults", "studies", "configs", "examples", "tests"):
            shutil.copytree(ROOT / folder, where / folder, ignore=skipped)
        shutil.copy(ROOT / "pyproject.toml", where)
        self._objects.mkdir()
        sources = [*NATIVE.glob("*.c"), *NATIVE.glob("cost/*.c"), IMAGE_C]
        self._sources = {source.name: source for source in sources if source != NATIVE / "lines.c"}
        self._flags = _flags()  # once, before there are threads: two at once in CPython 3.11's parser raise SystemError
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(self._compile, self._sources.values()))
        self._link()

    def broken(self, file: str, is_there: str, instead: str, count: int = 1) -> None:
        """Build it again with something else in one file; ``mended`` takes that back."""
        source = self._sources[file].read_text()
        assert is_there in source, f"{file} has no {is_there!r}"
        changed = self._objects / file
        changed.write_text(source.replace(is_there, instead, count))
        self._compile(changed)
        self._link()

    def mended(self, file: str) -> None:
        self._compile(self._sources[file])

    def _compile(self, source: Path) -> None:
        flags = [*self._flags, f"-I{self._sources[source.name].parent}"]
        subprocess.run(["gcc", *flags, "-c", source, "-o", self._objects / f"{source.stem}.o"], check=True)

    def _link(self) -> None:
        target = self.where / MODULE
        objects = [self._objects / f"{Path(name).stem}.o" for name in self._sources]
        subprocess.run(["gcc", "-shared", "-pthread", *objects, "-o", f"{target}.new"], check=True)
        Path(f"{target}.new").replace(target)
