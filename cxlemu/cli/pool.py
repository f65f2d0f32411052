"""``cxlemu pool``: list, show and clean pools in shared memory, format and show those on devices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from cxlemu.choices import DEFAULT_TOPOLOGY
from cxlemu.cli.commands import VerbsGroup
from cxlemu.cli.params import BytesParam
from cxlemu.cli.vocabulary import option


@click.group(cls=VerbsGroup)
def command() -> None:
    """List, show and clean pools in shared memory, format and show pools on devices, lend the capacity of both.

    \b
    Examples:
      cxlemu pool list
      cxlemu pool show 4711-c0ffee
      cxlemu pool clean --dry-run
      cxlemu pool format --device /dev/dax0.0 --device /dev/dax1.0
      cxlemu pool show --device /dev/dax0.0 --device /dev/dax1.0
      cxlemu pool capacity show --device /dev/dax0.0 --device /dev/dax1.0
    """


@command.command("list")
@option("json")
def list_pools(json_file: Path | None) -> None:
    """All pools on this machine, dead and damaged ones too.

    \b
    Examples:
      cxlemu pool list
      cxlemu pool list --json -
    """
    from cxlemu.cli import pool_run

    pool_run.list_pools(json_file)


@command.command()
@click.argument("name", required=False)
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@option("json")
def clean(name: str | None, dry_run: bool, json_file: Path | None) -> None:
    """Remove dead pools of this user: all, or the one called NAME. A pool whose owner lives is never touched.

    \b
    Examples:
      cxlemu pool clean --dry-run
      cxlemu pool clean
      cxlemu pool clean 4711-c0ffee
    """
    from cxlemu.cli import pool_run

    pool_run.clean(name, dry_run, json_file)


_devices = click.option("--device", "paths", multiple=True, required=True, metavar="PATH", help="Once for each card.")


@command.command("format")
@_devices
@click.option("--interleave", type=BytesParam(), default="64K", show_default=True, help="Granule dealt to one card.")
@click.option("--max-ranks", type=click.IntRange(1), default=1024, show_default=True, help="Ranks that can meet there.")
@click.option("--create-size", type=BytesParam(), help="Make files that do not exist, of this size.")
@click.option("--lend", type=BytesParam(), metavar="SIZE", help="Its capacity is lent to tenants, in blocks of SIZE.")
@click.option("--yes", is_flag=True, help="Overwrite what is there without asking.")
@option("json")
def format_pool(
    paths: tuple[str, ...],
    interleave: int,
    max_ranks: int,
    create_size: int | None,
    lend: int | None,
    yes: bool,
    json_file: Path | None,
) -> None:
    """Make one pool of devices or files: the first --device becomes card 0, and so on.

    Says what lies on each, and asks before it overwrites anything but zeros. Without a terminal to ask at, --yes has to
    be given. With --lend, runs need a tenant, and `cxlemu pool capacity` says who has what.

    \b
    Examples:
      cxlemu pool format --device /dev/dax0.0 --device /dev/dax1.0
      cxlemu pool format --device card0 --create-size 64M --interleave 4K
      cxlemu pool format --device card0 --device card1 --create-size 64M --lend 1M
    """
    from cxlemu.cli import pool_devices

    pool_devices.format_pool(paths, interleave, max_ranks, create_size, lend, yes, json_file)


@command.command()
@click.argument("name", required=False)
@click.option("--device", "paths", multiple=True, metavar="PATH", help="Cards instead of a NAME: once for each.")
@option("json")
def show(name: str | None, paths: tuple[str, ...], json_file: Path | None) -> None:
    """Say what one pool is. Writes nothing.

    Of a pool in shared memory, called NAME: superblock, cards and hosts; with anything wrong it is refused with the
    reason. Of devices or files: what they are, how they can be mapped, and what lies on them.

    \b
    Examples:
      cxlemu pool show 4711-c0ffee
      cxlemu pool show --device /dev/dax0.0 --device /dev/dax1.0
      cxlemu pool show --device card0 --json -
    """
    if (name is None) == (not paths):
        raise click.UsageError("say which pool: its NAME, or --device PATH for each of its cards.")
    if name is not None:
        from cxlemu.cli import pool_run

        pool_run.show(name, json_file)
    else:
        from cxlemu.cli import pool_devices

        pool_devices.show(paths, json_file)


F = TypeVar("F", bound=Callable[..., Any])


def _of_a_pool(function: F) -> F:
    """--pool or --device, and --json."""
    for add in (
        option("json"),
        click.option("--device", "paths", multiple=True, metavar="PATH", help="A card: once for each, in any order."),
        click.option("--pool", "name", metavar="NAME", help="A pool in shared memory."),
    ):
        function = add(function)
    return function


@command.group(cls=VerbsGroup)
def capacity() -> None:
    """Lend a pool's capacity to tenants while they run.

    A grant is the same bytes of every card. Whoever holds one runs in it with `cxlemu run --tenant NAME`, or from
    Python with launch(..., tenant="NAME"), and reaches nothing else of the pool. Manage a pool that several hosts share
    on one of them.

    \b
    Examples:
      cxlemu pool format --device card0 --device card1 --create-size 64M --lend 1M
      cxlemu pool capacity add red 16M --device card0 --device card1
      cxlemu run --tenant red --backend dax --device card0 --device card1 -n 2
      cxlemu pool capacity show --device card0 --device card1
      cxlemu pool capacity force red --device card0 --device card1
    """


@capacity.command("show")
@_of_a_pool
def show_capacity(name: str | None, paths: tuple[str, ...], json_file: Path | None) -> None:
    """Who holds what, who is in it, and what is free.

    \b
    Examples:
      cxlemu pool capacity show --pool shared
      cxlemu pool capacity show --device card0 --device card1 --json -
    """
    from cxlemu.cli import pool_capacity

    pool_capacity.show(name, paths, json_file)


@capacity.command()
@click.argument("tenant")
@click.argument("size", type=BytesParam())
@_of_a_pool
def add(tenant: str, size: int, name: str | None, paths: tuple[str, ...], json_file: Path | None) -> None:
    """Lend TENANT the next SIZE of every card, in one piece and whole blocks; others go on meanwhile.

    \b
    Examples:
      cxlemu pool capacity add red 16M --pool shared
      cxlemu pool capacity add red 1G --device /dev/dax0.0 --json -
    """
    from cxlemu.cli import pool_capacity

    pool_capacity.add(tenant, size, name, paths, json_file)


@capacity.command()
@click.argument("tenant")
@_of_a_pool
def release(tenant: str, name: str | None, paths: tuple[str, ...], json_file: Path | None) -> None:
    """Give back what TENANT holds, or one grant of it as in red:3. Refused while ranks are in it.

    \b
    Examples:
      cxlemu pool capacity release red --pool shared
      cxlemu pool capacity release red:3 --pool shared
    """
    from cxlemu.cli import pool_capacity

    pool_capacity.release(tenant, name, paths, json_file)


@capacity.command()
@click.argument("tenant")
@click.option(
    "--wait-s",
    type=click.FloatRange(0),
    default=30.0,
    show_default=True,
    help="For its ranks to leave.",
)
@click.option("--gone", is_flag=True, help="Nobody of them runs any more: their hosts are off.")
@_of_a_pool
@click.pass_context
def force(
    ctx: click.Context,
    tenant: str,
    wait_s: float,
    gone: bool,
    name: str | None,
    paths: tuple[str, ...],
    json_file: Path | None,
) -> None:
    """Take away all that TENANT holds. Its running ranks get an AccessError, and nobody their bytes before they left.

    Exit code 1: after --wait-s somebody is still in it; those bytes become free when they left.

    \b
    Examples:
      cxlemu pool capacity force red --pool shared
      cxlemu pool capacity force red --wait-s 5 --device card0 --device card1
    """
    from cxlemu.cli import pool_capacity

    pool_capacity.force(ctx, tenant, wait_s, gone, name, paths, json_file)


@capacity.command()
@click.argument("name")
@option("config", default=DEFAULT_TOPOLOGY, show_default=True, help="A topology: how many cards, how large.")
@click.option("--card-size", type=BytesParam(), help="Of each card, instead of the config's.")
@click.option("--block", type=BytesParam(), default="1M", show_default=True, help="What capacity is lent in.")
def hold(name: str, config: str, card_size: int | None, block: int) -> None:
    """Make a pool in shared memory whose capacity is lent, and keep it until Ctrl-C.

    \b
    Examples:
      cxlemu pool capacity hold shared
      cxlemu pool capacity hold shared -c laptop --card-size 256M --block 4M
    """
    from cxlemu.cli import pool_capacity

    pool_capacity.hold(name, config, card_size, block)
