"""Mutants: guards of the sources, each taken away in a copy of the packages, whose nearest tests have to fail then.

The list is tests/mutants.yaml. A file of the packages has mutants, each with three fields:

    was  a text that is exactly once in the file
    now  what stands there instead
    red  the nearest tests, inside tests/, separated by spaces; of a file as a whole only where that takes no time

Nothing is written to the checkout. Of a file in C, every extension that it is part of is built in the copy.
"""

import ast
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from enum import Enum
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

from tests.helpers.native_build import ROOT, Build, Extension, copy_packages, extensions

LIST = ROOT / "tests/mutants.yaml"
LIMIT_S = 240.0  # of tests that take a second or two
PROPERTIES = ("--hypothesis-seed=0", "--hypothesis-profile=deep")  # a fifth of it missed one under some versions


class Mutant(NamedTuple):
    """A text of a file, what stands there instead, and the tests that see it."""

    file: str
    was: str
    now: str
    tests: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.file}: {' '.join(self.was.split())} -> {' '.join(self.now.split()) or 'nothing'}"


class Verdict(Enum):
    """What the nearest tests said of a mutant."""

    RED = "red"
    SURVIVED = "survived"
    UNJUDGED = "not judged"  # skipped, not collected, ended by a limit


class Ran(NamedTuple):
    """How a run of pytest ended."""

    verdict: Verdict
    text: str


def listed(pattern: str = "") -> list[Mutant]:
    """All mutants of the list, or those with ``pattern`` in their file, texts or tests."""
    found = [
        Mutant(file, was, now, tuple(f"tests/{test}" for test in tests.split()))
        for file, guards in yaml.load(LIST.read_text(), yaml.CSafeLoader).items()
        for tests, texts in guards.items()
        for was, now in texts
    ]
    return [one for one in found if any(pattern in text for text in (one.file, one.was, one.now, *one.tests))]


def mistakes(mutants: Sequence[Mutant]) -> list[str]:
    """What is wrong with the list, a sentence each."""
    found = []
    for one in mutants:
        path = ROOT / one.file
        count = path.read_text().count(one.was) if path.is_file() else 0
        if count != 1:
            found.append(f"{one.file} has this text {count} times, not once: {one.was!r}")
        if path.suffix == ".h":
            found.append(f"{one.file} is a header: what includes it would not be built again")
        if one.was == one.now:
            found.append(f"{one.file}: nothing else stands there instead of {one.was!r}")
        for test in one.tests:
            file, _, name = test.partition("::")
            names = _functions(ROOT / file)
            if not names or (name and name.partition("[")[0] not in names):
                found.append(f"there is no test {test}, of {one.file}: {one.was!r}")
    return found + [f"twice: {one}" for one, count in Counter(mutants).items() if count > 1]


@cache
def _functions(file: Path) -> set[str]:
    tree = ast.parse(file.read_text()) if file.is_file() else ast.Module([], [])
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


class Copy:
    """A copy of the packages, in which one mutant at a time lives."""

    def __init__(self, where: Path, known: Sequence[Extension]) -> None:
        """Take a copy in ``where``, whose extensions ``known`` are built there already."""
        self.where = where
        self._builds = {its: Build(where, its) for its in known}

    @contextmanager
    def holding(self, mutant: Mutant) -> Iterator[None]:
        """Have a mutant in the copy."""
        path, name = self.where / mutant.file, Path(mutant.file).name
        builds = [build for its, build in self._builds.items() if Path(mutant.file) in its.sources]
        text, status = path.read_text(), path.stat()
        path.write_text(text.replace(mutant.was, mutant.now))
        try:
            for build in builds:
                build.broken(name, mutant.was, mutant.now)
            yield
        finally:
            path.write_text(text)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # so that what was compiled of it is right
            for build in builds:
                build.mended()


class Judge:
    """Runs mutants in copies side by side, and ends what runs when it is left."""

    def __init__(self, folder: Path, mutants: Sequence[Mutant], jobs: int) -> None:
        """Make the copies in ``folder``, with what of C the mutants need."""
        self._mutants, self._jobs = mutants, jobs
        known = [its for its in extensions() if any(Path(one.file) in its.sources for one in mutants)]
        self._copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        self._running: set[subprocess.Popen[str]] = set()
        self._over = threading.Event()
        first = folder / "0"
        copy_packages(first)
        subprocess.run([sys.executable, "-m", "compileall", "-q", first], check=True)
        self._copies.put(Copy(first, known))
        for number in range(1, jobs):
            shutil.copytree(first, folder / str(number))
            self._copies.put(Copy(folder / str(number), known))

    def unbroken(self) -> Ran:
        """Run all tests that are named, without a mutant."""
        copy = self._copies.get()
        self._copies.put(copy)
        tests = dict.fromkeys(test for mutant in self._mutants for test in mutant.tests)
        return self._pytest(copy, [*tests, "-n", str(self._jobs)], 10 * LIMIT_S)

    def verdicts(self, tell: Callable[[Mutant, Ran], None]) -> Counter[Verdict]:
        """Judge all mutants, and tell each verdict as it comes."""
        counted: Counter[Verdict] = Counter()
        with ThreadPoolExecutor(self._jobs) as threads:
            try:
                for mutant, ran in zip(self._mutants, threads.map(self._judge, self._mutants), strict=True):
                    counted[ran.verdict] += 1
                    tell(mutant, ran)
            except BaseException:
                self._over.set()
                for process in list(self._running):
                    _end(process)
                raise
        return counted

    def _judge(self, mutant: Mutant) -> Ran:
        copy = self._copies.get()
        try:
            with copy.holding(mutant):
                return self._pytest(copy, [*mutant.tests, "-x", "-p", "no:xdist"], LIMIT_S)
        finally:
            self._copies.put(copy)

    def _pytest(self, copy: Copy, arguments: Sequence[str], limit_s: float) -> Ran:
        if self._over.is_set():
            return Ran(Verdict.UNJUDGED, "")
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *PROPERTIES, *arguments],
            cwd=copy.where,
            env=os.environ | {"PYTHONPATH": str(copy.where), "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._running.add(process)
        try:
            text, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            _end(process)
            return Ran(Verdict.UNJUDGED, process.communicate()[0] + f"\nended after {limit_s:g} s")
        except BaseException:  # Ctrl-C, which goes to another session of processes than theirs
            _end(process)
            raise
        finally:
            self._running.discard(process)
        # What fails to import, and a test that hangs until pytest-timeout ends it, exit with 1 as well.
        if process.returncode == 1 and "\nFAILED " in text and "\nERROR " not in text:
            return Ran(Verdict.RED, text)
        return Ran(Verdict.SURVIVED if process.returncode == 0 and " passed" in text else Verdict.UNJUDGED, text)


def _end(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
