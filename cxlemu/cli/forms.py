"""A command whose first word may ask for another form of it, with options of its own."""

from __future__ import annotations

import importlib
from itertools import pairwise
from typing import Any

import click


def forms(**modules: str) -> type[click.Command]:
    """``modules``: first word -> the module that holds its click command, named `command`; loaded when asked for."""

    class Forms(click.Command):
        def make_context(
            self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
        ) -> click.Context:
            if args and args[0] in modules:
                form: click.Command = importlib.import_module(modules[args[0]]).command
                return form.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
            return super().make_context(info_name, args, parent, **extra)

    return Forms


def engines(**modules: str) -> type[click.Command]:
    """The same for ``--engine NAME``, wherever it stands."""

    class Engines(click.Command):
        def make_context(
            self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
        ) -> click.Context:
            joined = " ".join(args).replace("--engine=", "--engine ").split()
            name = next((after for flag, after in pairwise(joined) if flag == "--engine"), None)
            if name in modules:
                form: click.Command = importlib.import_module(modules[name]).command
                return form.make_context(info_name, args, parent, **extra)
            return super().make_context(info_name, args, parent, **extra)

    return Engines
