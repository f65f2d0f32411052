"""Names of configs, collectives, variants and so on, completed by a shell.

Packages bring the words: an entry point of ``cxlemu.completions`` is a table, a parameter's name -> the function that
returns its words. Where a word is one of a comma list, the last one is completed; where no word fits, files are.
"""

import os
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import entry_points

import click
from click.shell_completion import CompletionItem

ASKED = "_CXLEMU_COMPLETE"  # the shell's question, as click has it

Words = Mapping[str, Callable[[], list[str]]]


def configs() -> list[str]:
    from cxlemu.topology.shipped import shipped_configs

    return sorted(shipped_configs())


WORDS: Words = {"config": configs, "configs": configs, "against": configs}


def is_asked() -> bool:
    """Whether a shell asks for completions, instead of a user for work."""
    return ASKED in os.environ


def install(command: click.Command) -> click.Command:
    """Let the parameters of a command, and of those below it, complete their words; choices do so already."""
    words = {
        name: words_of for entry in entry_points(group="cxlemu.completions") for name, words_of in entry.load().items()
    }
    for param in command.params:
        if param.name in words and not isinstance(param.type, click.Choice):
            param.shell_complete = partial(completed, words[param.name])  # type: ignore[method-assign]
    for below in getattr(command, "commands", {}).values():
        install(below)
    return command


def completed(words: Callable[[], list[str]], ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    before, comma, last = incomplete.rpartition(",")
    items = [CompletionItem(f"{before}{comma}{word}") for word in words() if word.startswith(last)]
    return items or [CompletionItem(incomplete, type="file")]
