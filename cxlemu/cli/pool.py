"""``cxlemu pool``: list, show and clean pools in shared memory, format and show those on devices."""

import click

from cxlemu.choices import DEFAULT_TOPOLOGY
from cxlemu.cli.commands import VerbsGroup
from cxlemu.cli.options import Flags, JsonFlags, argument, concept, flag, switch, taking
from cxlemu.cli.params import BytesParam, NumberParam
from cxlemu.cli.vocabulary import WAIT_S_MAX


class PoolCleanFlags(JsonFlags):
    name: str | None = argument(required=False)
    dry_run: bool = switch("--dry-run", help="List what would be removed, and remove nothing.")


class PoolFormatFlags(JsonFlags):
    paths: tuple[str, ...] = flag(
        "--device",
        multiple=True,
        required=True,
        metavar="PATH",
        help="Device or file of a card; repeat it for each card.",
    )
    interleave: int = flag(
        "--interleave", type=BytesParam(), default="64K", help="Size of the pieces that cards hold in turn."
    )
    max_ranks: int = flag(
        "--max-ranks",
        type=click.IntRange(1),
        default=1024,
        help="Largest number of ranks that can use the pool at once.",
    )
    create_size: int | None = flag("--create-size", type=BytesParam(), help="Create missing files with this size.")
    lend: int | None = flag(
        "--lend", type=BytesParam(), metavar="SIZE", help="Lend the pool's capacity to tenants, in blocks of SIZE."
    )
    yes: bool = switch("--yes", help="Overwrite existing contents without asking.")


class PoolShowFlags(JsonFlags):
    name: str | None = argument(required=False)
    paths: tuple[str, ...] = flag(
        "--device",
        multiple=True,
        metavar="PATH",
        help="Device or file of a card, instead of NAME; repeat it for each card.",
    )


class LentFlags(JsonFlags):
    name: str | None = flag("--pool", metavar="NAME", help="Name of a pool in shared memory.")
    paths: tuple[str, ...] = flag(
        "--device",
        multiple=True,
        metavar="PATH",
        help="Device or file of a card; repeat it for each card, in any order.",
    )


class AddFlags(LentFlags):
    tenant: str = argument()
    size: int = argument(type=BytesParam())


class ReleaseFlags(LentFlags):
    tenant: str = argument()


class ForceFlags(LentFlags):
    tenant: str = argument()
    wait_s: float = flag(
        "--wait-s",
        type=NumberParam(0, WAIT_S_MAX),
        default=30.0,
        help="Seconds to wait until the tenant's ranks have left.",
    )
    gone: bool = switch("--gone", help="The tenant's ranks no longer run: their hosts are off.")


class HoldFlags(Flags):
    name: str = argument()
    config: str = concept("config", default=DEFAULT_TOPOLOGY, help="Topology of the cards: a file or a name.")
    card_size: int | None = flag("--card-size", type=BytesParam(), help="Size of each card.  [default: the topology's]")
    block: int = flag("--block", type=BytesParam(), default="1M", help="Size of the blocks that are lent.")


@click.group(cls=VerbsGroup)
def command() -> None:
    """Manage pools in shared memory and on devices, and lend their capacity.

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
@taking(JsonFlags, work="pool_run:list_pools")
def list_pools() -> None:
    """List all pools on this machine, including dead and damaged pools.

    \b
    Examples:
      cxlemu pool list
      cxlemu pool list --json -
    """


@command.command()
@taking(PoolCleanFlags, work="pool_run:clean")
def clean() -> None:
    """Remove the dead pools of this user: all, or the pool NAME.

    A pool whose owner is alive stays.

    \b
    Examples:
      cxlemu pool clean --dry-run
      cxlemu pool clean
      cxlemu pool clean 4711-c0ffee
    """


@command.command("format")
@taking(PoolFormatFlags, work="pool_devices:format_pool")
def format_pool() -> None:
    """Make a pool of devices or files: the first --device becomes card 0, and so on.

    Prints the contents of each, and asks before it overwrites anything but zeros. Without a terminal, --yes is needed.
    With --lend, runs need a tenant, and `cxlemu pool capacity` manages the tenants.

    \b
    Examples:
      cxlemu pool format --device /dev/dax0.0 --device /dev/dax1.0
      cxlemu pool format --device card0 --create-size 64M --interleave 4K
      cxlemu pool format --device card0 --device card1 --create-size 64M --lend 1M
    """


@command.command()
@taking(PoolShowFlags, work="pool_run:show")
def show() -> None:
    """Show a pool, and change nothing.

    For the pool NAME in shared memory, shows superblock, cards and hosts; refuses a damaged pool with the reason. For
    devices or files, shows their kind, how they can be mapped, and their contents.

    \b
    Examples:
      cxlemu pool show 4711-c0ffee
      cxlemu pool show --device /dev/dax0.0 --device /dev/dax1.0
      cxlemu pool show --device card0 --json -
    """


@command.group(cls=VerbsGroup)
def capacity() -> None:
    """Lend a pool's capacity to tenants while they run.

    A grant is the same bytes of every card. Its tenant runs inside it with `cxlemu run --tenant NAME`, or from Python
    with launch(..., tenant="NAME"), and reaches nothing else of the pool. Manage a pool that several hosts share on one
    of these hosts.

    \b
    Examples:
      cxlemu pool format --device card0 --device card1 --create-size 64M --lend 1M
      cxlemu pool capacity add red 16M --device card0 --device card1
      cxlemu run --tenant red --backend dax --device card0 --device card1 -n 2
      cxlemu pool capacity show --device card0 --device card1
      cxlemu pool capacity force red --device card0 --device card1
    """


@capacity.command("show")
@taking(LentFlags, work="pool_capacity:show")
def show_capacity() -> None:
    """Show all grants, the ranks in each, and the free capacity.

    \b
    Examples:
      cxlemu pool capacity show --pool shared
      cxlemu pool capacity show --device card0 --device card1 --json -
    """


@capacity.command()
@taking(AddFlags, work="pool_capacity:add")
def add() -> None:
    """Lend TENANT the next SIZE bytes of every card, in one piece and whole blocks.

    Other tenants keep running.

    \b
    Examples:
      cxlemu pool capacity add red 16M --pool shared
      cxlemu pool capacity add red 1G --device /dev/dax0.0 --json -
    """


@capacity.command()
@taking(ReleaseFlags, work="pool_capacity:release")
def release() -> None:
    """Give back all grants of TENANT, or one of them, such as red:3.

    A grant with ranks in it is refused.

    \b
    Examples:
      cxlemu pool capacity release red --pool shared
      cxlemu pool capacity release red:3 --pool shared
    """


@capacity.command()
@taking(ForceFlags, work="pool_capacity:force")
def force() -> None:
    """Take away all grants of TENANT.

    Its running ranks get an AccessError; their bytes become free once they have left. Exit code 1 if ranks are still
    there after --wait-s.

    \b
    Examples:
      cxlemu pool capacity force red --pool shared
      cxlemu pool capacity force red --wait-s 5 --device card0 --device card1
    """


@capacity.command()
@taking(HoldFlags, work="pool_capacity:hold")
def hold() -> None:
    """Make a pool in shared memory to lend its capacity, and keep it until Ctrl-C.

    \b
    Examples:
      cxlemu pool capacity hold shared
      cxlemu pool capacity hold shared -c laptop --card-size 256M --block 4M
    """
