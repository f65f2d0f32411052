"""What the kernel reads from a pool, and stores there, for POSIX aio, io_submit and io_uring is its caller's.

Right programs are quiet; a missing flush or invalidate is named with the line that asked the kernel.
"""

from pathlib import Path

import pytest

from faults.programs.findings import KINDS, ProgramFinding
from faults.programs.positions import located
from faults.programs.result import RunChoice, RunEnding, RunResult
from tests.helpers.pool_programs import CHOICES, MODES, built, on_x86, ran

pytestmark = [*on_x86, pytest.mark.each_value_once]
HEADERS = {"RING": "linux/io_uring.h", "LIBURING": "liburing.h", "LIBAIO": "libaio.h"}
LIBRARIES = {"LIBURING": ("-Wl,--no-as-needed", "-luring"), "LIBAIO": ("-Wl,--no-as-needed", "-laio")}
WAYS = ("AIO", "LIST", "THREAD", "SIGNAL", "SUBMIT", "SUBMIT_PARTS", "RING", "RING_PARTS", "RING_FIXED", *LIBRARIES)
NOT_HERE = 77


def both(mode: str, way: str, choice: RunChoice, *flags: str) -> RunResult:
    header = HEADERS.get(way.partition("_")[0])
    if header and not (Path("/usr/include") / header).exists():
        pytest.skip(f"there is no {header}")
    its = built(mode, "asynchronous.c", f"-DWAY={way}", *flags, *LIBRARIES.get(way, ()))
    result = ran(f"{its} /dev/dax0.0 w : {its} /dev/dax0.0 r", choice)
    if NOT_HERE in [one.code for one in result.exits]:
        pytest.skip(f"this system has no {way}")
    return result


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
def test_a_right_program_is_quiet(way: str, mode: str) -> None:
    for choice in CHOICES:
        result = both(mode, way, choice)
        assert [(one.code, one.output) for one in result.exits] == [(0, ""), (0, "")], choice
        assert result.ending is RunEnding.ENDED and result.findings == [] and result.unannounced == 0, choice


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("flag", "kind", "role"),
    [("-DNOT_FLUSHED", "not-flushed", "store"), ("-DNO_INVALIDATE", "no-invalidate", "access")],
)
def test_its_mistake_is_named_where_the_kernel_was_asked(way: str, mode: str, flag: str, kind: str, role: str) -> None:
    result = both(mode, way, CHOICES[0], flag)
    found = [ProgramFinding.one(bytes(raw)) for raw in result.findings]
    assert {KINDS[its.kind].name for its in found} - {"dirty-at-exit"} == {kind}
    (place,) = located([result.places[found[0].site(role)]])
    assert place is not None
    at = [place.at, *place.callers]
    if way not in LIBRARIES or mode == "recompiled":
        assert any(frame.file.endswith("asynchronous.c") for frame in at), at
