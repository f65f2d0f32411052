"""One thing is not called several: people read what `cxlemu.units.counted` counts, and no plural written by hand."""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from cxlemu.units import counted
from tests.helpers.tables import with_rows

ROOT = Path(__file__).parents[1]
VERBS = {"is", "has", "does", "was", "holds", "takes", "gives", "says", "as", "needs", "reduces", "exceeds"}
UNITS = {"ns", "us", "ms", "times"}
NEVER_ONE = {"' x '.join(map(str, flat))", "of", "there"}  # the last two: only where they are not
PACKAGES = ("cxlemu", "collectives", "faults", "studies")


def by_hand(tree: ast.AST, *, command: bool) -> Iterator[int]:
    """Yield the lines that make a plural: ``"s" * (n != 1)``, ``"" if n == 1 else "s"``, ``rank(s)``; and, in a
    command, those that have none for one: ``f"{len(runs)} runs"``."""
    for node in ast.walk(tree):
        parts: list[ast.expr] = []
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            parts = [node.left, node.right]
        elif isinstance(node, ast.IfExp):
            parts = [node.body, node.orelse]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(r"[a-z]\(s\)", node.value):
            yield node.lineno
        elif isinstance(node, ast.JoinedStr) and command:
            yield from (node.lineno for pair in pairwise(node.values) if is_count(*pair))
        yield from (node.lineno for part in parts if isinstance(part, ast.Constant) and part.value in ("s", "es"))


def is_count(value: ast.expr, after: ast.expr) -> bool:
    """Whether an f-string has a number there that people would say with a plural behind it."""
    if not isinstance(value, ast.FormattedValue) or not isinstance(after, ast.Constant):
        return False
    word = re.match(r" ([a-z]+s)\b(?!/)", str(after.value))  # not in a rate, such as cases/s
    if word is None or word[1] in VERBS | UNITS:
        return False
    if value.format_spec is not None and re.search("[fg]'", ast.unparse(value.format_spec)):  # measured, not counted
        return False
    return ast.unparse(value.value) not in NEVER_ONE and not ast.unparse(value.value).isupper()  # a limit


@pytest.mark.parametrize("package", PACKAGES)
def test_no_plural_is_written_by_hand(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for line in by_hand(ast.parse(path.read_text()), command=path.parent.name == "cli")
    ]
    assert found == []


@with_rows(
    ("f\"{n} rank{'s' * (n > 1)}\"", True),
    ("f\"{n} class{'' if n == 1 else 'es'}\"", True),
    ("'1 rank(s)'", True),
    ("f'{len(runs)} runs'", True),
    ("f'{runs} runs'", True),
    ("f'{len(runs)} of them'", False),
    ("f'{name} takes {RUNS_MAX} runs, {mean:.3g} runs, {runs} runs/s, {latency_ns} ns'", False),
    ("f\"{counted(len(runs), 'run')}\"", False),
    ("'#' * 3", False),
)
def test_the_walk_finds_them(text: str, found: bool) -> None:
    assert bool([*by_hand(ast.parse(text), command=True)]) == found


def test_counts() -> None:
    assert [counted(n, "run") for n in (0, 1, 2, 1234)] == ["0 runs", "1 run", "2 runs", "1,234 runs"]
    assert [counted(n, "process", "processes") for n in (1, 2)] == ["1 process", "2 processes"]
