"""One vocabulary for all commands: a concept has the same flags, the same kind of value and the same help everywhere.

A command takes its options from here, as in ``@option("budget", default="60s")``; tests/test_vocabulary.py holds every
command to it, and to `REPLACED`. Imports nothing that computes, so that ``--help`` is there at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from cxlemu.cli.output import json_asked_for
from cxlemu.cli.params import BytesParam

F = TypeVar("F", bound=Callable[..., Any])

_UNITS = {"s": 1, "m": 60, "h": 3600}
_RANKS = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


class SecondsParam(click.ParamType):  # type: ignore[type-arg]  # generic only in the newest click
    """A time such as ``60s``, ``10m`` or ``2h``, in seconds; without a unit it is in seconds.

    Args:
        none_at_all: Whether 0 is a time as well.
    """

    name = "time"

    def __init__(self, *, none_at_all: bool = False) -> None:
        self._none_at_all = none_at_all

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Convert a time to seconds."""
        if not (match := re.fullmatch(r"(\d{1,7}(?:\.\d{1,3})?)([smh]?)", str(value), re.ASCII)):
            self.fail(f"{str(value)[:40]!r} is not a time: write 60s, 10m or 2h.", param, ctx)
        seconds = float(match[1]) * _UNITS[match[2] or "s"]
        if not seconds and not self._none_at_all:
            self.fail(f"{str(value)[:40]!r} is no time at all: write 60s, 10m or 2h.", param, ctx)
        return seconds


class RanksParam(click.ParamType):  # type: ignore[type-arg]  # generic only in the newest click
    """``3``, ``2-64`` or ``2,3,8``, or several of these as ``2-5,7,8``: the numbers, each once, from small to large.

    Args:
        least: The smallest number that is allowed.
        most: The largest number that is allowed.
    """

    name = "ranks"

    def __init__(self, least: int, most: int) -> None:
        self.least, self.most = least, most

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """Show the three forms in ``--help``."""
        return "N|N-N|N,N"

    def convert(
        self, value: str | Sequence[int], param: click.Parameter | None, ctx: click.Context | None
    ) -> Sequence[int]:
        """Convert the text to numbers; a default that is a sequence already is left as it is."""
        if not isinstance(value, str):
            return value
        found: set[int] = set()
        for item in value.split(","):
            match = _RANKS.fullmatch(item)
            first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
            if not self.least <= first <= last <= self.most:
                self.fail(
                    f"{item!r} is no number of ranks from {self.least} to {self.most}, nor a range as 2-4; write 3, "
                    f"2-4, 2,4,8 or 2-5,8.",
                    param,
                    ctx,
                )
            found.update(range(first, last + 1))
        return tuple(sorted(found))


class OneRanksParam(click.IntRange):
    """One number of ranks, where several would make no sense.

    Args:
        least: The smallest number that is allowed.
        most: The largest number that is allowed.
        why: Why there is only one, as the end of a sentence.
    """

    def __init__(self, least: int, most: int, why: str) -> None:
        super().__init__(least, most)
        self.why = why

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Convert the text to a number."""
        if isinstance(value, str) and all(_RANKS.fullmatch(item) for item in value.split(",")) and not value.isdigit():
            self.fail(f"{value!r} are several numbers of ranks: give one, {self.why}.", param, ctx)
        number: int = super().convert(value, param, ctx)
        return number


class Concept(NamedTuple):
    """A concept of the vocabulary.

    Attributes:
        flags: All of its spellings; the first long one is what it is called, those after it are aliases.
        dest: The parameter that gets its value, unless a command names another.
        settled: What click is told of it in every command, unless a command says it more closely.
        types: What the type of its value is an instance of, if that is settled.
    """

    flags: tuple[str, ...]
    dest: str
    settled: dict[str, Any]
    types: tuple[type, ...] = ()


_FILE = click.Path(path_type=Path)

VOCABULARY = {
    "ranks": Concept(("-n", "--ranks"), "ranks", {}, (OneRanksParam, RanksParam)),
    "minbytes": Concept(("-b", "--minbytes"), "minbytes", {"type": BytesParam()}, (BytesParam,)),
    "maxbytes": Concept(("-e", "--maxbytes"), "maxbytes", {"type": BytesParam()}, (BytesParam,)),
    "datatype": Concept(("-d", "--datatype", "--dtype"), "datatype", {}),
    "config": Concept(("-c", "--config"), "config", {}),
    "root": Concept(("-r", "--root"), "root", {}),
    "op": Concept(("-o", "--op"), "op", {}),
    "faults": Concept(("--faults",), "script_file", {"metavar": "SCRIPT"}),
    "kinds": Concept(("--kinds",), "kinds", {}),
    "launch": Concept(("--launch",), "how", {}),
    "budget": Concept(("--budget",), "budget_s", {"type": SecondsParam(), "metavar": "TIME"}, (SecondsParam,)),
    "json": Concept(
        ("--json",),
        "json_file",
        {
            "type": _FILE,
            "metavar": "PATH|-",
            "callback": json_asked_for,
            "help": "Write everything there as JSON; - is stdout, which then has nothing else.",
        },
        (click.Path,),
    ),
    "plot": Concept(("--plot",), "plot_file", {"type": _FILE, "metavar": "PATH"}, (click.Path,)),
}

# What was written once, or could be, and how it is written.
REPLACED = {
    "--bytes": "-b/--minbytes",
    "--size": "-b/--minbytes",
    "--budget-s": "--budget",
    "--fault": "--kinds",
    "--script": "--faults",
    "--kind": "--kinds",
}


class ConceptOption(click.Option):
    """An option of the vocabulary; `word` is its concept."""

    word: str


def option(word: str, **told: Any) -> Callable[[F], F]:
    """Return the decorator that gives a command an option of the vocabulary.

    Args:
        word: The concept, of `VOCABULARY`.
        told: What `click.option` takes and this command settles: a default, a help, a closer type; ``dest`` names the
            parameter.
    """
    meant = VOCABULARY[word]
    dest = told.pop("dest", meant.dest)
    option_class = type("Option", (ConceptOption,), {"word": word})
    return click.option(*meant.flags, dest, cls=option_class, **{**meant.settled, **told})
