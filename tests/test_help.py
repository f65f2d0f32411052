"""Every command's help has examples, which are commands that there are, with flags and values that they take."""

from __future__ import annotations

import shlex
from itertools import pairwise
from pathlib import Path

import click
import pytest

from cxlemu.cli import main
from cxlemu.topology.shipped import shipped_configs
from tests.test_vocabulary import VERBS

ROOT = Path(__file__).parents[1]
WIDTH = 80
INDENT = 4  # of an example in a help text


COMMANDS = {f"cxlemu {verb}": command for verb, command in VERBS.items()}


def examples(command: click.Command) -> list[str]:
    """The lines of a help's examples."""
    _, _, behind = (command.help or "").partition("Examples:\n")
    block = behind.replace("\b", "").split("\n\n")[0]
    return [line.strip() for line in block.splitlines() if line.strip()]


def parsed(line: str) -> None:
    """Let click take a command's flags and arguments, and nothing more."""
    words = shlex.split(line, comments=True)
    if "CC=cxlemu cc" in words:
        return  # how a build system is told
    words = words[words.index("cxlemu") + 1 :]
    for flag, value in pairwise(words):
        if flag in ("-c", "--config", "--against"):
            assert value.endswith(".yaml") or value in shipped_configs(), f"{line}: there is no topology {value}"
    command: click.Command = main
    context = click.Context(main, info_name="cxlemu")
    while isinstance(command, click.Group) and words and (below := command.get_command(context, words[0])):
        command, name, parent = below, words.pop(0), context
        context = click.Context(command, info_name=name, parent=parent)
    assert command is not main, f"{line}: there is no such command"
    command.make_context(context.info_name, words, parent=context.parent)


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_of_a_help_are_commands(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # where files of examples/ are
    shown = examples(COMMANDS[name])
    its = name.partition(" --")[0]
    assert any(line.startswith(its) or f" {its} " in line for line in shown), "no example"
    for line in shown:
        assert len(line) + INDENT <= WIDTH, line
        parsed(line)


def test_an_example_that_is_none_is_noticed() -> None:
    for line in ("cxlemu rnu", "cxlemu run --no-such-flag", "cxlemu run -n x"):
        with pytest.raises((AssertionError, click.UsageError)):
            parsed(line)
