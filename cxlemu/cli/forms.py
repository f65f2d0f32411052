"""A command that ``--engine NAME``, wherever it stands, turns into another one, with options of its own."""

import importlib
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, ClassVar

import click

from cxlemu.cli.commands import VerbCommand, as_verb


def engines(**modules: str) -> type[VerbCommand]:
    """Return the class of a click command that ``--engine NAME``, wherever it stands, turns into another one."""

    class Engines(VerbCommand):
        engines: ClassVar[Mapping[str, str]] = modules

        def make_context(
            self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
        ) -> click.Context:
            joined = " ".join(args).replace("--engine=", "--engine ").split()
            name = next((after for flag, after in pairwise(joined) if flag == "--engine"), None)
            if name in modules:
                form = as_verb(importlib.import_module(modules[name]).command)
                return form.make_context(info_name, args, parent, **extra)
            return super().make_context(info_name, args, parent, **extra)

    return Engines
