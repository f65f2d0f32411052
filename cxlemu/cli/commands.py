"""Commands that packages bring: an entry point's value is a table, verb -> (module, one line of help).

    [project.entry-points."cxlemu.commands"]
    mine = "my_package.cli:VERBS"

The module holds a click command named ``command``, or as ``module:name`` says, and is imported when its verb is used.
A command may be extended the same way: ``cxlemu simulate NAME`` asks the entry points of ``cxlemu.simulate``.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar

import click

from cxlemu.cli import completion
from cxlemu.errors import ArgumentError
from cxlemu.suggest import meant

Table = Mapping[str, tuple[str, str]]


@cache
def commands(group: str) -> dict[str, tuple[str, str]]:
    """Collect the commands that all packages bring.

    A table that cannot be loaded is left out, with a sentence on stderr.

    Args:
        group: The group of entry points.

    Returns:
        verb -> (module, one line of help), in alphabetical order of the entry points' names.

    Raises:
        ArgumentError: Two packages bring the same verb, or no package brings any.
    """
    found: dict[str, tuple[str, str]] = {}
    origin: dict[str, str] = {}
    for entry in sorted(entry_points(group=group), key=lambda entry: (entry.name, entry.value)):
        for verb, told in _table(entry):
            if origin.setdefault(verb, entry.value) != entry.value:
                raise ArgumentError(
                    f"{origin[verb]} and {entry.value} both bring a command {verb!r}: uninstall one of them"
                )
            found[verb] = told
    if not found:
        again = "delete *.egg-info of an old checkout and install cxlemu again"
        raise ArgumentError(f"no installed package brings commands ({group}): {again}")
    return found


def _table(entry: EntryPoint) -> Iterator[tuple[str, tuple[str, str]]]:
    try:
        table: Table = entry.load()
        for verb, (module, text) in table.items():
            yield str(verb), (str(module), str(text))
    except Exception as error:  # a package that is not ours: it must not take all other commands with it
        from cxlemu.cli.overwritten import remedies  # only here: it reads what is installed

        package = entry.value.partition(".")[0]
        how = remedies([package]).get(package) or repr(error)
        click.echo(f"cxlemu: the commands of {entry.value} cannot be loaded: {how}", err=True)


def load(group: str, verb: str) -> click.Command | None:
    """Import a command.

    Args:
        group: The group of entry points that it comes from.
        verb: Its name.

    Returns:
        The command; None if there is no such verb.

    Raises:
        ArgumentError: See `commands`.
    """
    table = commands(group)
    if verb not in table:
        return None
    module, _, name = table[verb][0].partition(":")
    command: click.Command = getattr(importlib.import_module(module), name or "command")
    return completion.install(command) if completion.is_asked() else command


class VerbsGroup(click.Group):
    """A group that says which of its verbs was probably meant."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Find the command of the first word; click's usage error for a verb that there is not."""
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            verbs = self.list_commands(ctx)
            close = meant(args[0], verbs) or f": there are {', '.join(verbs)}"
            ctx.fail(f"there is no command {args[0][:80]!r}{close}")
        return super().resolve_command(ctx, args)


class LazyGroup(VerbsGroup):
    """A group whose commands come from an entry point's group, each imported when it is used."""

    entry_group = "cxlemu.commands"
    forms: ClassVar[Mapping[str, str]] = {}  # verb -> the group of entry points of the commands below it

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the verbs, without importing their commands."""
        return list(commands(self.entry_group))

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import a verb's command; None if there is no such verb."""
        return load(self.entry_group, name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each verb with its line of help, without importing its command."""
        with formatter.section("Commands"):
            formatter.write_dl([(verb, text) for verb, text in self.lines()])

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield each verb with its line of help, those in `forms` with the commands below them."""
        for verb, (_, text) in commands(self.entry_group).items():
            yield verb, text
            if verb in self.forms:
                yield from ((f"{verb} {form}", told) for form, (_, told) in commands(self.forms[verb]).items())


def group_of(entry_group: str) -> type[LazyGroup]:
    """Return the class of a click group whose commands come from a group of entry points."""
    return type("EntryGroup", (LazyGroup,), {"entry_group": entry_group})


def with_forms(entry_group: str) -> type[click.Command]:
    """Return the class of a click command whose first word may ask for another form, with options of its own.

    Args:
        entry_group: The group of entry points that forms come from.
    """

    class Forms(click.Command):
        def make_context(
            self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
        ) -> click.Context:
            form = load(entry_group, args[0]) if args else None
            if form is not None:
                return form.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
            return super().make_context(info_name, args, parent, **extra)

        def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
            super().format_options(ctx, formatter)
            with formatter.section("Forms, with options of their own"):
                formatter.write_dl([(verb, text) for verb, (_, text) in commands(entry_group).items()])

    return Forms
