"""Commands that are run once for each number of ranks that ``-n`` names."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from cxlemu.cli import INTERRUPTED
from cxlemu.cli.output import collected_json, write_json
from cxlemu.errors import ArgumentError, InputError
from cxlemu.units import format_numbers

WORST_FIRST = (1, INTERRUPTED, 3, 2)  # of exit codes: a mistake that was found goes before everything


def for_each_ranks(*single: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the decorator of a command's function that makes ``ranks`` one number, and calls it for each.

    The function's JSON stands for one number as it is; for several the file has ``{"runs": [...]}``, those that ended.
    The command exits with the worst exit code.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def called(**flags: Any) -> None:
            ctx, ranks = click.get_current_context(), flags.pop("ranks")
            if ranks is None or len(ranks) == 1:
                ctx.params["ranks"] = ranks and ranks[0]
                function(ranks=ranks and ranks[0], **flags)
                return
            for name in single:
                if flags[name] is not None:
                    flag = next(max(param.opts, key=len) for param in ctx.command.params if param.name == name)
                    raise ArgumentError(f"{flag} holds one run: give one number of ranks with -n")
            _each(ctx, ranks, lambda number: function(ranks=number, **flags), flags.get("json_file"))

        return called

    return decorate


def _each(ctx: click.Context, ranks: Sequence[int], run: Callable[[int], None], json_file: Path | None) -> None:
    codes: list[int] = []
    runs: list[Any] = []
    try:
        for number in ranks:
            with collected_json(ctx, runs), _OneRun(ctx, number), _named(number, ranks):
                codes.append(_code_of(run, number))
            interrupted = codes[-1] == INTERRUPTED or bool(runs and runs[-1].get("interrupted"))
            if interrupted:
                break
    except BaseException as error:
        if runs:  # what ended before stands
            write_json(json_file, {"runs": runs, "interrupted": isinstance(error, KeyboardInterrupt)})
        raise
    write_json(json_file, {"runs": runs, "interrupted": interrupted})
    ctx.exit(next((code for code in WORST_FIRST if code in codes), 0))


@contextmanager
def _named(number: int, ranks: Sequence[int]) -> Iterator[None]:
    """Let bad input say for which number of ranks, and which ones are not tried any more."""
    try:
        yield
    except InputError as error:
        left = [other for other in ranks if other > number]
        error.args = (f"-n {number}: {error}" + (f"; not tried: -n {format_numbers(left)}" if left else ""),)
        raise


class _OneRun(click.Context):
    """The context of one run: when it exits, what the command's own context holds stays open for the others."""

    def __init__(self, parent: click.Context, ranks: int) -> None:
        super().__init__(parent.command, parent, parent.info_name)
        self._command = parent
        self.params = parent.params | {"ranks": ranks}

    def get_parameter_source(self, name: str) -> ParameterSource | None:
        return self._command.get_parameter_source(name)


def _code_of(run: Callable[[int], None], number: int) -> int:
    try:
        run(number)
    except click.exceptions.Exit as end:
        return end.exit_code
    return 0
