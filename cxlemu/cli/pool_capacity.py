"""``cxlemu pool capacity``: parts of a pool that tenants hold, added, released and taken away while they run."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from cxlemu.capacity.lease import Tenant
from cxlemu.capacity.manager import Grant
from cxlemu.capacity.pool_manager import PoolManager
from cxlemu.cli.console import console, plain_table, print_wrapped
from cxlemu.cli.output import write_json
from cxlemu.cli.pool import AddFlags, ForceFlags, HoldFlags, LentFlags, ReleaseFlags
from cxlemu.errors import AccessError, ArgumentError
from cxlemu.memory import MemorySpec
from cxlemu.pool.owner import NOBODY
from cxlemu.pool.shm import ShmPool
from cxlemu.signals import stops_exit
from cxlemu.topology import Topology
from cxlemu.units import counted, format_bytes

_ATTACH_S = 5.0


@contextmanager
def _managed(asked: LentFlags) -> Iterator[PoolManager]:
    if (asked.name is None) == (not asked.paths):
        raise ArgumentError("name the pool: --pool NAME in shared memory, or --device PATH for each of its cards")
    memory = MemorySpec("dax", devices=asked.paths) if asked.paths else MemorySpec("shm")
    with memory.backend.attach_pool(memory, asked.name, deadline_s=_ATTACH_S) as pool:
        yield PoolManager.open(pool)


def show(_ctx: click.Context, asked: LentFlags) -> None:
    with _managed(asked) as manager:
        facts = _facts(manager)
    if write_json(asked.json_file, facts):
        return
    table = plain_table("grant", "tenant", "of each card", "from byte", "state", "ranks in it", "processes")
    for row in facts["grants"]:
        pids = ", ".join(map(str, row["pids"])) or "-"
        place = (format_bytes(row["bytes"]), str(row["at"]), row["state"], str(row["ranks"]), pids)
        table.add_row(str(row["number"]), row["tenant"], *place)
    out = console()
    if facts["grants"]:
        out.print(table, soft_wrap=False)
    accounts = plain_table("tenant", "holds", "at most", "added", "released", "forced")
    for row in facts["accounts"]:
        accounts.add_row(row["tenant"], *(format_bytes(row[f"{key}_bytes"]) for key in _ACCOUNT))
    if facts["accounts"]:
        out.print(accounts, soft_wrap=False)
    free, lent = format_bytes(facts["free_bytes"]), format_bytes(facts["lent_bytes"])
    cards = f"each of {counted(facts['cards'], 'card')}"
    piece, blocks = format_bytes(facts["largest_bytes"]), format_bytes(facts["block_bytes"])
    print_wrapped(out, f"{free} of {lent} of {cards} are free, {piece} in one piece; blocks of {blocks}")


_ACCOUNT = ("held", "peak", "added", "released", "forced")


def _facts(manager: PoolManager) -> dict[str, Any]:
    """Describe a pool's capacity; all sizes are those of each card."""
    grants = []
    for grant, state in manager.entries():
        users = manager.users_of(grant)
        grants.append(
            {
                **_grant_facts(grant),
                "state": state.name.lower(),
                "ranks": len(users),
                "pids": sorted({user.pid for user in users} - {NOBODY.pid}),
            }
        )
    accounts = [
        {"tenant": account.tenant} | {f"{key}_bytes": getattr(account, f"{key}_bytes") for key in _ACCOUNT}
        for account in manager.accounts()
    ]
    return {
        "cards": manager.cards,
        "block_bytes": manager.block_bytes,
        "lent_bytes": manager.card_bytes - manager.first_byte,
        "free_bytes": manager.free_bytes,
        "largest_bytes": manager.largest_bytes,
        "grants": grants,
        "accounts": accounts,
    }


def _grant_facts(grant: Grant) -> dict[str, Any]:
    return {"number": grant.number, "tenant": grant.tenant, "at": grant.at, "bytes": grant.nbytes}


def add(_ctx: click.Context, asked: AddFlags) -> None:
    with _managed(asked) as manager:
        grant = manager.add(asked.tenant, asked.size)
        cards = manager.cards
    if write_json(asked.json_file, _grant_facts(grant)):
        return
    size_text = format_bytes(grant.nbytes)
    click.echo(
        f"grant {grant.number}: {size_text} of each of {counted(cards, 'card')} from byte {grant.at}, "
        f"for {asked.tenant}"
    )


def release(_ctx: click.Context, asked: ReleaseFlags) -> None:
    wanted = Tenant.parse(asked.tenant)
    with _managed(asked) as manager:
        grants = [grant for grant in manager.grants(wanted.name) if wanted.number in (None, grant.number)]
        if not grants:
            number = "" if wanted.number is None else f" {wanted.number}"
            raise AccessError(f"tenant {wanted.name} holds no grant{number}")
        for grant in grants:
            manager.release(grant)
    _print_grants("released", grants, asked.json_file)


def force(ctx: click.Context, asked: ForceFlags) -> None:
    """Take away all that a tenant holds; exit with 1 if ranks are still in some of it, else with 0."""
    with _managed(asked) as manager:
        taken = manager.force(asked.tenant, wait_s=asked.wait_s, gone=asked.gone)
        left = [grant for grant, state in manager.entries() if grant.tenant == asked.tenant and state.name == "FORCED"]
        users = {grant.number: manager.users_of(grant) for grant in left}
    if not taken:
        raise AccessError(f"tenant {asked.tenant} holds nothing")
    _print_grants("taken away", list(taken), asked.json_file, {number: len(user) for number, user in users.items()})
    ctx.exit(1 if left else 0)


def _print_grants(what: str, grants: list[Grant], json_file: Path | None, ranks: dict[int, int] | None = None) -> None:
    ranks = ranks or {}
    rows = [_grant_facts(grant) | {"ranks": ranks.get(grant.number, 0)} for grant in grants]
    if write_json(json_file, rows):
        return
    for grant in grants:
        count = ranks.get(grant.number, 0)
        still = f"; {count} {PoolManager.users[count > 1]} still in it" if count else ""
        click.echo(f"{what}: grant {grant.number} of {grant.tenant}, {format_bytes(grant.nbytes)} of each card{still}")


def hold(_ctx: click.Context, asked: HoldFlags) -> None:
    topology = Topology.load(asked.config)
    with (
        stops_exit(),
        ShmPool.create(
            asked.name,
            cards=topology.pool_card_count,
            card_bytes=topology.card_bytes if asked.card_size is None else asked.card_size,
            interleave_bytes=topology.interleave_bytes,
            hosts=0,
            numa_node=topology.pool_numa_node,
            max_ranks=1,
        ) as pool,
    ):
        manager = PoolManager.begin(pool, asked.block)
        free = format_bytes(manager.free_bytes)
        cards, blocks = counted(manager.cards, "card"), format_bytes(asked.block)
        click.echo(f"pool {asked.name}: {free} of each of {cards} to lend in blocks of {blocks}")
        threading.Event().wait()
