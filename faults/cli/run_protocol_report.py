"""The output of ``cxlemu run --protocol``: what goes wrong as runs end, a progress bar, at the end a sum; and JSON."""

import shlex
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.text import Text

from cxlemu.cli.console import print_wrapped
from cxlemu.cli.output import write_json
from cxlemu.cli.report import LiveReport
from cxlemu.errors import name_numbers
from cxlemu.memory import MemorySpec
from cxlemu.units import counted
from cxlemu.version import __version__
from faults.explore.programs import NOTHING_ASSERTED
from faults.protocols.rank import Ending, How
from faults.protocols.run import ProtocolRun

RESULTS_SHOWN = 3  # different results of a rank


@dataclass(frozen=True)
class Setting:
    spec: str  # the protocol, ``FILE.py:function``
    judges: bool  # whether the protocol says what is right
    hosts: tuple[int, ...]  # the host of each rank
    memory: MemorySpec
    seed: int | None  # the seed of the first run's adversary; None: there is no adversary
    runs: int  # how many runs there will be
    launch: str
    cards: str  # the real cards or the tenant's, in words; empty: neither
    topology: str


class ProtocolReport(LiveReport):
    """A context that is called with each `ProtocolRun` and reports them."""

    def __init__(self, setting: Setting, *, json_file: Path | None, silent: bool) -> None:
        super().__init__("runs", setting.runs, json_file=json_file, launched=True, quiet=silent)
        self._setting = setting
        self._runs: list[ProtocolRun] = []
        self._shown: set[object] = set()  # what went wrong

    @property
    def unjudged(self) -> str:
        """Why nothing was judged; empty if something was."""
        if self._runs and all(run.idle for run in self._runs):
            return "nothing was judged: no rank yielded an operation"
        return "" if self._setting.judges else NOTHING_ASSERTED

    def _open(self) -> None:
        setting, ranks = self._setting, len(self._setting.hosts)
        each = "+".join(str(count) for count in Counter(setting.hosts).values())
        where = f"{counted(ranks, 'rank')} on {counted(max(setting.hosts) + 1, 'host')} ({each})"
        self._print(f"# {'cxlemu':<8} {__version__}")
        self._print(f"# {'protocol':<8} {setting.spec}, {where}, launch: {setting.launch}")
        self._print(f"# {'memory':<8} {self._memory()}")
        if setting.cards:
            self._print(f"# {'cards':<8} {setting.cards}")
        if not setting.memory.backend.emulates_caches:
            self._print(f"# {'hides':<8} {self._hides()}", "yellow")

    def __call__(self, message: object) -> None:
        assert isinstance(message, ProtocolRun)
        self._runs.append(message)
        self._progress.update(self._task, completed=len(self._runs))
        what = (message.final, *((ending.how, ending.text, ending.where) for ending in message.endings))
        if message.wrong and what not in self._shown:
            self._shown.add(what)
            self._show(message)

    def _close(self, error: BaseException | None) -> None:
        seconds = self.seconds
        try:
            if self._runs:
                self._sum_up(seconds)
        finally:
            write_json(self._json_file, self._document(seconds, error))

    def _show(self, run: ProtocolRun) -> None:
        self._print(f"{_named(run)}: wrong", "bold red")
        for rank, ending in enumerate(run.endings):
            self._print(f"  rank {rank} {_told(ending)}", "red" if ending.wrong else "")
        if run.final:
            self._print(f"  in the end: {run.final}", "red")
            self._print(f"  memory: {', '.join(f'{word} = {value}' for word, value in run.memory.items())}")

    def _sum_up(self, seconds: float) -> None:
        setting, wrong = self._setting, [run for run in self._runs if run.wrong]
        if not wrong:
            for rank in range(len(setting.hosts)):
                self._print(f"rank {rank} {_results([run.endings[rank] for run in self._runs])}")
        missing = setting.runs - len(self._runs)
        counts = [counted(len(self._runs), "run"), f"{len(wrong)} wrong{_seeds(wrong)}"]
        counts += [f"{missing} more not made{_stopped_by(self._runs[-1])}"] if missing else []
        self._print(f"# {', '.join([*counts, f'{seconds:.1f} s'])}", "bold red" if wrong or missing else "green")
        if self.unjudged:
            self._print(self.unjudged, "yellow")
        target = shlex.join([setting.spec, "-n", str(len(setting.hosts))])
        if wrong and wrong[0].seed is not None:
            self._print_command(
                f"# again: cxlemu run --protocol {target} --adversary {wrong[0].seed} --seeds 1 --repeat 10"
            )
        self._print_command(f"# A run is one interleaving. To search all of them: cxlemu explore {target}")

    def _memory(self) -> str:
        memory, seed = self._setting.memory, self._setting.seed
        if not memory.backend.emulates_caches or seed is None:
            return memory.describe()
        return f"non-coherent, adversaries from seed {seed} on; ranks also pause at random"

    def _hides(self) -> str:
        if not (self._setting.memory.backend.emulates_caches or self._setting.memory.backend.on_devices):
            return "a coherent pool: no flush or invalidate that is missing shows here"
        if self._setting.launch in ("processes", "threads"):
            return "all ranks are on this host, whose cache is coherent: to run on several hosts, --launch env on each"
        return "ranks of one machine share its coherent cache"

    def _document(self, seconds: float, error: BaseException | None) -> dict[str, Any]:
        setting = self._setting
        document = {
            "version": __version__,
            "protocol": setting.spec,
            "ranks": len(setting.hosts),
            "hosts": list(setting.hosts),
            "config": setting.topology,
            "backend": setting.memory.kind,
            "launch": setting.launch,
            "runs": [
                {
                    "number": run.number,
                    "seed": run.seed,
                    "wrong": run.wrong,
                    "final": run.final,
                    "memory": dict(run.memory),
                    "ranks": [asdict(ending) for ending in run.endings],
                }
                for run in self._runs
            ],
            "asked_for": setting.runs,
            "wrong": sum(run.wrong for run in self._runs),
            "seconds": seconds,
        }
        if error is not None:
            interrupted = isinstance(error, KeyboardInterrupt | SystemExit)
            document["error"] = "interrupted" if interrupted else str(error) or type(error).__name__
        return document

    def _print(self, line: str, style: str = "") -> None:
        print_wrapped(self._out, line, style, indent="#          " if line.startswith("#") else "  ")

    def _print_command(self, line: str) -> None:
        self._out.print(Text(line))  # on a line of its own, to copy


def _named(run: ProtocolRun) -> str:
    return f"run {run.number + 1}" + ("" if run.seed is None else f", seed {run.seed}")


def _told(ending: Ending) -> str:
    place = f" at {ending.where}" if ending.where else ""
    if ending.how == How.RETURNED:
        return f"returned {ending.result}"
    return f"{ending.how}{place}" + (f": {ending.text}" if ending.text else "")


def _results(endings: list[Ending]) -> str:
    """Tell the results of one rank in all runs."""
    counts = Counter(_told(ending) for ending in endings).most_common()
    if len(counts) == 1:
        return counts[0][0]
    lines = [f"{what} in {counted(count, 'run')}" for what, count in counts[:RESULTS_SHOWN]]
    more = len(counts) - len(lines)
    return "; ".join(lines) + (f"; and {more} more" if more else "")


def _stopped_by(run: ProtocolRun) -> str:
    return " after a rank was stuck" if run.stuck else " after the first wrong one" if run.wrong else ""


def _seeds(wrong: list[ProtocolRun]) -> str:
    seeds = [run.seed for run in wrong if run.seed is not None]
    return f" ({name_numbers('seed', seeds)})" if seeds else ""
