"""The output of ``cxlemu faults campaign``: a bar while it runs, then its findings."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from faults.campaign.run import CampaignResult

SHOWN_MAX = 20


class Screen:
    """A context that shows progress, if there is a terminal to show it on.

    Args:
        total: How many cases there are.
        workers: How many workers run them.
        executor: Name of the executor.
    """

    def __init__(self, total: int, workers: int, executor: str) -> None:
        terminal = None if sys.stderr.isatty() else False
        self._out = Console(highlight=False, soft_wrap=True, force_terminal=terminal)
        self._out.print(f"# {total} cases, {workers} workers ({executor}); Ctrl-C keeps what was found")
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._out,
            transient=True,
            disable=not self._out.is_terminal,
        )
        self._task = self._progress.add_task("no findings", total=total)
        self._told = 0

    def tell(self, result: CampaignResult) -> None:
        """Show the result so far: this is called after every case, and prints findings as they come."""
        found = len(result.findings)
        words = f"{found} finding{'s' * (found != 1)}" if found else "no findings"
        self._progress.update(self._task, completed=len(result.judged), description=words)
        for finding in result.findings[self._told : SHOWN_MAX]:
            j = finding.judgement
            self._out.print(f"! {j.kind}: {j.place} ({j.rule}) in [{finding.first}]", style="red", markup=False)
        self._told = found

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def print(self, result: CampaignResult) -> None:
        """Print the end: findings, each with its token, and a sum."""
        if result.findings:
            self._out.print(_table(result))
        for number, finding in enumerate(result.findings[:SHOWN_MAX], 1):
            self._out.print(f"\n{number}. {finding.judgement.detail}", markup=False)
            self._out.print(f"   smallest: {finding.smallest}", markup=False)
            self._out.print(f"   {finding.command}", markup=False)
        if len(result.findings) > SHOWN_MAX:
            self._out.print(f"\n{len(result.findings) - SHOWN_MAX} more: --json and --html have them all")
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(result.counts.items())) or "none"
        resumed = f", {result.resumed} of them before" if result.resumed else ""
        speed = (len(result.judged) - result.resumed) / max(result.seconds, 1e-9)
        self._out.print("#")
        self._out.print(
            f"# {len(result.judged)} of {result.total} cases judged{resumed} ({result.state}): {counts}; "
            f"{len(result.findings)} findings, {result.seconds:.1f} s, {speed:.0f} cases/s",
            style="bold red" if result.findings else "green" if result.complete else "yellow",
            markup=False,
        )


def _table(result: CampaignResult) -> Table:
    table = Table("", "what", "where", "rule", "cases", box=box.SIMPLE_HEAD, show_edge=False)
    for number, finding in enumerate(result.findings[:SHOWN_MAX], 1):
        j = finding.judgement
        table.add_row(str(number), *map(Text, (j.kind, j.place, j.rule, str(finding.count))))
    return table
