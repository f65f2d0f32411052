"""Copies are several stores: a line may leave its cache amid one."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cxlemu.cli import main
from tests.helpers.compilers import use_compiler
from tests.helpers.pool_programs import build, on_x86
from tests.helpers.tables import with_rows

pytestmark = on_x86

ROWS = (
    ("copy", "0 64 0", 1),
    ("copy", "7 64 0", 1),
    ("copy", "3 64 0", 1),
    ("copy", "2 24 0", 1),
    ("copy", "0 12 0", 1),
    ("copy", "1 16 8", 1),
    ("copy", "0 16 16", 0),
    ("assign", "0 64 0", 1),
    ("apart", "0 64 0", 0),
)


@pytest.fixture(params=["gcc", pytest.param("clang", marks=pytest.mark.deep)])
def tears(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    use_compiler(monkeypatch, request.param)
    return build("tears.c")


def exec_(tears: Path, how: str, what: str, *flags: str, look: str = "") -> Result:
    words = f"{tears} send {how} {what} : {tears} look {look or how} {what}".split()
    return CliRunner().invoke(main, ["exec", "--pool", "/dev/shm/tears=2M", *flags, "--no-shrink", "--", *words])


@with_rows(*ROWS)
def test_a_search_tears_what_is_no_single_store(how: str, what: str, code: int, tears: Path) -> None:
    result = exec_(tears, how, what, "--every", "--evictions", "1")
    assert result.exit_code == code, result.output
    assert result.output.startswith("1. torn: a copy that arrives in parts") == code
    assert bool(re.search(r"host 0 stores +\S*tears.c:2[12] in main", result.output)) == code
    assert bool(re.search(r"host 1 loads +\S*tears.c:34 in main", result.output)) == code
    if code:
        again = re.search("^again: cxlemu (.*)$", result.output, re.MULTILINE)
        assert again and "differently" not in result.output
        assert CliRunner().invoke(main, shlex.split(again[1])).exit_code == 1


def test_without_evictions_nothing_is_torn(tears: Path) -> None:
    assert exec_(tears, "copy", "0 64 0", "--every").exit_code == 0


@with_rows(("copy", 1), ("assign", 1), ("apart", 0))
def test_seeds_tear_copies(how: str, code: int, tears: Path) -> None:
    result = exec_(tears, how, "0 64 0", "--seeds", "30")
    assert result.exit_code == code, result.output
    assert result.output.startswith("1. torn: a copy that arrives in parts") == code


@with_rows(("take", 1), ("words", 0))
def test_seeds_divide_copies_from_a_pool(look: str, code: int, tears: Path) -> None:
    result = exec_(tears, "words", "0 64 0", "--seeds", "60", look=look)
    assert result.exit_code == code, result.output
    assert result.output.startswith("1. torn-load: a copy that is loaded in parts") == code
    assert bool(re.search(r"host 1 loads +\S*tears.c:31 in main", result.output)) == code
    if code:
        again = re.search("^again: cxlemu (.*)$", result.output, re.MULTILINE)
        assert again and "2. " not in result.output
        assert CliRunner().invoke(main, shlex.split(again[1])).exit_code == 1
