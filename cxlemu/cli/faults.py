"""``cxlemu faults``: what is done with faults, one command each."""

from __future__ import annotations

import click

from cxlemu.cli.campaign import command as campaign


@click.group()
def command() -> None:
    """Sweep faults over collectives.

    \b
    Examples:
      cxlemu faults campaign --seeds 100 --budget 5m
    """


command.add_command(campaign, "campaign")
