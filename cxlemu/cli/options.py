"""A verb's options as one typed object: a field says name, flags, type, default and help, and nothing says them again.

    class BenchFlags(Flags):
        collectives: tuple[str, ...] = argument(nargs=-1, metavar="[COLLECTIVE]...")
        minbytes: int = concept("minbytes", default="8", help="Smallest size.")
        single_copy: bool = flag("--single-copy/--no-single-copy", default=True, help="Let MPI copy ...")

    @click.command()
    @taking(BenchFlags, work="bench_run:run")
    def command() -> None:
        ...  # its docstring is the help

The work is `run(ctx, options)` in a module beside the command's, which is imported when the verb runs: --help is there
at once, and the work imports the options, never the other way round. Verbs share options by inheritance: --help shows
a verb's own first.
"""

import functools
import importlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from cxlemu.cli.params import each_once
from cxlemu.cli.vocabulary import option

_Make = Callable[[str], Callable[[Any], Any]]  # a field's name -> the decorator that gives a command the parameter


class Flags:
    """What was asked of a verb: a value for each field of its class. (As a dataclass it takes 3 ms to define.)"""

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)


def flag(*flags: str, **settled: Any) -> Any:
    """Return the field of an option; takes what `click.option` takes, and shows a default that there is."""
    settled.setdefault("show_default", settled.get("default") is not None)
    if settled.get("multiple"):
        settled.setdefault("callback", each_once)
    return lambda name: click.option(*flags, name, **settled)


def switch(*flags: str, **settled: Any) -> Any:
    """Return the field of an option without a value."""
    return flag(*flags, is_flag=True, **settled)


def choice(*flags: str, of: Iterable[str], **settled: Any) -> Any:
    """Return the field of an option that takes one of some words."""
    return flag(*flags, type=click.Choice([*of]), **settled)


def path(*flags: str, **settled: Any) -> Any:
    """Return the field of an option that names a file or a folder."""
    return flag(*flags, type=click.Path(path_type=Path), **settled)


def concept(word: str, **settled: Any) -> Any:
    """Return the field of an option of the vocabulary; takes what `vocabulary.option` takes."""
    settled.setdefault("show_default", settled.get("default") is not None)
    return lambda name: option(word, dest=name, **settled)


def argument(**settled: Any) -> Any:
    """Return the field of an argument; takes what `click.argument` takes. One of several words has none twice."""
    if settled.get("nargs") == -1:
        settled.setdefault("callback", each_once)
    return lambda name: click.argument(name, **settled)


def tenant_option() -> Any:
    """Return the field of the option that names the tenant of a run."""
    about = "Run inside this tenant's grant: see cxlemu pool capacity.  [default: $CXLEMU_TENANT]"
    return flag("--tenant", envvar="CXLEMU_TENANT", help=about)


class JsonFlags(Flags):
    json_file: Path | None = concept("json")


def taking(options: type[Flags], *, work: str) -> Callable[[Callable[[], None]], Callable[..., None]]:
    """Return the decorator that gives a command the options of a class, and the work to do with them."""
    module, _, name = work.partition(":")

    def decorate(function: Callable[[], None]) -> Callable[..., None]:
        beside = f"{function.__module__.rpartition('.')[0]}.{module}"

        @functools.wraps(function)
        def called(**flags: Any) -> None:
            getattr(importlib.import_module(beside), name)(click.get_current_context(), options(**flags))

        for name_of_field, make in reversed(_own_first(options)):
            make(name_of_field)(called)
        return called

    return decorate


def _own_first(options: type[Flags]) -> list[tuple[str, _Make]]:
    made: dict[str, _Make] = {}
    for each in options.__mro__:
        for name in vars(each).get("__annotations__", {}):
            made.setdefault(name, vars(each)[name])
    return list(made.items())
