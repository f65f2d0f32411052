"""Which tests run without --deep, with it and with --only-deep: see tests/conftest.py."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = ("pytester",)

TESTS = """
import pytest
from typing import NamedTuple
from hypothesis import given, strategies as st

class Case(NamedTuple):
    name: str
    size: int

def test_plain(): pass

@pytest.mark.deep
def test_marked(): pass

@pytest.mark.parametrize("x", [1, pytest.param(2, marks=pytest.mark.deep)])
def test_a_marked_row(x): pass

@pytest.mark.deep(rows=lambda y: y > 1)
@pytest.mark.parametrize("x", "ab")
@pytest.mark.parametrize("y", [1, 2, 3])
def test_chosen_rows(x, y): pass

@pytest.mark.each_value_once
@pytest.mark.parametrize("x", "abc")
@pytest.mark.parametrize("y", [[1], [2]])
def test_a_cover(x, y): pass

@pytest.mark.each_value_once
@pytest.mark.parametrize("case", [Case(name, size) for name in "ab" for size in (1, 2)], ids=lambda case: "%s%d" % case)
def test_a_cover_of_fields(case): pass

tried = []

@given(st.integers())
def test_a_property(x): tried.append(x)

def test_how_many(): print(f"tried {len(tried)}")
"""


@pytest.fixture(autouse=True)
def profile() -> Iterator[None]:
    """That of the test run that this one is part of."""
    name = settings.get_current_profile_name()
    yield
    settings.load_profile(name)


def ran(pytester: pytest.Pytester, *flags: str) -> tuple[set[str], str]:
    """Names of the tests, and what was printed."""
    pytester.makeconftest((Path(__file__).parent / "conftest.py").read_text())
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_inprocess("-v", "-s", "-p", "no:xdist", "-p", "no:cacheprovider", *flags)
    text = result.stdout.str()
    result.assert_outcomes(passed=len(names := set(re.findall(r"::(test_\S+)", text))), deselected=22 - len(names))
    return names, text


def test_the_fast_tier_has_each_value_and_no_more(pytester: pytest.Pytester) -> None:
    names, text = ran(pytester)
    assert names == {
        *("test_plain", "test_a_marked_row[1]", "test_a_property", "test_how_many"),
        *("test_chosen_rows[1-a]", "test_chosen_rows[1-b]"),
        *("test_a_cover[y0-a]", "test_a_cover[y1-b]", "test_a_cover[y0-c]"),
        *("test_a_cover_of_fields[a1]", "test_a_cover_of_fields[b2]"),
    }
    assert "11 deep tests not run: --deep runs them" in text


def test_both_parts_are_the_whole(pytester: pytest.Pytester) -> None:
    fast, _ = ran(pytester)
    rest, printed = ran(pytester, "--only-deep")
    whole, _ = ran(pytester, "--deep")
    assert fast | rest == whole and fast & rest == {"test_a_property"}
    assert "deep tests not run" not in printed


def test_shares_are_the_deep_tier_without_a_test_twice(pytester: pytest.Pytester) -> None:
    rest, _ = ran(pytester, "--only-deep")
    shares = [ran(pytester, "--only-deep", "--share", f"{number}/3") for number in (1, 2, 3)]
    assert sorted(name for names, _ in shares for name in names) == sorted(rest)
    assert all(f"{len(rest) - len(names)} deep tests not run: other shares have them" in text for names, text in shares)


def test_with_the_fast_tier_comes_a_share_of_the_rest(pytester: pytest.Pytester) -> None:
    fast, _ = ran(pytester)
    rest, _ = ran(pytester, "--only-deep")
    shares = [ran(pytester, "--deep", "--share", f"{number}/3")[0] - fast for number in (1, 2, 3)]
    assert sorted(name for names in shares for name in names) == sorted(rest - fast)


@pytest.mark.parametrize(
    "flags", [("--share", "1/3"), *(("--only-deep", "--share", its) for its in ("0/3", "4/3", "2"))]
)
def test_a_share_that_is_none_is_refused(pytester: pytest.Pytester, flags: tuple[str, ...]) -> None:
    pytester.makeconftest((Path(__file__).parent / "conftest.py").read_text())
    assert pytester.runpytest_inprocess("-p", "no:xdist", *flags).ret == pytest.ExitCode.USAGE_ERROR


def test_properties_are_tried_more_often_in_the_deep_tier(pytester: pytest.Pytester) -> None:
    tried = [int(re.findall(r"tried (\d+)", ran(pytester, *flags)[1])[0]) for flags in ((), ("--deep",))]
    assert tried == [10, 100]
