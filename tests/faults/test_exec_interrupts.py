"""Ctrl-C at every place of a search with fork servers: no process and no file is left behind."""

import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from inspect import CO_GENERATOR
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from click.testing import CliRunner

from cxlemu.cli import main
from cxlemu.signals import stops_exit
from faults.cli import exec_every
from faults.programs.area import SHARED
from faults.programs.every.explore import EveryLimits, explore
from faults.programs.folders import PREFIX
from faults.programs.servers import children
from tests.faults.test_exec_servers import setting
from tests.helpers.pool_programs import build, on_x86

OURS = ("servers", "processes", "run", "every/ahead")
PLACES = (*(f"faults/programs/{name}.py" for name in OURS), "/subprocess.py")
PARTS = 8
Place = tuple[str, int, str]
pytestmark = on_x86


def search(at: Callable[[Place], None]) -> None:
    """Make all runs of two commands; call ``at`` with each new place that the driver comes to."""
    leaves, known = str(build("leaves.c")), set[Place]()

    def look(frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        place = f"{file}:{frame.f_code.co_name}", frame.f_lasti, event
        yields = event == "return" and frame.f_code.co_flags & CO_GENERATOR  # no handler runs there
        if file.endswith(PLACES) and place not in known and not yields:
            known.add(place)
            at(place)

    with stops_exit({signal.SIGINT}), closing(explore(setting(leaves, "0", ":", leaves, "1"), EveryLimits())) as runs:
        sys.setprofile(look)
        try:
            for _ in runs:
                pass
        finally:
            sys.setprofile(None)


@pytest.mark.deep(rows=lambda part: part)
@pytest.mark.parametrize("part", range(PARTS))
def test_an_interrupt_at_any_place_of_a_search_leaves_nothing(part: int) -> None:
    places: list[Place] = []
    search(places.append)
    assert len(places) > 100
    before = children()
    gc.collect()
    gc.freeze()  # or each look for garbage would go through that of all tests before
    for place in places[part::PARTS]:
        with suppress(KeyboardInterrupt):  # the search may be over before it comes again, or not come to this place
            search(lambda here, stop=place: signal.raise_signal(signal.SIGINT) if here == stop else None)  # type: ignore[misc]
        gc.collect()
        left = children() - before, list(Path(SHARED).glob(f"{PREFIX}{os.getpid()}-*"))
        assert left == (set(), []), place


@pytest.mark.parametrize("flags", [["--every"], ["--crash", "every"]])
def test_an_interrupt_between_two_runs_ends_the_servers(flags: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def counting(steps: Iterator[object], *_: object, out: object) -> Iterator[object]:
        for step in steps:
            yield step
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(exec_every, "counting", counting)
    leaves, before = str(build("leaves.c")), children()
    words = ["exec", "--pool", "/dev/shm/servers=2M", *flags, "--json", "-", "--", leaves, "0", "::", leaves, "1"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 130 and children() == before, done.output
    told = json.loads(done.stdout)
    assert told["interrupted"] and told["verdict"] == "unknown" and told["runs"]
