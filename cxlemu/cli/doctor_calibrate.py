"""``cxlemu doctor --calibrate``: this machine as a topology, and what was measured in a table."""

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cxlemu.accelerator.named import FAKE, device_named, standing
from cxlemu.calibrate.cards import MeasuredCards, measure_cards
from cxlemu.calibrate.certificate import NOTHING, certificate, facts, page, visibility
from cxlemu.calibrate.device_copies import device_copies
from cxlemu.calibrate.measure import LEAST_BYTES, Bandwidth, Calibration, measure, memory
from cxlemu.calibrate.past_caches import past_caches_bytes
from cxlemu.calibrate.topology_file import on_cards, topology_file
from cxlemu.cli.doctor_devices import FAKE_POOL_BYTES, POOL_BYTES
from cxlemu.cli.doctor_flags import DoctorFlags
from cxlemu.cli.doctor_rows import text
from cxlemu.cli.first_time import BUSY
from cxlemu.cli.output import check_output, read_json, write_json, write_output
from cxlemu.cli.progress import spinning
from cxlemu.errors import ArgumentError
from cxlemu.machine import keep, kept_file, thresholds
from cxlemu.memory import MemorySpec
from cxlemu.pool.segments import SHM_DIR
from cxlemu.units import counted
from cxlemu.world import launch

MEASURED_BYTES = 1 << 27  # of each array, more than most caches hold; less where memory is short
WORDS = {
    "local_latency_ns": "latency of this core's memory",
    "far_latency_ns": "latency of the pool's memory",
    "one_core": "one core's bandwidth",
    "one_core_far": "one core's bandwidth to the pool",
    "all_cores_far": "all cores' bandwidth to the pool",
    "reduce_gbytes_per_s": "sums of one core",
    "flush_line_ns": "flushing a line",
    "invalidate_line_ns": "dropping a line",
    "fence_ns": "a fence",
    "ring_ns": "a store until its line is in memory",
    "round_trip_ns": "a line from core to core and back",
}


def calibrate(file: Path, asked: DoctorFlags) -> int:
    """Measure this machine, or cards that it reaches, write it as a topology, and return the command's exit code."""
    check_output("--calibrate", file)
    accelerator, litmus = asked.accelerator, _check_certificate(asked)
    device = None if accelerator is None else device_named(accelerator)
    nbytes, free = _array_bytes(), shutil.disk_usage(SHM_DIR).free
    load, cards = os.getloadavg()[0], None
    with spinning("measuring") as now:
        if asked.devices:
            spec = MemorySpec("dax", devices=asked.devices)
            (cards,) = launch(partial(measure_cards, on_step=now), ranks=1, memory=spec)
        measured = measure(nbytes, lambda name: now(WORDS[name]))
        if device is not None:
            now(f"copies of {device.name}")
            pool = memory(FAKE_POOL_BYTES if accelerator == FAKE else POOL_BYTES, measured.node)
            measured = replace(measured, device=device_copies(device, pool))
        now("stores past the caches")
        from_bytes = past_caches_bytes()
    capacity_bytes = 1 << max(free // 4, 1 << 26).bit_length() - 1
    measured = measured if cards is None else on_cards(measured, cards)
    topology = topology_file(measured, capacity_bytes=capacity_bytes, load=load, cards=cards)
    write_output("--calibrate", file, topology)
    virtual = "hypervisor" in text(Path("/proc/cpuinfo")).split()
    document = certificate(measured, cards, litmus, load=load, virtual=virtual)
    for path in asked.certificates:
        written = page(document) if path.suffix == ".html" else json.dumps(document, indent=2) + "\n"
        write_output("--certificate", path, written.encode())
    if not write_json(asked.json_file, asdict(measured) | ({} if cards is None else {"cards": asdict(cards)})):
        _print(measured, cards, [_conclusion(measured, cards, file, load), *_standing(accelerator), _kept(from_bytes)])
    if not asked.certificates:
        return 0
    if not document["device_measured"]:
        click.echo(f"# {NOTHING}", err=True)
        return 3
    return 1 if document["visibility"] and document["visibility"]["forbidden"] else 0


def _check_certificate(asked: DoctorFlags) -> dict[str, Any] | None:
    """Refuse what does not fit before anything is measured; return what a litmus run wrote, if a file is given."""
    for path in asked.certificates:
        if path.suffix not in (".html", ".json"):
            raise ArgumentError(f"--certificate {path} is neither .html nor .json")
        check_output("--certificate", path)
    if asked.devices and asked.accelerator is not None:
        raise ArgumentError("--device measures cards as processors reach them: leave out --accelerator")
    if asked.litmus_file is None:
        return None
    if not asked.certificates:
        raise ArgumentError("--litmus goes with --certificate")
    litmus: dict[str, Any] = read_json(asked.litmus_file, "--litmus")
    visibility(litmus)
    return litmus


def _print(measured: Calibration, cards: MeasuredCards | None, sentences: Iterable[str]) -> None:
    table = Table("what", "measured", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for what, value in (*_rows(measured), *(() if cards is None else _card_rows(cards))):
        table.add_row(Text(what), Text(value))
    out = Console()
    out.print(table)
    for sentence in sentences:
        out.print(Text(sentence))


def _card_rows(cards: MeasuredCards) -> Iterator[tuple[str, str]]:
    for card in cards.cards:
        for what, value in facts(asdict(card)):
            yield f"{card.path}: {what}", value
    yield "all cores read all cards", f"{cards.together_gbytes_per_s:.1f} GB/s"


def _standing(accelerator: str | None) -> Iterator[str]:
    if accelerator is not None:
        yield f"The file is of ranks whose arrays live on {accelerator}; {standing(accelerator)}"


def _kept(from_bytes: int | None) -> str:
    """Keep the threshold for this machine, and say so."""
    if from_bytes is None:
        return f"For all later runs here, as before: {thresholds()}; {BUSY}"
    try:
        keep(from_bytes)
    except OSError as error:
        return f"The threshold for stores past the caches cannot be kept: {kept_file()}: {error.strerror}"
    return f"For all later runs here: {thresholds()}"


def _array_bytes() -> int:
    """Return the size of each array, a power of two: what is measured takes seven arrays at most."""
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    nbytes = min(MEASURED_BYTES, 1 << max(available // 8, 1).bit_length() - 1)
    least = LEAST_BYTES * len(os.sched_getaffinity(0))
    if nbytes < least:
        raise ArgumentError(f"--calibrate needs {counted(8 * least, 'byte')} of free memory, {available} are free")
    return nbytes


def _rows(measured: Calibration) -> Iterator[tuple[str, str]]:
    for name, words in WORDS.items():
        value = getattr(measured, name)
        if isinstance(value, Bandwidth):
            shown = f"reads {value.read:.1f}, writes {value.write:.1f}, copies {value.copy:.1f} GB/s"
        elif value is None:
            shown = "not possible here"
        else:
            shown = f"{value:.1f} GB/s" if name.endswith("gbytes_per_s") else f"{value:.1f} ns"
        yield words, shown
    if (device := measured.device) is not None:
        both = f"to the pool {device.to_pool:.1f}, from it {device.from_pool:.1f}, both at once {device.both:.1f} GB/s"
        yield f"copies of {device.device}", both
        yield "the same with pinned memory", f"to it {device.to_pinned:.1f}, from it {device.from_pinned:.1f} GB/s"
        yield "its copy of a line, in a row", f"{device.copy_ns:.0f} ns"
        yield "until the host knows that a copy has ended", f"{device.event_ns:.0f} ns"
        yield "its copies within its memory", f"{device.local_copy:.1f} GB/s"
        yield "its sums", f"{device.reduce:.1f} GB/s"


def _conclusion(measured: Calibration, cards: MeasuredCards | None, file: Path, load: float) -> str:
    place = "where this process runs: there is one NUMA node"
    if cards is not None:
        place = "on the cards, the first of which stands for all in costs"
    elif measured.node is not None:
        place = f"on NUMA node {measured.node}, the farthest, to which runs with this file bind their cards"
    busy = (
        f" The machine was busy (load {load:.1f}): measure again when it is not." if load > measured.cores / 2 else ""
    )
    return f"The pool's memory lies {place}.{busy} Written: {file}"
