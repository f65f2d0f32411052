"""Commands that packages bring: an entry point's value is a table, verb -> (module, one line of help, section).

    [project.entry-points."cxlemu.commands"]
    mine = "my_package.cli:VERBS"

The module holds a click command named ``command``, or as ``module:name`` says, and is imported when its verb is used.
`cxlemu --help` lists the verb in its section; without one, in the last.
A command may be extended the same way: ``cxlemu simulate NAME`` asks the entry points of ``cxlemu.simulate``.
"""

import importlib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from itertools import pairwise
from typing import Any, NamedTuple

import click

from cxlemu.cli import completion
from cxlemu.errors import ArgumentError
from cxlemu.suggest import meant


class Verb(NamedTuple):
    """Where a verb's command is, and its line in a help text."""

    module: str
    text: str
    section: str = "more"


Table = Mapping[str, tuple[str, str] | tuple[str, str, str]]


@cache
def commands(group: str) -> dict[str, Verb]:
    """Return verb -> (module, line of help) of all packages; a table that fails to load is named on stderr."""
    verbs: dict[str, Verb] = {}
    origin: dict[str, str] = {}
    for entry in sorted(entry_points(group=group), key=lambda entry: (entry.name, entry.value)):
        for verb, about in _table(entry):
            if origin.setdefault(verb, entry.value) != entry.value:
                raise ArgumentError(
                    f"{origin[verb]} and {entry.value} both provide a command {verb!r}: uninstall one of them"
                )
            verbs[verb] = about
    if not verbs:
        again = "delete *.egg-info of an old checkout and install cxlemu again"
        raise ArgumentError(f"no installed package provides commands ({group}): {again}")
    return verbs


def _table(entry: EntryPoint) -> Iterator[tuple[str, Verb]]:
    try:
        table: Table = entry.load()
        for verb, fields in table.items():
            yield str(verb), Verb(*map(str, fields))
    except Exception as error:  # a package that is not ours: it must not take all other commands with it
        from cxlemu.cli.overwritten import remedies  # only here: it reads what is installed

        package = entry.value.partition(".")[0]
        how = remedies([package]).get(package) or repr(error)
        click.echo(f"cxlemu: the commands of {entry.value} cannot be loaded: {how}", err=True)


def load(group: str, verb: str) -> click.Command | None:
    table = commands(group)
    if verb not in table:
        return None
    module, _, name = table[verb].module.partition(":")
    command = as_verb(getattr(importlib.import_module(module), name or "command"))
    return completion.install(command) if completion.is_asked() else command


def brought(group: str, name: str, option: str) -> Any:
    """Import what a package brings for an option of another one's command."""
    entries = sorted(entry_points(group=group, name=name), key=lambda entry: entry.value)
    if not entries:
        again = "delete *.egg-info of an old checkout and install cxlemu again"
        raise ArgumentError(f"{option}: no installed package provides {name} ({group}): {again}")
    return entries[0].load()


class VerbCommand(click.Command):
    """A command that refuses an empty word as a file, which would be the current folder, and that says so where an
    option is given twice, as by a script and its caller: the last one counts."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does, and write a note about each option that takes one value and is given twice."""
        if not ctx.resilient_parsing:  # a shell asks for completions
            values, _, given = self.make_parser(ctx).parse_args([*args])
            for param in dict.fromkeys(given):
                flag, option = max(param.opts, key=len), param if isinstance(param, click.Option) else None
                if isinstance(param.type, click.Path) and "" in _each(values[param.name]):
                    raise ArgumentError(f"{flag if option else 'an argument'} '' names no file")
                single = option and not option.multiple and (not option.is_flag or option.secondary_opts)
                if single and given.count(param) > 1:
                    click.echo(f"note: {flag} is given twice; the last one counts", err=True)
        return super().parse_args(ctx, args)


def _each(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else (value,)


def as_verb(command: click.Command) -> click.Command:
    """Make a plain command of click's a `VerbCommand`, so that no package needs to know of that class."""
    if type(command) is click.Command:
        command.__class__ = VerbCommand
    return command


class VerbsGroup(VerbCommand, click.Group):
    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        super().add_command(as_verb(cmd), name)

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

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the verbs, without importing their commands."""
        return list(commands(self.entry_group))

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return load(self.entry_group, name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each verb with its line of help, without importing its command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.text) for name, verb in commands(self.entry_group).items()])


def group_of(entry_group: str) -> type[LazyGroup]:
    """Return the class of a click group whose commands come from a group of entry points."""
    return type("EntryGroup", (LazyGroup,), {"entry_group": entry_group})


def with_forms(entry_group: str) -> type[VerbCommand]:
    """Return the class of a click command whose first word may ask for another form, with options of its own."""

    class Forms(VerbCommand):
        forms_of = entry_group

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
                formatter.write_dl([(name, verb.text) for name, verb in commands(entry_group).items()])

    return Forms


def engines(**commands: click.Command) -> type[VerbCommand]:
    """Return the class of a click command that ``--engine NAME``, wherever it stands, turns into another one."""

    class Engines(VerbCommand):
        engines = commands

        def make_context(
            self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
        ) -> click.Context:
            joined = " ".join(args).replace("--engine=", "--engine ").split()
            form = commands.get(next((after for flag, after in pairwise(joined) if flag == "--engine"), ""))
            if form is not None:
                return as_verb(form).make_context(info_name, args, parent, **extra)
            return super().make_context(info_name, args, parent, **extra)

    return Engines
