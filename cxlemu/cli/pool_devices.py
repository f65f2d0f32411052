"""``cxlemu pool format`` and ``cxlemu pool show``: pools on real cards, or on files that stand in for them."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from cxlemu.capacity.pool_manager import PoolManager, lendable
from cxlemu.cli.console import console, print_wrapped
from cxlemu.cli.output import write_json
from cxlemu.cli.params import given_flags
from cxlemu.cli.pool import PoolFormatFlags, PoolShowFlags
from cxlemu.errors import ArgumentError, PoolError
from cxlemu.pool.dax import DaxPool, map_all
from cxlemu.pool.device import Mapped
from cxlemu.pool.format import Content, content_of, format_cards, geometry_for, make_file
from cxlemu.units import counted, format_bytes


def format_pool(ctx: click.Context, asked: PoolFormatFlags) -> None:
    """Make one pool of devices or files: the first path becomes card 0, and so on.

    If this fails, the files that it made are removed again.
    """
    if asked.lend is not None and "max_ranks" in given_flags(ctx):
        raise ArgumentError("--max-ranks does nothing here, because with --lend ranks are in grants: leave it out")
    made: list[str] = []
    try:
        for path in dict.fromkeys(asked.paths):
            if asked.create_size is not None and not Path(path).exists():
                make_file(path, asked.create_size)
                made.append(path)
        if asked.create_size is not None and not made:
            _check_sizes(asked.paths, asked.create_size)
        mapped = map_all(asked.paths)
        sizes = [card.pages.nbytes for card in mapped]
        geometry = geometry_for(
            sizes, interleave_bytes=asked.interleave, max_ranks=asked.max_ranks if asked.lend is None else 1
        )
        if asked.lend is not None:
            align_bytes = max(card.device.align_bytes for card in mapped)
            lendable(geometry.data_offset, geometry.card_bytes, asked.lend, align_bytes)
        _look_and_ask(mapped, yes=asked.yes)
        superblock = format_cards(mapped, geometry)
        manager = None if asked.lend is None else PoolManager.begin(DaxPool.attach(asked.paths), asked.lend)
    except BaseException:
        for path in made:
            Path(path).unlink()
        raise
    write_json(asked.json_file, {"uuid": str(superblock.uuid)} | asdict(geometry))
    room = f"room for {counted(asked.max_ranks, 'rank')}"
    if manager is not None:
        room = f"{format_bytes(manager.free_bytes)} of each to lend in blocks of {format_bytes(manager.block_bytes)}"
    cards = f"{counted(geometry.cards, 'card')} of {format_bytes(geometry.card_bytes)}"
    text = f"formatted pool {superblock.uuid}: {cards}, interleaved by {format_bytes(asked.interleave)}, {room}"
    print_wrapped(console(), text)


def _check_sizes(paths: Sequence[str], nbytes: int) -> None:
    """Raises ArgumentError where a card that is there already has another size than the one to make files with."""
    for path in paths:
        if not Path(path).is_file() or Path(path).stat().st_size != nbytes:
            raise ArgumentError(
                f"--create-size does nothing here: {path} is there, and is not a file of {format_bytes(nbytes)}"
            )


def _look_and_ask(mapped: list[Mapped], *, yes: bool) -> None:
    """Print what is on the cards, and return when they may be overwritten."""
    full = []
    for card in mapped:
        content = content_of(card)
        print_wrapped(console(), f"{card.device.path}: {_what(card)}; {content.text}")
        if content.kind != "empty":
            full.append(card.device.path)
    if not full or yes:
        return
    if not sys.stdin.isatty():
        raise PoolError(
            f"nothing was written: {', '.join(full)} would be overwritten, and there is no terminal to ask; add --yes"
        )
    if not click.confirm(f"Overwrite {', '.join(full)}?"):
        raise PoolError(f"nothing was written: {', '.join(full)} would be overwritten")


def _what(card: Mapped) -> str:
    device = card.device
    return f"{device.kind}, {format_bytes(device.nbytes)}, aligned to {format_bytes(device.align_bytes)}, {card.how}"


def show_devices(asked: PoolShowFlags) -> None:
    """Print what devices or files are, how they can be mapped, and what lies on them; write nothing to them."""
    found = map_all(asked.paths)
    rows = [(card, content_of(card)) for card in found]
    if write_json(asked.json_file, [_facts(card, content) for card, content in rows]):
        return
    for card, content in rows:
        print_wrapped(console(), f"{card.device.path}: {_what(card)}; {content.text}")


def _facts(card: Mapped, content: Content) -> dict[str, Any]:
    block, device = content.superblock, card.device
    return {
        "path": device.path,
        "kind": device.kind,
        "nbytes": device.nbytes,
        "align_bytes": device.align_bytes,
        "mapping": card.how,
        "content": content.kind,
        "text": content.text,
        "uuid": str(block.uuid) if block else None,
        "card": block.card if block else None,
        "cards": block.geometry.cards if block else None,
        "card_bytes": block.geometry.card_bytes if block else None,
        "interleave_bytes": block.geometry.interleave_bytes if block else None,
        "max_ranks": block.geometry.max_ranks if block else None,
    }
