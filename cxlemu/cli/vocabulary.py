"""One vocabulary for all commands: a concept has the same flags, the same kind of value and the same help everywhere.

A command takes its options from here, as in ``@option("budget", default="60s")``; tests/test_vocabulary.py holds every
command to it, and to `REPLACED`. Imports nothing that computes, so that ``--help`` is there at once.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from cxlemu.cli.output import json_asked_for
from cxlemu.cli.params import BytesParam, NumberParam, each_once

F = TypeVar("F", bound=Callable[..., Any])

WAIT_S_MAX = 1_000_000
_UNITS = {"s": 1, "m": 60, "h": 3600}
_RANKS = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


class SecondsParam(click.ParamType):  # type: ignore[type-arg]  # generic only in the newest click
    """A time such as ``60s``, ``10m`` or ``2h``, in seconds; without a unit it is in seconds."""

    name = "time"

    def __init__(self, *, none_at_all: bool = False) -> None:
        self._none_at_all = none_at_all

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if not (match := re.fullmatch(r"(\d{1,7}(?:\.\d{1,3})?)([smh]?)", str(value), re.ASCII)):
            self.fail(f"{str(value)[:40]!r} is not a time: write 60s, 10m or 2h.", param, ctx)
        seconds = float(match[1]) * _UNITS[match[2] or "s"]
        if not seconds and not self._none_at_all:
            self.fail(f"{str(value)[:40]!r} is not a time above 0: write 60s, 10m or 2h.", param, ctx)
        return seconds


class RanksParam(click.ParamType):  # type: ignore[type-arg]  # generic only in the newest click
    """``3``, ``2-64`` or ``2,3,8``, or several of these as ``2-5,7,8``: numbers, none twice, from small to large."""

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
        numbers: set[int] = set()
        for item in value.split(","):
            match = _RANKS.fullmatch(item)
            first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
            if not self.least <= first <= last <= self.most:
                self.fail(
                    f"invalid rank count {item!r}: must be {self.least} to {self.most}, or a range such as 2-4; "
                    f"write 3, 2-4, 2,4,8 or 2-5,8.",
                    param,
                    ctx,
                )
            if twice := numbers & {*range(first, last + 1)}:
                self.fail(f"-n {min(twice)} is named twice.", param, ctx)
            numbers.update(range(first, last + 1))
        return tuple(sorted(numbers))


class OneRanksParam(click.IntRange):
    """One number of ranks, where several would make no sense."""

    def __init__(self, least: int, most: int, why: str) -> None:
        super().__init__(least, most)
        self.why = why

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, str) and all(_RANKS.fullmatch(item) for item in value.split(",")) and not value.isdigit():
            self.fail(f"{value!r} are several numbers of ranks: give one, {self.why}.", param, ctx)
        number: int = super().convert(value, param, ctx)
        return number


class Concept(NamedTuple):
    flags: tuple[str, ...]  # all spellings; the first long one names the option, later ones are aliases
    dest: str  # the parameter that gets its value, unless a command names another
    settled: dict[str, Any]  # arguments of `click.option` in every command that does not override them
    types: tuple[type, ...] = ()  # what the type of its value is an instance of, if that is settled


_FILE = click.Path(path_type=Path)

VOCABULARY = {
    "ranks": Concept(("-n", "--ranks"), "ranks", {"help": "Number of ranks."}, (OneRanksParam, RanksParam)),
    "minbytes": Concept(
        ("-b", "--minbytes"),
        "minbytes",
        {"type": BytesParam(), "help": "Smallest size; 1K is 1024 bytes."},
        (BytesParam,),
    ),
    "maxbytes": Concept(
        ("-e", "--maxbytes"), "maxbytes", {"type": BytesParam(), "help": "Largest size."}, (BytesParam,)
    ),
    "stepfactor": Concept(
        ("-f", "--stepfactor"),
        "stepfactor",
        {"type": click.IntRange(2), "metavar": "N", "help": "Multiply the size by N for each row."},
        (click.IntRange,),
    ),
    "stepbytes": Concept(
        ("-i", "--stepbytes"),
        "stepbytes",
        {"type": BytesParam(), "help": "Increment the size by this for each row, instead of -f."},
        (BytesParam,),
    ),
    "datatype": Concept(("-d", "--datatype", "--dtype"), "datatype", {"help": "Type of the elements."}),
    "config": Concept(("-c", "--config"), "config", {"help": "Topology: a file or a name."}),
    "root": Concept(("-r", "--root"), "root", {"help": "Root rank of rooted collectives."}),
    "op": Concept(("-o", "--op"), "op", {"help": "Operation of reductions."}),
    "algorithm": Concept(
        ("--algorithm",),
        "algorithm",
        {"metavar": "FILE.py:FUNCTION", "help": "An algorithm of your own; executes the file."},
    ),
    "region": Concept(
        ("--region-bytes",),
        "region_bytes",
        {"type": BytesParam(), "help": "Size of the communicator's ring in the pool."},
        (BytesParam,),
    ),
    "deadline": Concept(
        ("--deadline-s",),
        "deadline_s",
        {"type": NumberParam(0, WAIT_S_MAX, min_open=True), "help": "Limit for each wait."},
        (click.FloatRange,),
    ),
    "jobs": Concept(
        ("-j", "--jobs"),
        "jobs",
        {"type": click.IntRange(1, 256), "help": "Number of workers.", "default_text": "one per core"},
        (click.IntRange,),
    ),
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
            "help": "Write the results there as JSON; - writes JSON, and nothing else, to stdout.",
        },
        (click.Path,),
    ),
    "trace": Concept(
        ("--trace",),
        "trace_file",
        {"type": _FILE, "metavar": "PATH|-", "help": "Write a timeline for Perfetto; - is stdout."},
        (click.Path,),
    ),
    "verbose": Concept(("-v", "--verbose"), "verbose", {"is_flag": True}, (type(click.BOOL),)),
    "plot": Concept(("--plot",), "plot_file", {"type": _FILE, "metavar": "PATH"}, (click.Path,)),
}


class ConceptOption(click.Option):
    word: str


def option(word: str, **settings: Any) -> Callable[[F], F]:
    """Return the decorator that gives a command an option of the vocabulary.

    ``default_text`` says in the help what happens without the option, where that is no value.
    """
    meant = VOCABULARY[word]
    settled = meant.settled | settings
    if text := settled.pop("default_text", None):
        settled["help"] = f"{settled['help']}  [default: {text}]"
    if settled.get("multiple"):
        settled.setdefault("callback", each_once)
    option_class = type("Option", (ConceptOption,), {"word": word})
    return click.option(*meant.flags, settled.pop("dest", meant.dest), cls=option_class, **settled)
