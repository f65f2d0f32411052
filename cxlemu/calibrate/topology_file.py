"""Write measurements of this machine as a topology file: its cores are hosts, and its shared memory is the pool's card.

Every figure says where and when it was measured, or why it is assumed. A rank is one thread on one core, so its reads
from the pool and its writes to it share that core, which is what `both_gbytes_per_s` is for. Where its arrays live on a
device, the device copies and folds, and the core only orders memory.
"""

import datetime
import platform
import re
from dataclasses import replace
from typing import Any

import yaml

from cxlemu.calibrate.cards import MeasuredCard, MeasuredCards
from cxlemu.calibrate.measure import LINE_STEPS, Bandwidth, Calibration
from cxlemu.topology import Topology
from cxlemu.units import format_bytes

CARD_BYTES = 32 << 20  # of the emulation
INTERLEAVE_BYTES = 64 << 10


def on_cards(measured: Calibration, cards: MeasuredCards) -> Calibration:
    """Return a machine's measurement with the first card in the place of shared memory."""
    first, mixes = cards.cards[0], cards.cards[0].mixes
    return replace(
        measured,
        node=None,
        far_latency_ns=first.latency_ns,
        one_core_far=first.one_core,
        all_cores_far=Bandwidth(mixes["reads"], mixes["writes"], mixes["a read to a write"] / 2),
        **{name: getattr(first, name) for name in LINE_STEPS},
    )


def topology_file(
    measured: Calibration, *, capacity_bytes: int, load: float, cards: MeasuredCards | None = None
) -> bytes:
    """Return the content of a topology file, which `Topology.parse` accepts; ``load`` is the load average.

    With cards, ``measured`` is that `on_cards`, and the pool is they.
    """
    host = re.sub(r"[^A-Za-z0-9.-]", "-", platform.node())[:40] or "this machine"
    when = f"measured on {host}, {datetime.date.today().isoformat()}"
    with_load = f"{when}, load {load:.1f}"
    m, far, one_core_far = measured, measured.all_cores_far, measured.one_core_far
    device = m.device
    out, back = (0.0, 0.0) if device is None else (device.to_pool, device.from_pool)
    most_read, most_written = (
        max(far.read, one_core_far.read, far.copy, back),
        max(far.write, one_core_far.write, far.copy, out),
    )
    both = min(max(2 * far.copy, most_read, most_written), most_read + most_written)

    def seen(value: Any, how: str) -> dict[str, Any]:
        return {"value": value, "source": f"{with_load}: {how}"}

    def assumed(value: Any, why: str) -> dict[str, Any]:
        return {"value": value, "assumed": why}

    def ns(value: float, how: str) -> dict[str, Any]:
        return seen(round(value), how)

    def rate(value: float, how: str) -> dict[str, Any]:
        return seen(float(f"{value:.3g}"), how)

    def line(value: float | None, how: str) -> dict[str, Any]:
        return assumed(0, "this machine's cache-line instructions are not known") if value is None else ns(value, how)

    where = "" if m.node is None else f", of NUMA node {m.node}"
    shared = f"shared memory{where}" if cards is None else cards.cards[0].path
    costs = {
        "to_pool_gbytes_per_s": rate(one_core_far.copy, f"one core copies to {shared}"),
        "from_pool_gbytes_per_s": rate(one_core_far.copy, "as to the pool"),
        "both_gbytes_per_s": rate(one_core_far.copy, "the same core does both"),
        "flush_line_ns": line(m.flush_line_ns, "dirty lines written back, and a fence"),
        "invalidate_line_ns": line(m.invalidate_line_ns, "clean lines dropped"),
        "fence_ns": line(m.fence_ns, "with nothing to wait for"),
        "doorbell_ring_ns": line(m.ring_ns, "from a store until its line is in memory"),
        "local_copy_gbytes_per_s": rate(m.one_core.copy, "one core"),
        "reduce_gbytes_per_s": rate(m.reduce_gbytes_per_s, "one core sums two arrays of f32"),
    }
    if m.round_trip_ns is not None:
        observe = max(m.round_trip_ns / 2 - m.far_latency_ns, 0.0)
        how = f"what half of a line's round trip of {m.round_trip_ns:.0f} ns takes beyond a load"
        costs["doorbell_observe_ns"] = ns(observe, how)
    if device is not None:
        name, bell = device.device, device.event_ns + (m.ring_ns or 0)
        costs |= {
            "to_pool_gbytes_per_s": rate(device.to_pool, f"{name} copies to {shared}"),
            "from_pool_gbytes_per_s": rate(device.from_pool, f"{name} copies from {shared}"),
            "both_gbytes_per_s": rate(
                min(max(device.both, out, back), out + back), f"{name} copies both ways at once, in two queues"
            ),
            "copy_ns": ns(device.copy_ns, f"{name} copies lines in a row"),
            "doorbell_ring_ns": ns(bell, f"until the host sees that a copy of {name} has ended, and a line in memory"),
            "local_copy_gbytes_per_s": rate(device.local_copy, name),
            "reduce_gbytes_per_s": rate(device.reduce, f"{name} sums two arrays of f32"),
        }
    sizes = [] if cards is None else [card.nbytes for card in cards.cards]
    emulation: dict[str, Any] = {"card_bytes": min([CARD_BYTES, *sizes])}
    if m.node is not None:
        emulation["numa_node"] = m.node
    with_device = "" if device is None else f", each with {device.device},"
    data = {
        "name": f"measured-{host}"[:60],
        "description": f"{m.cores} cores{with_device} around {shared}, {when}"[:200],
        "hosts": {
            "count": seen(m.cores, "cores that this process may use"),
            "ranks_per_host": assumed(
                1, f"every rank on a core of its own{'' if device is None else ', with its own device'}"
            ),
            "memory": {
                "latency_ns": ns(m.local_latency_ns, "dependent loads, in memory near the core"),
                "read_gbytes_per_s": rate(m.one_core.read, "one core"),
                "write_gbytes_per_s": rate(m.one_core.write, "one core"),
            },
        },
        "cards": {
            "count": assumed(1, "shared memory is in one place"),
            "capacity_bytes": assumed(capacity_bytes, f"{format_bytes(capacity_bytes)} of what /dev/shm has"),
            "latency_ns": ns(m.far_latency_ns, f"dependent loads, in {shared}"),
            "read_gbytes_per_s": rate(most_read, f"{m.cores} cores"),
            "write_gbytes_per_s": rate(most_written, f"{m.cores} cores"),
            "total_gbytes_per_s": rate(both, f"{m.cores} cores copy, each byte read and written"),
        },
        "costs": costs,
        "links": [
            {
                "name": "memory-bus",
                "ends": ["hosts", "cards"],
                "gbytes_per_s": rate(
                    max(one_core_far.read, one_core_far.write, out, back), "of one rank's reads or writes"
                ),
                "latency_ns": assumed(0, "in the card's"),
            }
        ],
        "spaces": [
            {
                "name": "pool",
                "kind": "cxl_pool",
                "coherent": assumed(False, "used as if nothing kept caches coherent, though this machine does"),
                "interleave_bytes": assumed(INTERLEAVE_BYTES, "as the shipped topologies"),
            }
        ],
        "emulation": emulation,
    }
    if cards is not None:
        data["cards"] = [
            {
                "count": seen(1, card.path),
                "capacity_bytes": seen(card.nbytes, card.kind),
                "latency_ns": ns(card.latency_ns, f"dependent loads, in {card.path}"),
                "read_gbytes_per_s": rate(max(card.mixes["reads"], card.one_core.read), f"{m.cores} cores"),
                "write_gbytes_per_s": rate(max(card.mixes["writes"], card.one_core.write), f"{m.cores} cores, flushed"),
                "total_gbytes_per_s": rate(_total(card), f"{m.cores} cores, the best mix of reads and writes"),
            }
            for card in cards.cards
        ]
    text = "# Written by `cxlemu doctor --calibrate`.\n" + yaml.dump(
        data, sort_keys=False, default_flow_style=None, width=200, allow_unicode=True
    )
    Topology.parse(text.encode(), "what was measured")
    return text.encode()


def _total(card: MeasuredCard) -> float:
    read, write = max(card.mixes["reads"], card.one_core.read), max(card.mixes["writes"], card.one_core.write)
    return min(max(read, write, *card.mixes.values()), read + write)
