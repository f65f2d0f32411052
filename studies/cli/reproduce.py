"""``cxlemu reproduce``: published systems' figures, ours beside each."""

from __future__ import annotations

import click

from cxlemu.cli.commands import group_of


@click.group(cls=group_of("cxlemu.reproduce"))
def command() -> None:
    """Compare published measurements with our plans on the modelled hardware.

    Other packages add systems: entry points of the group cxlemu.reproduce.

    \b
    Examples:
      cxlemu reproduce cccl
      cxlemu reproduce flux
      cxlemu reproduce scalepool
    """
