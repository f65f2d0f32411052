"""Files of users are read at one place, within bounds: nothing waits for a FIFO, or reads a device for ever."""

import ast
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from collectives.algorithms.catalog import load_plan
from collectives.sweep.fused import tuned
from cxlemu import machine
from cxlemu.chakra import files as chakra
from cxlemu.cli.output import read_json
from cxlemu.errors import InputError
from cxlemu.files import read_file
from cxlemu.topology.document import Document
from faults.campaign import case
from faults.cli import exec_run, replay_run
from faults.programs import binary, positions, suppressions
from tests.helpers.tables import with_rows

ROOT = Path(__file__).parents[2]
PACKAGES = ("cxlemu", "collectives", "faults", "studies")

KERNEL = "of the kernel's, in /proc or /sys"
OURS = "comes with cxlemu"
POOL = "a device, a segment or a file that stands in for one, which is mapped and not read"
RUN = "in the folder of a run, which the run has made for itself"
EXECUTED = "a program of the user's, which is executed"

# Functions that open a file for reading without the reader, and why.
EXCEPTIONS = {
    "cxlemu/__main__.py:_open_closed_streams": "/dev/null",
    "collectives/sweep/fused/tuned.py:this_one": KERNEL,
    "cxlemu/capacity/pool_manager.py:_locked": POOL,
    "cxlemu/cli/backends.py:_summary": OURS,
    "cxlemu/cli/doctor_rows.py:text": KERNEL,
    "cxlemu/cli/overwritten.py:_top_level": "in an installed distribution, as importlib.metadata finds it",
    "cxlemu/engines/cores.py:cores_here": KERNEL,
    "cxlemu/files.py:open_file": "the reader itself",
    "cxlemu/machine.py:caches": KERNEL,
    "cxlemu/machine.py:identity": KERNEL,
    "cxlemu/memory/lock.py:__init__": POOL,
    "cxlemu/pool/cache_files.py:_shared": POOL,
    "cxlemu/pool/catalog.py:_files_of": KERNEL,
    "cxlemu/pool/device.py:_opened": POOL,
    "cxlemu/pool/device.py:_sysfs_facts": KERNEL,
    "cxlemu/pool/format.py:make_file": POOL,
    "cxlemu/pool/life.py:__init__": POOL,
    "cxlemu/pool/life.py:is_held_at": POOL,
    "cxlemu/pool/numa.py:nodes_with_memory": KERNEL,
    "cxlemu/pool/owner.py:_boot_id": KERNEL,
    "cxlemu/pool/owner.py:_start_ticks": KERNEL,
    "cxlemu/pool/room.py:_chain": KERNEL,
    "cxlemu/pool/room.py:_limits": KERNEL,
    "cxlemu/pool/room.py:_statistic": KERNEL,
    "cxlemu/pool/room.py:memory_left_bytes": KERNEL,
    "cxlemu/topology/summary.py:_read": OURS,
    "cxlemu/asserts.py:get_code": EXECUTED,
    "cxlemu/userfile.py:load": EXECUTED,
    "cxlemu/world/environment.py:_nearest_ancestor_without": KERNEL,
    "cxlemu/world/orphans.py:_folders": KERNEL,
    "cxlemu/world/orphans.py:_is_orphan": KERNEL,
    "cxlemu/world/orphans.py:_writes": KERNEL,
    "faults/journal.py:__init__": "it is appended to as well, and is a regular file or refused",
    "faults/programs/folders.py:_sweep": RUN,
    "faults/programs/folders.py:run_folder": RUN,
    "faults/programs/processes.py:_exit": RUN,
    "faults/programs/resuming.py:_digest": EXECUTED,
    "faults/programs/servers.py:_parent": KERNEL,
    "faults/programs/doing.py:system_state": KERNEL,
    "faults/testing/torch_rank.py:main": EXECUTED,
    "faults/torch/launch.py:_is_suspended": KERNEL,
    "faults/torch/rank.py:run": EXECUTED,
    "studies/peers/callgrind.py:_total": RUN,
    "studies/peers/group.py:__init__": RUN,
}


def reads(call: ast.Call) -> bool:
    match call.func:
        case ast.Name("open") | ast.Attribute(ast.Name("io"), "open" | "open_code" | "FileIO"):
            return not only_writes(call.args[1:])
        case ast.Attribute(ast.Name("os"), "open"):
            return "O_WRONLY" not in ast.unparse(call)
        case ast.Attribute(ast.Name("np" | "numpy"), "load" | "fromfile" | "loadtxt" | "genfromtxt" | "memmap"):
            return "BytesIO" not in ast.unparse(call)
        case ast.Attribute(_, "open"):  # a path's: those of pools and memories are given other things than a mode
            named = {keyword.arg for keyword in call.keywords} - {"mode", "errors", "encoding", "newline", "buffering"}
            return not named and all(is_text(given) for given in call.args) and not only_writes(call.args)
        case ast.Attribute(_, "read_text" | "read_bytes" | "get_data" | "exec_module" | "run_path" | "getlines"):
            return True
    return False


def only_writes(mode: list[ast.expr]) -> bool:
    match mode:
        case [ast.Constant(str(text)), *_]:
            return text[0] in "wxa" and "+" not in text
    return False


def is_text(given: ast.expr) -> bool:
    return isinstance(given, ast.Constant) and isinstance(given.value, str)


def openings(source: str) -> Iterator[tuple[str, str]]:
    """The innermost function and the call, of whatever opens a file for reading."""
    tree, of = ast.parse(source), {}
    for node in ast.walk(tree):  # outer ones first
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            of.update(dict.fromkeys(ast.walk(node), node.name))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and reads(node):
            yield of.get(node, ""), ast.unparse(node)


def test_every_file_is_opened_by_the_reader() -> None:
    found: dict[str, list[str]] = {}
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            source = file.read_text()
            if re.search(
                r"open|read_|\bload|fromfile|genfromtxt|memmap|get_data|exec_module|run_path|getlines", source
            ):
                for function, call in openings(source):
                    found.setdefault(f"{file.relative_to(ROOT)}:{function}", []).append(call)
    assert {place: calls for place, calls in found.items() if place not in EXCEPTIONS} == {}
    assert set(EXCEPTIONS) - set(found) == set(), "these open nothing any more"


@with_rows(
    ("def f(path):\n with open(path) as file: pass", 1),
    ("def f(path):\n path.open('rb'); path.open(); path.open(errors='replace'); path.open('r+b')", 4),
    ("path.read_text(); path.read_bytes(); np.load(path); os.open(path, os.O_RDONLY)", 4),
    ("open(path, 'w'); path.open('ab'); os.open(path, os.O_WRONLY); memory.open(cards, host=1)", 0),
)
def test_what_opens_a_file_is_found(source: str, count: int) -> None:
    assert len(list(openings(source))) == count


def quietly(read: Callable[[Path], object]) -> Callable[[Path], str]:
    """What a reader says of a file that it cannot read, as an error or as its result."""

    def said(path: Path) -> str:
        try:
            return str(read(path))
        except InputError as error:
            return str(error)

    return said


def kept(path: Path) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "kept_file", lambda: path)
        patch.delenv(machine.VARIABLE, raising=False)
        machine.thresholds.cache_clear()
        try:
            return machine.thresholds().source
        finally:
            machine.thresholds.cache_clear()


READERS: dict[str, Callable[[Path], object]] = {
    "machine.json": kept,
    "plan": load_plan,
    "trace": chakra.read,
    "json": lambda path: read_json(path, "--groups"),
    "yaml": Document.read,
    "tuned": tuned._read,
    "suppressions": suppressions.read,
    "token of a failure": replay_run._read,
    "token of a run": lambda path: exec_run._read(f"@{path}"),
    "algorithm": lambda path: case.digest(f"{path}:build"),
    "program": binary.is_recompiled,
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", READERS)
def test_no_reader_waits_for_a_fifo_or_reads_a_device(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    said = quietly(READERS[name])
    for path in sorted(tmp_path.iterdir()):
        assert re.search(rf"{re.escape(str(path))}.*: a (FIFO|device|directory), not a regular file", said(path))


@pytest.mark.parametrize("name", sorted(READERS.keys() - {"program", "tuned"}))  # it is searched; it may be absent
def test_every_reader_bounds_what_it_reads_and_says_what_is_absent(tmp_path: Path, name: str) -> None:
    said = quietly(READERS[name])
    if name != "machine.json":
        assert "No such file or directory" in said(tmp_path / "absent")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 36)  # all holes
    assert re.search(r": larger than \d+ bytes", said(tmp_path / "huge"))


def test_a_source_that_cannot_be_read_shows_no_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.c")
    (tmp_path / "is.c").write_bytes(b"int a;\r\n  int b;\n")
    found = [
        positions.source_line(positions.Position(str(tmp_path / file), line, "main", 0))
        for file, line in (("fifo.c", 1), ("is.c", 2), ("is.c", 4), ("is.c", 0))
    ]
    assert found == ["", "int b;", "", ""]


@pytest.mark.parametrize("path", [Path("a\0b"), Path("/proc/self/status")], ids=["NUL", "no size"])
def test_the_reader_names_what_it_cannot_read(path: Path) -> None:
    with pytest.raises(OSError, match=r"not the name of a file|has 0 bytes, but another number was read") as error:
        read_file(path, 1 << 20)
    assert error.value.filename in (repr(str(path)), str(path))
