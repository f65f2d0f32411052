"""What programs of others do around a pool: right ones are quiet, and a missing flush is named with its store."""

from pathlib import Path

import pytest

from faults.programs.findings import ProgramFinding
from faults.programs.positions import located
from faults.programs.result import RunChoice, RunEnding, RunResult
from tests.helpers.pool_programs import MODES, SOURCES, built, on_x86, ran

pytestmark = on_x86

SOURCE = "strangers.c"
CHOICES = (RunChoice(None, 0), RunChoice(None, 2), RunChoice(3, 3))
WAYS = (
    *("seam", "unmapped", "remapped", "locked", "timer", "barrier", "limit", "ending", "child", "parts", "jumps"),
    *("copied", "sorted", "exchange", "ahead", "faults", "cancel", "c11", "signals", "condition", "notified"),
    *("newline", "guarded"),
)


@pytest.fixture(scope="module", params=MODES)
def its(request: pytest.FixtureRequest) -> Path:
    return built(request.param, SOURCE)


def run_way(its: Path, way: str, choice: RunChoice) -> RunResult:
    pool = its.with_suffix(".pool")
    return ran(f"{its} {pool} {way} w : {its} {pool} {way} r", choice, pool=f"{pool}=1M")


@pytest.mark.each_value_once
@pytest.mark.parametrize("way", WAYS)
def test_a_right_program_is_quiet(its: Path, way: str) -> None:
    for choice in CHOICES:
        result = run_way(its, way, choice)
        assert {(one.code, one.output) for one in result.exits if "sendfile" not in one.output} == {(0, "")}, choice
        assert result.ending is RunEnding.ENDED and result.findings == [], choice
        assert (
            way not in ("ending", "cancel", "c11", "signals") or result.notes == []
        )  # the schedule knows where threads wait
        assert result.unannounced == 0 or way == "seam", choice  # an instruction may store to both mappings


@pytest.mark.each_value_once
@pytest.mark.parametrize("way", WAYS)
def test_a_store_that_is_not_flushed_is_named(its: Path, way: str) -> None:
    result = run_way(its, f"{way} bug", CHOICES[0])
    lines = (SOURCES / SOURCE).read_text().splitlines()
    found = [ProgramFinding.one(bytes(raw)) for raw in result.findings]
    places = [place for place in located([result.places[one.site("store")] for one in found]) if place]
    assert places and all("the store" in lines[place.at.line - 1] for place in places), places
    if way == "jumps" and its.name == "recompiled":
        assert {caller.function for place in places for caller in place.callers} == {"jumps_write"}


def test_a_device_is_one_before_it_is_opened(its: Path) -> None:
    result = ran(f"{its} /dev/dax0.0 asked w", CHOICES[0])
    assert [(one.code, one.output) for one in result.exits] == [(0, "")]


def test_lengths_of_literals_are_constants(tmp_path: Path) -> None:
    source = tmp_path / "constants.cc"
    source.write_text(
        'static char text[__builtin_strlen("ab")];\nstatic_assert(__builtin_memcmp("a", "b", 1) < 0, "");\n'
    )
    built("recompiled", source, "-c", "-Wno-unused", language="c++")
