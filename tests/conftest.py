"""Two tiers of tests, and settings of property tests.

``pytest`` runs the fast tier, which covers every command, engine, backend and rule at least once. ``pytest --deep``
runs everything (so does naming a test, ``FILE::TEST``), ``pytest --only-deep`` what the fast tier leaves out; with
``--share 2/3``, the second of three shares of that, which together are the whole; ``--deep --share 2/3``, the fast tier
and that share.
To the deep tier belong

- tests and rows with the mark: ``@pytest.mark.deep``, ``pytest.param(..., marks=pytest.mark.deep)``;
- rows of a matrix that a function of their parameters chooses: ``@pytest.mark.deep(rows=lambda ranks: ranks > 3)``;
- with ``@pytest.mark.each_value_once``, the rows that are not needed to have each value of each parameter in some row;
- all property tests once more, with all their examples; the fast tier tries a tenth of them.
  A test that says itself how many it has takes ``@examples(40)`` from tests/helpers/tiers.py, which follows the tier.
"""

import gc
import inspect
import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from tests.helpers.compilers import installed

# What was measured on the machine at hand, and kept, does not decide what tests see: see cxlemu/machine.py.
os.environ.setdefault("CXLEMU_KEEP_DEAD_POOLS", "1")  # those of tests beside this one
os.environ.setdefault("CXLEMU_PAST_CACHES_BYTES", str(4 << 20))

# Under nohup and some CI runners these are ignored, and so they would be by all programs that tests start and stop.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for _stop in (signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(_stop) is signal.SIG_IGN:
        signal.signal(_stop, lambda *_: None)  # here still nothing; what is started has the default

# No example has a deadline, as other work may come in between.
for _tier, _examples in (("fast", 10), ("deep", 100)):
    settings.register_profile(
        _tier, deadline=None, max_examples=_examples, suppress_health_check=[HealthCheck.too_slow]
    )

GIBIBYTE = 1 << 30
GARBAGE_SELDOM = 50_000  # new objects, not 700: a third of the time of collecting tests, a tenth of that of many tests
LEFT_OUT = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiers of tests")
    group.addoption("--deep", action="store_true", help="run all tests, property tests with all their examples")
    group.addoption("--only-deep", action="store_true", help="run what a run without --deep leaves out")
    group.addoption(
        "--share", metavar="K/N", help="with --only-deep or --deep: of the deep tier, run the K-th of N shares"
    )


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """``-n auto``: three workers on two cores, as a third of the time a test waits for its processes."""
    cores = len(os.sched_getaffinity(0))
    return cores + -(-cores // 2)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Workers take runs of neighbours, and steal in the end: what a file's tests share is made once, not in each."""
    if config.getoption("numprocesses", None) and config.getoption("dist") == "no":
        config.option.dist = "worksteal"


def pytest_configure(config: pytest.Config) -> None:
    """Before test modules are imported, whose decorators take their number of examples from the profile."""
    deep = config.getoption("deep") or config.getoption("only_deep")
    if (share := config.getoption("share")) is not None and not deep:
        raise pytest.UsageError("--share is of the deep tier: add --only-deep or --deep")
    if share is not None and not (
        re.fullmatch(r"\d+/\d+", share) and 1 <= int(share.split("/")[0]) <= int(share.split("/")[1])
    ):
        raise pytest.UsageError(f"--share {share}: give one of N, from 1/N to N/N")
    settings.load_profile("deep" if deep else "fast")  # --hypothesis-profile replaces it
    config.stash[LEFT_OUT] = 0
    gc.set_threshold(GARBAGE_SELDOM, 10, 10)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Workers begin with another part of the modules each: what one has compiled, the others read."""
    if (worker := getattr(session.config, "workerinput", None)) is None:
        return
    here = session.config.invocation_params.dir
    files = sorted(file for argument in session.config.args for file in (here / argument).rglob("test_*.py"))
    for file in files[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        if file.is_relative_to(session.config.rootpath):
            with suppress(Exception, pytest.skip.Exception):  # which the collection says
                import_module(".".join(file.relative_to(session.config.rootpath).with_suffix("").parts))


def pytest_report_header() -> str:
    return f"compilers of programs: {', '.join(installed())}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not of the tier that was asked for; the others selected already, as by -k and -m."""
    whole, only_deep, share = (config.getoption(name) for name in ("deep", "only_deep", "share"))
    named = any("::" in argument for argument in config.args)  # a test that is asked for by name runs whole
    if ((whole and share is None) or named) and not only_deep:
        return
    deep = {item for item in items if is_marked(item)}
    deep |= redundant([item for item in items if item not in deep and item.get_closest_marker("each_value_once")])
    left_out: list[pytest.Item] = []
    not_run = deep
    if only_deep:
        left_out = [item for item in items if item not in deep and not is_property(item)]
        not_run = set()
    if share is not None:
        number, shares = map(int, share.split("/"))
        shared = set(items).difference(left_out) if only_deep else deep
        not_run = {item for item in shared if crc32(item.nodeid.encode()) % shares != number - 1}
    config.stash[LEFT_OUT] = len(not_run)
    left_out += not_run
    config.hook.pytest_deselected(items=left_out)
    gone = set(left_out)
    items[:] = [item for item in items if item not in gone]


def pytest_collection_finish() -> None:
    """What was imported and collected is no garbage: never look at it again."""
    gc.freeze()


def is_property(item: pytest.Item) -> bool:
    return is_hypothesis_test(getattr(item, "obj", None))


def is_marked(item: pytest.Item) -> bool:
    for mark in item.iter_markers("deep"):
        chooses = mark.kwargs.get("rows")
        if chooses is None or chooses(**{name: row_of(item)[name] for name in inspect.signature(chooses).parameters}):
            return True
    return False


def row_of(item: pytest.Item) -> dict[str, Any]:
    return item.callspec.params  # type: ignore[attr-defined]


def redundant(items: list[pytest.Item]) -> set[pytest.Item]:
    """Rows of matrices without which each value is still in some row; rows of many new values are kept first."""
    matrices: dict[str, list[pytest.Item]] = {}
    for item in items:
        matrices.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept: set[pytest.Item] = set()
    for rows in matrices.values():
        seen: set[tuple[str, str]] = set()
        values = {item: set(values_of(item)) for item in rows}
        for new in range(max(map(len, values.values())), 0, -1):
            for item in rows:
                if len(values[item] - seen) >= new:
                    kept.add(item)
                    seen |= values[item]
    return set(items) - kept


def values_of(item: pytest.Item) -> Iterator[tuple[str, str]]:
    """Of its row; a named tuple's fields are values of their own."""
    for name, value in row_of(item).items():
        parts = {f"{name}.{part}": its for part, its in value._asdict().items()} if hasattr(value, "_asdict") else {}
        yield from ((part, repr(its)) for part, its in (parts or {name: value}).items())


class Garbage:
    """What a test's errors hold in circles, with their frames and worlds: some gigabytes before Python would free it.

    A process that is large stays so, and to look at all its objects after each test would take half of a run.
    """

    limit_bytes = GIBIBYTE

    @classmethod
    def collect(cls) -> None:
        """Only when the process has grown since."""
        if resident_bytes() > cls.limit_bytes:
            gc.collect()
            cls.limit_bytes = max(GIBIBYTE, resident_bytes() + GIBIBYTE // 4)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def pytest_runtest_logfinish(nodeid: str) -> None:
    Garbage.collect()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):  # a worker of pytest-xdist tells its controller
        session.config.workeroutput["left out"] = session.config.stash[LEFT_OUT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    left_out = node.config.stash[LEFT_OUT]  # of each worker the same number: each collects all tests
    node.config.stash[LEFT_OUT] = max(left_out, getattr(node, "workeroutput", {}).get("left out", 0))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if count := config.stash[LEFT_OUT]:
        which = "other shares have them" if config.getoption("share") else "--deep runs them"
        terminalreporter.write_line(f"{count} deep tests not run: {which}")
