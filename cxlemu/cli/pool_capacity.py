"""``cxlemu pool capacity``: parts of a pool that tenants hold, added, released and taken away while they run."""

from __future__ import annotations

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
from cxlemu.errors import AccessError, ArgumentError
from cxlemu.memory import MemorySpec
from cxlemu.pool.shm import ShmPool
from cxlemu.topology import Topology
from cxlemu.units import counted, format_bytes
from cxlemu.world.signals import stops_exit

_ATTACH_S = 5.0


@contextmanager
def _managed(name: str | None, paths: tuple[str, ...]) -> Iterator[PoolManager]:
    if (name is None) == (not paths):
        raise ArgumentError("say which pool: --pool NAME in shared memory, or --device PATH for each of its cards")
    memory = MemorySpec("dax", devices=paths) if paths else MemorySpec("shm")
    with memory.backend.attach_pool(memory, name, deadline_s=_ATTACH_S) as pool:
        yield PoolManager.open(pool)


def show(name: str | None, paths: tuple[str, ...], json_file: Path | None) -> None:
    """Print which tenants hold what, which ranks are in it, and what is free.

    Args:
        name: The pool in shared memory; None with ``paths``.
        paths: The devices of the pool's cards; empty with ``name``.
        json_file: Where the same goes as JSON; None: nowhere.

    Raises:
        ArgumentError: Not exactly one of ``name`` and ``paths`` is given.
    """
    with _managed(name, paths) as manager:
        facts = _facts(manager)
    if write_json(json_file, facts):
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
                "pids": sorted({user.pid for user in users}),
            }
        )
    accounts = [
        {"tenant": its.tenant} | {f"{key}_bytes": getattr(its, f"{key}_bytes") for key in _ACCOUNT}
        for its in manager.accounts()
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


def add(tenant: str, size: int, name: str | None, paths: tuple[str, ...], json_file: Path | None) -> None:
    """Lend a tenant the next bytes of every card, in one piece and whole blocks; others go on meanwhile.

    Args:
        tenant: Its name.
        size: Bytes of each card.
        name: The pool in shared memory; None with ``paths``.
        paths: The devices of the pool's cards; empty with ``name``.
        json_file: Where the same goes as JSON; None: nowhere.
    """
    with _managed(name, paths) as manager:
        grant = manager.add(tenant, size)
        cards = manager.cards
    if write_json(json_file, _grant_facts(grant)):
        return
    size_text = format_bytes(grant.nbytes)
    click.echo(
        f"grant {grant.number}: {size_text} of each of {counted(cards, 'card')} from byte {grant.at}, for {tenant}"
    )


def release(tenant: str, name: str | None, paths: tuple[str, ...], json_file: Path | None) -> None:
    """Give back what a tenant holds, or one grant of it; refused while ranks are in it.

    Args:
        tenant: Its name, or NAME:NUMBER for one grant, as red:3.
        name: The pool in shared memory; None with ``paths``.
        paths: The devices of the pool's cards; empty with ``name``.
        json_file: Where the same goes as JSON; None: nowhere.

    Raises:
        AccessError: The tenant holds no such grant.
    """
    wanted = Tenant.parse(tenant)
    with _managed(name, paths) as manager:
        its = [grant for grant in manager.grants(wanted.name) if wanted.number in (None, grant.number)]
        if not its:
            raise AccessError(f"tenant {wanted.name} holds no such grant")
        for grant in its:
            manager.release(grant)
    _print_grants("released", its, json_file)


def force(
    ctx: click.Context,
    tenant: str,
    wait_s: float,
    gone: bool,
    name: str | None,
    paths: tuple[str, ...],
    json_file: Path | None,
) -> None:
    """Take away all that a tenant holds; exit with 1 if ranks are still in some of it, else with 0.

    Args:
        ctx: The command's context, which exits.
        tenant: Its name.
        wait_s: How long to wait until the last rank has left.
        gone: Take the caller's word that none of its ranks runs any more, as where a host was switched off.
        name: The pool in shared memory; None with ``paths``.
        paths: The devices of the pool's cards; empty with ``name``.
        json_file: Where the same goes as JSON; None: nowhere.

    Raises:
        AccessError: The tenant holds nothing.
    """
    with _managed(name, paths) as manager:
        taken = manager.force(tenant, wait_s=wait_s, gone=gone)
        left = [grant for grant, state in manager.entries() if grant.tenant == tenant and state.name == "FORCED"]
        users = {grant.number: manager.users_of(grant) for grant in left}
    if not taken:
        raise AccessError(f"tenant {tenant} holds nothing")
    _print_grants("taken away", list(taken), json_file, {number: len(its) for number, its in users.items()})
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


def hold(name: str, config: str, card_size: int | None, block: int) -> None:
    """Make a pool in shared memory whose capacity is lent, and keep it until Ctrl-C.

    Args:
        name: The pool's.
        config: A topology: a file or a shipped name.
        card_size: Bytes of each card; None: as the topology has them.
        block: Bytes of a block, the unit of what is lent.
    """
    topology = Topology.load(config)
    with (
        stops_exit(),
        ShmPool.create(
            name,
            cards=topology.pool_card_count,
            card_bytes=topology.card_bytes if card_size is None else card_size,
            interleave_bytes=topology.interleave_bytes,
            hosts=0,
            numa_node=topology.pool_numa_node,
            max_ranks=1,
        ) as pool,
    ):
        manager = PoolManager.begin(pool, block)
        free = format_bytes(manager.free_bytes)
        cards, blocks = counted(manager.cards, "card"), format_bytes(block)
        click.echo(f"pool {name}: {free} of each of {cards} to lend in blocks of {blocks}")
        threading.Event().wait()
