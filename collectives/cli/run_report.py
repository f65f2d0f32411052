"""The output of ``cxlemu run`` while messages come in: header, rows, a progress bar; at the end a sum, and JSON."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from collectives.algorithms.choose import PROCESS_MIN_BYTES
from collectives.algorithms.hierarchical.estimate import TwoLevelEstimate
from collectives.cli.cells import RowsByCollective, cells_of
from collectives.cli.run_pace import lateness, paced
from collectives.communicator.calls.transport import PROCESS
from collectives.sweep.measure import Finished, Opened
from collectives.sweep.sweep import Case, MeasuredRank, Paced, Sweep, SweepRow, nothing_compared, row
from cxlemu.cli.columns import Column, Columns
from cxlemu.cli.console import print_wrapped
from cxlemu.cli.output import write_json
from cxlemu.cli.report import LiveReport
from cxlemu.engines.pace import TimeScale
from cxlemu.machine import thresholds
from cxlemu.memory import MemorySpec
from cxlemu.plan import Layout
from cxlemu.topology import Topology
from cxlemu.units import counted, format_bytes
from cxlemu.version import __version__

COLUMNS = (
    Column("size", "(B)", 10),
    Column("count", "(elem)", 9, order=2),
    *(Column(name, "", width, order=1) for name, width in (("type", 4), ("redop", 5), ("root", 4))),
    Column("time", "(us)", 8),
    *(Column(name, "(GB/s)", 7) for name in ("algbw", "busbw")),
    Column("#wrong", "", 6),
)
PACED_COLUMNS = Column("model", "(us)", 9), Column("time /", "model", 7)
VARIANT_WIDTH = 17


@dataclass(frozen=True)
class RunSetup:
    topology: Topology
    ranks: int
    memory: MemorySpec
    launch: str
    engine: str
    cards: str = ""  # what real ones are, or a tenant's
    pace: TimeScale | None = None
    tenant: str | None = None
    pool_name: str | None = None  # of a tenant's pool in shared memory
    faults: str = ""  # the script, and how many it has


class RunReport(LiveReport):
    """Shows a run. Call it with the messages of `collectives.sweep.measure`; as a context it surrounds the run.

    Data rows are printed as they come and begin with a blank, everything else with '#', as in nccl-tests.
    """

    def __init__(self, setup: RunSetup, sweep: Sweep, *, json_file: Path | None, verbose: bool, silent: bool) -> None:
        self._setup = setup
        self._sweep = sweep
        self._cases: list[Case] = sweep.cases(setup.ranks)
        super().__init__("starting", len(self._cases), json_file=json_file, launched=True, quiet=silent)
        two_levels = not setup.memory.backend.on_devices and sweep.integrity is None
        self._ways = TwoLevelEstimate.of(setup.topology, setup.ranks) if two_levels else None
        self._verbose = verbose
        self._seen: list[dict[int, MeasuredRank]] = [{} for _ in self._cases]
        self._rows: list[SweepRow] = []
        self._concluded = False
        self._layout: Layout | None = None  # of the ring, from the first message on
        columns = COLUMNS + (PACED_COLUMNS if setup.pace is not None else ())
        self._table = RowsByCollective(self._out, Columns(columns, "variant", VARIANT_WIDTH, self._out.width))

    @property
    def wrong(self) -> int:
        """How many elements were wrong so far."""
        return sum(row.wrong or 0 for row in self._rows)

    @property
    def nothing_compared(self) -> str:
        """Says so where results were to be checked and none has an element."""
        return nothing_compared(self._rows)

    @property
    def moved(self) -> int:
        """How many lines nature moved so far."""
        return sum(measured.moved for seen in self._seen for measured in seen.values())

    def _open(self) -> None:
        for key, value in self._header():
            self._tell(key, value)

    def __call__(self, message: object) -> None:
        if isinstance(message, Opened):
            self._layout = message.layout
            self._tell("ring", _ring(message.layout))
            if self._verbose:
                self._print_placement(message.layout)
        elif isinstance(message, Finished):
            seen = self._seen[message.case]
            seen[message.measured.rank] = message.measured
            if len(seen) == self._setup.ranks:
                case, checked = self._cases[message.case], self._sweep.check
                self._add(
                    row(
                        case,
                        seen,
                        checked=checked,
                        one_clock=self._one_clock,
                        paced=self._paced(case),
                        ways=self._ways,
                        in_process=self._in_process,
                    )
                )

    def _paced(self, case: Case) -> Paced | None:
        setup = self._setup
        if setup.pace is None or self._layout is None:
            return None
        return paced(setup.pace, setup.topology, self._layout, case, self._sweep)

    def _close(self, error: BaseException | None) -> None:
        if error is not None or len(self._rows) < len(self._cases):
            self._conclude(error)

    def _conclude(self, error: BaseException | None) -> None:
        """Print the sum.

        This happens with the last row: after it rank 0 leaves, and then mpirun may stop all because one rank was wrong.
        """
        self._progress.stop()
        seconds = self.seconds
        missing = len(self._cases) - len(self._rows)
        counts = [counted(len(self._rows), "result")]
        counts += [f"{missing} not finished"] if missing else []
        counts += [f"{self.wrong} wrong" if self._sweep.check else "not checked", f"{seconds:.1f} s"]
        bad = self.wrong or missing
        first, self._concluded = not self._concluded, True  # again where the JSON fails, or a rank after its last row
        try:
            if first:
                self._print("#")
                if self._setup.pace is not None and (advice := lateness(self._setup.pace, self._rows)):
                    self._tell("pace", advice, "yellow")
                style = "bold red" if bad else "green" if self._sweep.check else "yellow"
                self._print(f"# {', '.join(counts)}", style)
        finally:  # also where stdout is what failed
            if self._json_file is not None:
                write_json(self._json_file, self._document(seconds, error))

    def _header(self) -> list[tuple[str, str]]:
        setup, sweep = self._setup, self._sweep
        checked = "every result checked bit by bit" if sweep.check else "not checked"
        least = format_bytes(PROCESS_MIN_BYTES)
        checked += f", {sweep.integrity} with every doorbell that has no payload" if sweep.integrity else ""
        return [
            ("cxlemu", f"{__version__}, engine {setup.engine}"),
            ("config", setup.topology.title),
            ("ranks", f"{self._placement()}, launch: {setup.launch}"),
            ("memory", setup.memory.describe() + self._numa_node()),
            *([("copies", f"from process to process, arrays of {least} and more")] if self._in_process else []),
            *([("stores", str(thresholds()))] if self._verbose and setup.memory.backend.maps_cards else []),
            *([("backend", f"{setup.memory.kind}: {setup.memory.backend.elisions()}")] if self._verbose else []),
            *([("cards", setup.cards)] if setup.cards else []),
            *([("faults", setup.faults)] if setup.faults else []),
            *([("pace", _pace(setup.pace))] if setup.pace is not None else []),
            ("calls", f"{sweep.iterations} timed after {sweep.warmup} warm-up, {checked}, seed {sweep.seed}"),
        ]

    @property
    def _in_process(self) -> bool:
        return self._sweep.transport == PROCESS

    @property
    def _one_clock(self) -> bool:
        """Whether all ranks are certainly on one machine."""
        return not self._setup.memory.backend.on_devices or self._setup.launch in ("threads", "processes")

    @property
    def _hosts(self) -> list[int] | None:
        setup = self._setup
        return None if setup.memory.backend.on_devices else list(setup.topology.place(setup.ranks))

    def _placement(self) -> str:
        setup = self._setup
        if self._hosts is None:
            return counted(setup.ranks, "rank")
        return setup.topology.describe_placement(setup.ranks)

    def _numa_node(self) -> str:
        node = self._setup.topology.pool_numa_node
        return "" if node is None or self._setup.memory.backend.on_devices else f", on NUMA node {node}"

    def _print_placement(self, layout: Layout) -> None:
        extent, data = layout.extent_bytes, layout.data_offset
        granule = format_bytes(layout.interleave_bytes)
        self._tell(
            "layout", f"{format_bytes(extent)} of every card, data from {format_bytes(data)} on, granule {granule}"
        )
        hosts = self._hosts or []
        for host in sorted(set(hosts)):
            ranks = ", ".join(str(rank) for rank, its_host in enumerate(hosts) if its_host == host)
            self._tell(f"host {host}", f"rank {ranks}")

    def _add(self, row: SweepRow) -> None:
        self._rows.append(row)
        self._table.add(row, _cells(row))
        if self._verbose and row.reason:
            print_wrapped(self._out, f"#   {row.variant}: {row.reason}", "dim", indent="#     ")
        self._progress.update(self._task, description=row.collective, completed=len(self._rows))
        if len(self._rows) == len(self._cases):
            self._conclude(None)

    def _document(self, seconds: float, error: BaseException | None) -> dict[str, Any]:
        document = {
            "version": __version__,
            "config": self._setup.topology.name,
            "ranks": self._setup.ranks,
            "hosts": self._hosts,
            "backend": self._setup.memory.kind,
            "memory": self._setup.memory.describe(),
            "seed": self._sweep.seed,
            "launch": self._setup.launch,
            "engine": self._setup.engine,
            "integrity": self._sweep.integrity,
            "transport": self._sweep.transport,
            "faults": self._setup.faults or None,
            "time_scale": None if self._setup.pace is None else self._setup.pace.value,
            "rows": [asdict(row) for row in self._rows],
            "wrong": self.wrong if self._sweep.check else None,
            "seconds": seconds,
        }
        if error is not None:
            document["error"] = _told(error)
        return document

    def _tell(self, key: str, value: str, style: str = "") -> None:
        print_wrapped(self._out, f"# {key:<8} {value}", style, indent="#          ")


def _told(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return "interrupted" if isinstance(error, KeyboardInterrupt) else "terminated"
    return str(error) or type(error).__name__


def _ring(layout: Layout) -> str:
    return (
        f"{counted(layout.slots, 'slot')} of {format_bytes(layout.slot_card_bytes)} on each of {layout.cards_text}, "
        f"{counted(layout.doorbells_per_rank, 'doorbell')} a rank and slot"
    )


def _pace(scale: TimeScale) -> str:
    return f"times are the model's: 1 ns of the model takes {scale.value:g} ns here ({scale.reason})"


def _cells(row: SweepRow) -> dict[str, object]:
    paced = {}
    if row.model_us is not None:
        paced = {"model": f"{row.model_us:.1f}", "time /": f"{row.time_us / row.model_us:.2f}"}
    return cells_of(row, slow_digits=5) | paced
