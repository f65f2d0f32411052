"""A pytest plugin: worlds of ranks in your own tests, faults that happen to them, and a seed that reproduces it.

    def test_the_sum_is_right(cxl_world):
        def main(comm):
            return comm.all_reduce(np.full(1000, comm.rank, np.float32))

        for x in cxl_world(ranks=3).run(main):
            assert (x == 3).all()

docs/pytest.md tells more. Everything else is imported when a test first asks for a world: test runs without one pay
for this file alone.
"""

from __future__ import annotations

import hashlib
import secrets
import sys
from collections.abc import Callable, Generator
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from faults.testing.programs import TestProgram
    from faults.testing.torch_worlds import TorchWorld
    from faults.testing.worlds import Worlds

SEED_BITS = 32
_ROOT = Path(__file__).parents[2]  # where the packages are
_SEED = pytest.StashKey[int]()
_WORLDS = pytest.StashKey["Worlds"]()
_MARKER = "cxl_faults(*scripts, requires=...): the faults in the worlds of this test, see docs/pytest.md of cxlemu"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--cxl-seed N``."""
    parser.getgroup("cxlemu").addoption(
        "--cxl-seed",
        type=_seed,
        metavar="N",
        help="seed of the adversaries of cxl_world and of random faults (default: random, see the header)",
    )


def _seed(text: str) -> int:
    if not text.isdecimal() or not text.isascii() or int(text) >= 1 << SEED_BITS:
        raise pytest.UsageError(f"--cxl-seed takes a number from 0 to {(1 << SEED_BITS) - 1}, not {text!r}")
    return int(text)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker ``cxl_faults``, and choose the run's seed: the controller's, the given one or a random one."""
    config.addinivalue_line("markers", _MARKER)
    given: int | None = config.getoption("--cxl-seed")
    shared: int | None = getattr(config, "workerinput", {}).get("cxl_seed")  # of pytest-xdist
    config.stash[_SEED] = next((seed for seed in (shared, given) if seed is not None), secrets.randbits(SEED_BITS))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give a worker of pytest-xdist the controller's seed, so that it does not matter which worker runs a test."""
    node.workerinput["cxl_seed"] = node.config.stash[_SEED]


def pytest_report_header(config: pytest.Config) -> str:
    """Print the run's seed, with which ``--cxl-seed`` repeats it."""
    return f"cxlemu: --cxl-seed {config.stash[_SEED]}"


@pytest.fixture
def cxl_world(request: pytest.FixtureRequest) -> Worlds:
    """Make worlds: ``cxl_world(ranks=, config=, adversary=)``, whose ``run(main)`` runs ``main(comm)`` on every rank.

    A test's worlds draw from the test's own seed, made of ``--cxl-seed`` and the test's name: it does not depend on
    which other tests run, or where.

    Returns:
        What makes worlds; `faults.testing.worlds.Worlds` lists the arguments, and `check` for whole algorithms.
    """
    from cxlemu.errors import InputError
    from faults.testing.worlds import Worlds, requires_of, script_of

    item, seed = request.node, _own_seed(request.node)
    marks = [(mark.args, mark.kwargs) for mark in item.iter_markers("cxl_faults")]
    try:
        worlds = Worlds(seed, script_of(marks, item.path.parent, seed), requires_of(marks))
    except InputError as error:
        pytest.fail(f"{item.nodeid}: {error}", pytrace=False)
    item.stash[_WORLDS] = worlds
    return worlds


def _own_seed(item: pytest.Item) -> int:
    key = f"{item.config.stash[_SEED]} {item.nodeid}"
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest(), "little")


@pytest.fixture
def cxl_program(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., TestProgram]:
    """Build programs in C and C++, and run them on emulated hosts: ``cxl_program("queue.c").run(commands, pool=)``.

    Returns:
        What builds a program; `faults.testing.programs.TestProgram.run` runs it, and fails with the checker's report.
    """
    from faults.testing.programs import builder

    return builder(tmp_path, request.node.path.parent, _own_seed(request.node))


@pytest.fixture
def torch_world(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., TorchWorld]:
    """Run training functions over the pool: ``torch_world(ranks=2, compare=True).run(train, 20).results``.

    Returns:
        What makes a world; `faults.testing.torch_worlds.TorchWorld.run` runs a function on its ranks.
    """
    from faults.testing.torch_worlds import worlds

    return worlds(tmp_path, request.node.path.parent, _own_seed(request.node))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that is marked with faults, but in no world of which they happened: it would pass for nothing."""
    result = yield
    worlds = item.stash.get(_WORLDS, None)
    if item.get_closest_marker("cxl_faults") and (worlds is None or not worlds.faults_happened()):
        why = "they happen in cxl_world(...).run(main) only, and torch_world takes faults="
        pytest.fail(f"{item.nodeid}: the faults of cxl_faults never happened: {why}", pytrace=False)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to a failed test's report the worlds that it made, and the command that repeats it."""
    if call.excinfo is not None:
        _show_the_users_frames(call.excinfo)
    report = yield
    worlds = item.stash.get(_WORLDS, None)
    if report.failed and (worlds is not None or "torch_world" in getattr(item, "fixturenames", ())):
        again = f"pytest --cxl-seed {item.config.stash[_SEED]} '{item.nodeid}'"
        history = [] if worlds is None else worlds.history()
        report.sections.append(("cxlemu", "\n".join([*history, f"again: {again}"])))
    return report


def _show_the_users_frames(failure: pytest.ExceptionInfo[BaseException]) -> None:
    """Hide our own frames in the traceback of an error that we raised: its sentence says what was wrong.

    Errors that are not ours, which may be mistakes of ours, keep all frames; and so does ``--full-trace``.
    """
    errors = sys.modules.get("cxlemu.errors")  # without it, none of ours was raised
    if errors is None:
        return
    hides = methodcaller("errisinstance", errors.CxlemuError)
    for entry in failure.traceback:
        if any(Path(entry.path).is_relative_to(_ROOT / package) for package in ("cxlemu", "collectives", "faults")):
            entry.frame.f_globals["__tracebackhide__"] = hides  # where pytest looks for it
