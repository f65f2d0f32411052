"""A page for every verb of the command line, made of its click definition: what `--help` says, to be searched."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from cxlemu.cli import main
from cxlemu.cli.commands import commands, load

Commands = Iterator[tuple[str, click.Command]]
# As click ends an option's help, perhaps more than once.
EXTRA = re.compile(r"\s*\[((?:default: |required|env var: |\S*x[<>])[^\[\]]*)\]$")


def forms(name: str, command: click.Command) -> Commands:
    """Yield a command and all below it, with the words that ask for each: `cxlemu pool list`.

    Also the forms of a command, which have options of their own: `cxlemu simulate training`, `--engine virtual`.
    """
    yield name, command
    if isinstance(command, click.Group):
        for verb in command.list_commands(click.Context(command)):
            below = command.get_command(click.Context(command), verb)
            assert below is not None
            yield from forms(f"{name} {verb}", below)
    elif group := getattr(command, "forms_of", None):
        for verb in commands(group):
            below = load(group, verb)
            assert below is not None
            yield from forms(f"{name} {verb}", below)
    for engine, below in getattr(command, "engines", {}).items():
        yield f"{name} --engine {engine}", below


def pages() -> dict[str, str]:
    """Make the pages, by the name of the verb, and one of all verbs, `index`."""
    verbs = commands("cxlemu.commands")
    made = {}
    listed = ["# All commands\n", "Each page has what `--help` prints: every option with its default, and examples.\n"]
    for verb, (_, line, *_) in verbs.items():
        command = main.get_command(click.Context(main), verb)
        assert command is not None
        found = list(forms(f"cxlemu {verb}", command))
        made[verb] = f"# cxlemu {verb}\n\n" + "\n".join(section(*each, whole=each[1] is command) for each in found)
        listed.append(f"- [`cxlemu {verb}`]({verb}.md): {line}")
        listed += [f"    - [`{name}`]({verb}.md#{anchor(name)})" for name, _ in found[1:]]
    listed += ["", *options("cxlemu", main)]
    made["index"] = "\n".join(listed) + "\n"
    return made


def anchor(name: str) -> str:
    """The id of a command's heading."""
    return re.sub(r"\W+", "-", name)


def section(name: str, command: click.Command, *, whole: bool) -> str:
    """One command as Markdown.

    Args:
        name: The words that ask for it.
        command: Its definition.
        whole: Whether it is what the page is about, and needs no heading of its own.
    """
    context = click.Context(command, info_name=name, help_option_names=["-h", "--help"])
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    heading = "" if whole else f"## {name} {{#{anchor(name)}}}\n"
    return "\n".join([heading, f"```text\n{usage}\n```\n", *told(command.help or ""), *options(name, command)])


def told(text: str) -> Iterator[str]:
    """Yield the help of a command as Markdown: sentences, and blocks that click leaves as they are."""
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text).split("\f")[0]):
        lines = [line for line in block.strip("\n").splitlines() if line.strip()]
        if not lines:
            continue
        if lines[0].strip() != "\b":
            yield plain(" ".join(line.strip() for line in lines)) + "\n"
            continue
        first, *rest = lines[1:]
        if not rest:
            yield f"{plain(first.strip())}\n"
        elif first.rstrip().endswith(":"):
            yield f"{plain(first.strip())}\n"
            yield f"```text\n{inspect.cleandoc(chr(10).join(['', *rest]))}\n```\n"
        else:
            yield "```text\n" + inspect.cleandoc("\n".join(["", *lines[1:]])) + "\n```\n"


def options(name: str, command: click.Command) -> Iterator[str]:
    """Yield a list of all options: how each is written, what it means, its default."""
    context = click.Context(command, info_name=name, help_option_names=["-h", "--help"], show_default=None)
    params = [param for param in command.get_params(context) if isinstance(param, click.Option)]
    records = [record for param in params if (record := param.get_help_record(context))]
    if records:
        yield "**Options**\n"
    for written, meaning in records:
        sentence, extras = meaning, list[str]()
        while match := EXTRA.search(sentence):
            sentence = sentence[: match.start()]
            extras.insert(0, match[1])
        yield f"`{written}`"
        sentences = [plain(" ".join(sentence.split()))] if sentence.strip() else []
        for extra in extras:
            sentences += [f"{key.strip().capitalize()}: `{value.strip()}`." for key, value in parts(extra)]
        yield f":   {' '.join(sentences) or '&nbsp;'}\n"


def parts(extra: str) -> Iterator[tuple[str, str]]:
    """Yield what click puts into brackets, such as `default: 4K; x>=2`, as pairs."""
    for part in re.split(r";\s+(?=default:|required|env var:|\S*x[<>])", extra):
        key, colon, value = part.partition(": ")
        yield (key, value) if colon else ("Required", "yes") if part == "required" else ("Range", part)


def plain(text: str) -> str:
    """Text that Markdown leaves as it is, but for what stands in backticks."""
    return re.sub(r"(`[^`]+`)|([\\`*_{}\[\]<>|#])", lambda found: found[1] or f"\\{found[2]}", text)
