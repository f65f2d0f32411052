"""What ``cxlemu bench`` shows: which implementations take part, one line per cell, geometric means; and JSON."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from collectives.communicator.calls.transport import PROCESS
from cxlemu.accelerator.named import standing
from cxlemu.cli.columns import Column, Columns
from cxlemu.cli.console import print_wrapped
from cxlemu.cli.output import write_json
from cxlemu.cli.report import LiveReport
from cxlemu.machine import thresholds
from cxlemu.plan import Call
from cxlemu.units import counted, format_bytes
from cxlemu.version import __version__
from studies.peers import find
from studies.peers.callgrind import Counted
from studies.peers.compare import Comparison, MachineSpeed
from studies.peers.find import MPIS
from studies.peers.ratios import LIMIT, OURS, Mean, RatioRow, means

COLUMNS = (
    *(Column("bytes", "", 9), Column("source", "", 6), Column("ours", "", 8)),
    *(Column("handle", "", 8, order=2), Column("pool", "", 8, order=3), Column("limit", "", 8)),
    *(Column("/peer", "", 6), Column("/limit", "", 6)),
)


ON_DEVICE = tuple(Column(name, "", 8) for name in ("device", "hand"))


class BenchReport(LiveReport):
    """Prints rows as they come; the means, and the JSON file, when all are there or something failed."""

    def __init__(
        self,
        ranks: int,
        calls: Sequence[Call],
        alternations: int,
        modes: Sequence[bool],
        *,
        single_copy: bool,
        accelerator: str | None,
        transport: str,
        json_file: Path | None,
    ) -> None:
        self._total = len(calls) * len(modes)
        super().__init__("looking for peers", self._total, json_file=json_file)
        self._accelerator, self._transport = accelerator, transport
        self._single_copy = single_copy
        self._ranks = ranks
        self._alternations = alternations
        self.rows: list[RatioRow] = []
        self._versions: dict[str, str] = {}
        self.absent: dict[str, str] = {}
        self.instructions: list[Counted] = []
        self._machine: MachineSpeed | None = None
        self._columns = Columns((), "", 0, self._out.width)

    @property
    def wrong(self) -> int:
        return sum(sum(row.wrong.values()) for row in self.rows)

    def _open(self) -> None:
        cores = len(os.sched_getaffinity(0))
        self._print(f"# {'cxlemu':<8} {__version__}, engine native, pool in shared memory")
        pinned = "each pinned to its core" if self._ranks <= cores else "oversubscribed, not pinned"
        self._print(f"# {'ranks':<8} {self._ranks} on {counted(cores, 'core')}, {pinned}")
        busy = os.getloadavg()[0]
        if busy > 0.5:
            self._print(
                f"# {'load':<8} {busy:.1f} processes ran here in the last minute: times will be noisy", "yellow"
            )
        times = f"medians of {counted(self._alternations, 'alternation')}, float32, every result checked"
        self._print(f"# {'times':<8} us a call, slowest rank, {times}")

    def starting(self, name: str) -> None:
        self._progress.update(self._task, description=f"starting {name}")

    def opened(self, comparison: Comparison) -> None:
        """Print which implementations take part, and how fast this machine is."""
        self._versions = {name: group.version for name, group in comparison.groups.items()}
        self.absent = {peer.name: peer.reason for peer in comparison.absent}
        self._print(f"# {'pool':<8} {self._versions[OURS].partition(', ')[2]}")
        if self._accelerator is not None:
            self._print(f"# {'device':<8} arrays on {self._accelerator}, a handle; hand: by hand through pinned memory")
            self._print(f"# {'':<8} {standing(self._accelerator)}", "yellow")
        for name in self._peers:
            two_copies = ", through shared memory only" if name in MPIS and not self._single_copy else ""
            self._print(f"# {name:<8} {self._versions[name]}{two_copies}")
        for name, reason in self.absent.items():
            self._print(f"# {name:<8} absent: {reason}", "yellow")
        peers = [Column(name, "", max(8, len(name)), order=int(name != find.NCCL)) for name in self._peers]
        on_device = ON_DEVICE if self._accelerator is not None else ()
        direct = [Column(PROCESS, "", 8)] if self._transport == PROCESS else []
        columns = (*COLUMNS[:5], *direct, *on_device, *peers, *COLUMNS[5:])
        self._columns = Columns(columns, "", 0, self._out.width)
        if left_out := [column.name for column in columns if column.name not in self._columns]:
            self._print(f"# {'narrow':<8} no room for {', '.join(left_out)}: in a wider terminal and in --json")
        self._machine = machine = comparison.bandwidths()
        self._print(
            f"# {'machine':<8} all ranks together copy {machine.copy_gbytes_per_s:.1f} GB/s and sum two vectors at "
            f"{machine.reduce_gbytes_per_s:.1f} GB/s (written, 64 MiB each); a cache line goes to and fro in "
            f"{machine.round_trip_ns:.0f} ns"
        )
        self._print(f"# {'stores':<8} {thresholds()}")

    def add(self, rows: Sequence[RatioRow]) -> None:
        for row in rows:
            if not self.rows or self.rows[-1].collective != row.collective:
                self._print("#")
                self._print(f"# {row.collective}", "bold")
                self._print(self._columns.heads[0])
            self.rows.append(row)
            cells = {
                "bytes": format_bytes(row.bytes),
                "source": "new" if row.rewritten else "same",
                "ours": _us(row.ours_us),
                "handle": _us(row.handle_us),
                "pool": _us(row.pool_us),
                PROCESS: _us(row.process_us),
                **{name: _us(row.peers_us.get(name)) for name in self._peers if name != find.NCCL},
                "device": _us(row.device_us),
                "hand": _us(row.hand_us),
                find.NCCL: _us(row.nccl_us),
                "limit": _us(row.limit_us),
                "/peer": _ratio(row.ratio_to_best_peer),
                "/limit": _ratio(row.ratio_to_limit),
            }
            self._print(
                self._columns.line(cells),
                "" if row.ratio_to_best_peer is None or row.ratio_to_best_peer < 1 else "yellow",
            )
            if row.impossible:
                which = ", ".join(row.impossible)
                times = counted(row.measured, "time")
                self._print(
                    f"#   {which}: far below the machine's limit, measured {times}; it counts for nothing", "yellow"
                )
            for name, elements in row.wrong.items():
                if elements:
                    self._print(f"#   {name} got {counted(elements, 'element')} wrong", "bold red")
            self._progress.update(self._task, description=row.collective, completed=len(self.rows))

    def counting(self) -> None:
        self._progress.update(self._task, description="counting instructions")

    def _close(self, error: BaseException | None) -> None:
        ratios = means(self.rows)
        if self.rows:
            self._print("#")
            self._out.print(_means_table(ratios), soft_wrap=False)
        if self.instructions:
            self._out.print(_instructions_table(self.instructions), soft_wrap=False)
        impossible = sum(bool(row.impossible) for row in self.rows)
        again = sum(row.measured > 1 for row in self.rows)
        if again:
            self._print(
                f"# the machine was not quiet: of {counted(len(self.rows), 'row')}, {again} were measured again, and "
                f"impossible times stayed in {impossible}, which means and plots leave out",
                "yellow",
            )
        missing = f", {self._total - len(self.rows)} more not finished" if len(self.rows) < self._total else ""
        self._print(f"# {counted(len(self.rows), 'row')}{missing}, {self.wrong} wrong, {self.seconds:.1f} s")
        if self._json_file is not None:
            write_json(self._json_file, self._document(ratios, error))

    @property
    def _peers(self) -> list[str]:
        return [name for name in self._versions if name not in (OURS, LIMIT)]

    def _document(self, ratios: Sequence[Mean], error: BaseException | None) -> dict[str, Any]:
        document = {
            "version": __version__,
            "ranks": self._ranks,
            "cores": len(os.sched_getaffinity(0)),
            "dtype": "f32",
            "alternations": self._alternations,
            "single_copy": self._single_copy,
            "accelerator": self._accelerator,
            "transport": self._transport,
            "implementations": self._versions,
            "absent": self.absent,
            "machine": self._machine._asdict() if self._machine else None,
            "rows": [asdict(row) for row in self.rows],
            "geometric_means": [mean._asdict() for mean in ratios],
            "instructions": [counted._asdict() for counted in self.instructions],
            "wrong": self.wrong,
            "seconds": self.seconds,
        }
        if error is not None:
            document["error"] = str(error) or type(error).__name__
        return document

    def _print(self, line: str, style: str = "") -> None:
        print_wrapped(self._out, line, style, indent="#          ")


def _means_table(ratios: Sequence[Mean]) -> Table:
    columns = {"device / hand": "device_to_hand", "device / nccl": "device_to_nccl"}
    names = [name for name, column in columns.items() if any(getattr(mean, column) is not None for mean in ratios)]
    direct = any(mean.process_to_best_peer is not None for mean in ratios)
    table = Table(title="geometric means of time ratios: below 1 we are faster", box=box.SIMPLE, title_justify="left")
    for name in (
        "sizes",
        "source",
        "rows",
        "ours / best peer",
        "handle / best peer",
        "pool / best peer",
        *(["process / best peer"] if direct else []),
        "ours / limit",
        *names,
    ):
        table.add_column(name, justify="left" if name in ("sizes", "source") else "right")
    for mean in ratios:
        table.add_row(
            mean.size_class,
            "new" if mean.rewritten else "same",
            str(mean.rows),
            _ratio(mean.to_best_peer),
            _ratio(mean.handle_to_best_peer),
            _ratio(mean.pool_to_best_peer),
            *([_ratio(mean.process_to_best_peer)] if direct else []),
            _ratio(mean.to_limit),
            *(_ratio(getattr(mean, columns[name])) for name in names),
        )
    return table


def _instructions_table(instructions: Sequence[Counted]) -> Table:
    title = "instructions of rank 0 of 2, for a call that waits for no peer (callgrind)"
    table = Table(title=title, box=box.SIMPLE, title_justify="left")
    for name in ("collective", "bytes", "ours", "handle"):
        table.add_column(name, justify="left" if name == "collective" else "right")
    counts = {(each.collective, each.bytes, each.path): f"{each.instructions:.0f}" for each in instructions}
    for collective, nbytes in dict.fromkeys((each.collective, each.bytes) for each in instructions):
        ours, handle = (counts.get((collective, nbytes, path), "-") for path in ("call", "handle"))
        table.add_row(collective, format_bytes(nbytes), ours, handle)
    return table


def _us(time_us: float | None) -> str:
    if time_us is None:
        return "-"
    return f"{time_us:.3f}" if time_us < 10 else f"{time_us:.1f}"


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.3f}" if ratio < 1 else f"{ratio:.2f}"
