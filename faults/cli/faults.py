"""``cxlemu faults``: break things on purpose, and judge how collectives end."""

import click

from cxlemu.cli.commands import VerbsGroup
from faults.cli.campaign import command as campaign_command
from faults.cli.faults_sweep import sweep_command


@click.group(cls=VerbsGroup, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Break caches, doorbells, ranks, cards and links on purpose, and judge how collectives end."""


command.add_command(sweep_command)
command.add_command(campaign_command, "campaign")
