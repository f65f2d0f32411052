"""Extensions of a copy of the packages, built with something else in one file of C: how tests break it on purpose."""

import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from unittest.mock import patch

ROOT = Path(__file__).parents[2]
IMAGE_C = ROOT / "tests/helpers/native/lines_image.c"


class Extension(NamedTuple):
    """What setup.py says of an extension: the file it becomes, the sources, inside a copy, and gcc's and ld's flags."""

    target: Path
    sources: tuple[Path, ...]
    flags: tuple[str, ...]
    links: tuple[str, ...]


def extensions() -> list[Extension]:
    """Run setup.py with a setuptools that builds nothing. Not in two threads at once: CPython 3.11's parser fails."""
    said: list[SimpleNamespace] = []
    fake = SimpleNamespace(
        Extension=lambda name, **its: SimpleNamespace(name=name, **its),
        find_packages=lambda **_: [],
        setup=lambda **its: said.extend(its["ext_modules"]),
        build_ext=object,
    )
    names = ("setuptools", "setuptools.command", "setuptools.command.build_ext")
    with patch.dict(sys.modules, dict.fromkeys(names, fake)), chdir(ROOT):
        runpy.run_path("setup.py")
    python = f"-I{sysconfig.get_path('include')}"
    return [
        Extension(
            Path(its.name.replace(".", "/") + sysconfig.get_config_var("EXT_SUFFIX")),
            tuple(map(Path, its.sources)),
            (*its.extra_compile_args, *(f"-I{ROOT / folder}" for folder in its.include_dirs), python),
            tuple(its.extra_link_args),
        )
        for its in said
    ]


def copy_packages(where: Path) -> None:
    """All that tests need, with their times, so that what was compiled of Python stays right."""
    for folder in ("cxlemu", "collectives", "faults", "studies", "configs", "examples", "tests"):
        shutil.copytree(ROOT / folder, where / folder)
    shutil.copy(ROOT / "pyproject.toml", where)


class Build:
    """One extension of a copy; objects that are there already are taken as they are."""

    def __init__(
        self, where: Path, extension: Extension, instead: dict[str, Path] | None = None, *libraries: Path
    ) -> None:
        """Compile and link it. ``instead``: other sources for some, by name; ``libraries``: loaded with it."""
        self._libraries = libraries
        self._target = where / extension.target
        self._objects = where / "objects" / extension.target.name
        sources = [(instead or {}).get(source.name, ROOT / source) for source in extension.sources]
        self._sources = {source.name: source for source in sources}
        self._flags = [*extension.flags, "-O1", "-fPIC", "-pthread", "-w"]
        self._links = extension.links
        self._objects.mkdir(parents=True, exist_ok=True)
        absent = [source for source in self._sources.values() if not self._object(source).exists()]
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            list(threads.map(lambda source: self._compile(source, self._object(source)), absent))
        self._whole = self._objects / "whole"
        self._link(map(self._object, self._sources.values()), self._whole)
        self.mended()

    def broken(self, file: str, is_there: str, instead: str, count: int = 1) -> None:
        """Build it again with something else in one file; ``mended`` takes that back."""
        source = self._sources[file].read_text()
        assert is_there in source, f"{file} has no {is_there!r}"
        changed = self._objects / file
        changed.write_text(source.replace(is_there, instead, count))
        self._compile(changed, self._objects / "changed")
        others = [self._object(other) for name, other in self._sources.items() if name != file]
        self._link([*others, self._objects / "changed"], Path(f"{self._target}.new"))
        Path(f"{self._target}.new").replace(self._target)

    def mended(self) -> None:
        shutil.copy(self._whole, f"{self._target}.new")
        Path(f"{self._target}.new").replace(self._target)

    def _object(self, source: Path) -> Path:
        return self._objects / f"{source.stem}.o"

    def _compile(self, source: Path, target: Path) -> None:
        flags = [*self._flags, f"-I{self._sources[source.name].parent}"]
        subprocess.run(["gcc", *flags, "-c", source, "-o", target], check=True)

    def _link(self, objects: Iterable[Path], target: Path) -> None:
        links: list[str | Path] = [*self._links, *self._libraries]
        subprocess.run(["gcc", "-shared", "-pthread", *objects, *links, "-o", target], check=True)


class ImageBuild(Build):
    """``where``: a copy of the packages whose host keeps an image of every real card (see lines_image.c).

    There is one host: litmus tests find it in the machine's extension, in place of a lines.c of their own.
    """

    def __init__(self, where: Path) -> None:
        self.where = where
        copy_packages(where)
        built = {its.target.name.split(".")[0]: its for its in extensions()}
        native, straight = built["_native"], built["_straight"]
        includes = f"-I{ROOT / 'cxlemu/native'}"  # for IMAGE_C, which lies elsewhere
        super().__init__(where, native._replace(flags=(*native.flags, includes)), {"lines.c": IMAGE_C})
        own = tuple(source for source in straight.sources if source.name != "lines.c")
        self.litmus = Build(where, straight._replace(sources=own), None, where / native.target)
