"""What ``cxlemu pool`` does with pools in this machine's shared memory."""

import os
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from cxlemu.cli.console import console, plain_table, print_wrapped
from cxlemu.cli.options import JsonFlags
from cxlemu.cli.output import write_json
from cxlemu.cli.pool import PoolCleanFlags, PoolShowFlags
from cxlemu.cli.pool_devices import show_devices
from cxlemu.errors import PoolError
from cxlemu.memory.protocol import Bytes
from cxlemu.pool import catalog, numa, segments
from cxlemu.pool.segments import Segment
from cxlemu.pool.shm import no_such_pool, open_cards, owner_state
from cxlemu.pool.superblock import SESSION_OFFSET
from cxlemu.units import counted, format_bytes


def list_pools(_ctx: click.Context, asked: JsonFlags) -> None:
    rows = [_row(entry) for entry in catalog.entries()]
    if write_json(asked.json_file, rows):
        return
    table = plain_table("name", "cards", "size", "hosts", "owner pid", "state", "age", "mode")
    for row in rows:
        size, age = format_bytes(row["cards_bytes"]), timedelta(seconds=round(row["age_s"]))
        columns = (row["name"], row["cards"], size, row["hosts"], row["owner_pid"], row["state"], age, row["mode"])
        table.add_row(*("-" if column is None else str(column) for column in columns))
    console().print(table, soft_wrap=False)
    for damage in (damage for row in rows for damage in row["damage"]):
        print_wrapped(console(), f"damaged: {damage}")


def _row(entry: catalog.CatalogEntry) -> dict[str, Any]:
    """Describe a pool: sizes and modes as they lie there; hosts and owner as the first readable superblock says."""
    cards = [file for file in entry.found if file.segment.kind == "card"]
    block = entry.superblocks[0] if entry.superblocks else None
    return {
        "name": entry.name,
        "cards": len(cards),
        "cards_bytes": sum(card.nbytes for card in cards),
        "hosts": block.geometry.hosts if block else None,
        "uid": entry.uid,
        "owner_pid": block.owner.pid if block else None,
        "state": entry.state,
        "complete": entry.complete,
        "age_s": max(0.0, time.time() - entry.created_s),
        "mode": " ".join(sorted({f"{file.mode:04o}" for file in entry.found})),
        "damage": list(entry.damage),
    }


def show(_ctx: click.Context, asked: PoolShowFlags) -> None:
    if (asked.name is None) == (not asked.paths):
        raise click.UsageError("name the pool: its NAME, or --device PATH for each of its cards.")
    if asked.name is None:
        show_devices(asked)
        return
    facts = _facts(asked.name)
    if write_json(asked.json_file, facts):
        return
    for key in ("name", "uuid", "created", "owner", "card_bytes", "interleave_bytes", "max_ranks"):
        value = facts[key]
        text = f"{key:<17} {_phrase(value) if isinstance(value, dict) else value}"
        print_wrapped(console(), text, indent=" " * 18)
    for part in filter(facts.get, ("cards", "hosts")):  # a coherent pool, or one to be lent, has no hosts of its own
        table = plain_table(*facts[part][0])
        for row in facts[part]:
            table.add_row(*("-" if value is None else str(value) for value in row.values()))
        console().print(table, soft_wrap=False)


def _facts(name: str) -> dict[str, Any]:
    segments.check_pool_name(name)
    block, cards = open_cards(name)
    geometry, owner = block.geometry, block.owner
    return {
        "name": name,
        "uuid": str(block.uuid),
        "created": datetime.fromtimestamp(block.created_ns / 1e9, UTC).isoformat(timespec="seconds"),
        "owner": {"state": owner_state(name, block), "pid": owner.pid, "uid": owner.uid, "boot_id": str(owner.boot_id)},
        "card_bytes": geometry.card_bytes,
        "interleave_bytes": geometry.interleave_bytes,
        "max_ranks": geometry.max_ranks,
        "session_offset": SESSION_OFFSET,
        "data_offset": geometry.data_offset,
        "cards": [
            {"card": index, "segment": str(Segment(name, "card", index)), "numa_node": _numa_node(pages)}
            for index, pages in enumerate(cards)
        ],
        "hosts": [_host_facts(host, Segment(name, "host", host)) for host in range(geometry.hosts)],
    }


def _host_facts(host: int, segment: Segment) -> dict[str, Any]:
    """Describe a host's cache; how much of it was ever used shows in the memory behind its sparse segment."""
    with segments.opened(segment) as fd:
        status = os.fstat(fd)
    return {"host": host, "segment": str(segment), "cache_bytes": status.st_size, "used_bytes": status.st_blocks * 512}


def _numa_node(pages: Bytes) -> int | None:
    """Return where the card really lies; None where the kernel (or a container's filter) does not tell."""
    try:
        return numa.node_of(pages)
    except PoolError:
        return None


def _phrase(owner: dict[str, Any]) -> str:
    return f"{owner['state']}: process {owner['pid']} of user {owner['uid']}, boot {owner['boot_id']}"


def clean(_ctx: click.Context, asked: PoolCleanFlags) -> None:
    if asked.name is not None:
        segments.check_pool_name(asked.name)
    verdicts = catalog.clean(asked.name, dry_run=asked.dry_run)
    if asked.name is not None and not verdicts:
        raise PoolError(no_such_pool(asked.name))
    write_json(
        asked.json_file, [verdict._asdict() | {"segments": list(map(str, verdict.segments))} for verdict in verdicts]
    )
    for verdict in verdicts:
        action = ("would remove" if asked.dry_run else "removed") if verdict.removed else "left"
        count = counted(len(verdict.segments), "segment")
        print_wrapped(console(), f"{action} {verdict.name} ({count}): {verdict.reason}")
    if not verdicts:
        click.echo("no pools")
