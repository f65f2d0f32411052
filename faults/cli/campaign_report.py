"""The output of ``cxlemu faults campaign``: a bar while it runs, then its findings."""

from types import TracebackType
from typing import Self

from rich import box
from rich.table import Table
from rich.text import Text

from cxlemu.cli.console import console, print_wrapped
from cxlemu.cli.progress import bar
from cxlemu.units import counted
from faults.campaign.judge import NEVER
from faults.campaign.run import CampaignResult
from faults.left_out import together

SHOWN_MAX = 20


class Screen:
    """A context that shows progress, if there is a terminal to show it on."""

    def __init__(self, total: int, workers: int, executor: str) -> None:
        self._out = console(launched=True)
        under_way = f"{counted(total, 'case')}, {counted(workers, 'worker')} ({executor})"
        print_wrapped(self._out, f"# {under_way}; Ctrl-C keeps what was found", indent="#   ")
        self._progress = bar(self._out)
        self._task = self._progress.add_task("no findings", total=total)
        self._told = 0

    def note(self, text: str) -> None:
        print_wrapped(self._out, f"# {text}", "yellow", indent="#   ")

    def tell(self, result: CampaignResult) -> None:
        """Show the result so far: this is called after every case, and prints findings as they come."""
        count = len(result.findings)
        words = counted(count, "finding") if count else "no findings"
        self._progress.update(self._task, completed=len(result.judged), description=words)
        for finding in result.findings[self._told : SHOWN_MAX]:
            j = finding.judgement
            print_wrapped(self._out, f"! {j.kind}: {j.place} ({j.rule}) in [{finding.first}]", "red")
        self._told = count

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
            self._out.print(_table(result), soft_wrap=False)
        for number, finding in enumerate(result.findings[:SHOWN_MAX], 1):
            print_wrapped(self._out, "")
            print_wrapped(self._out, f"{number}. {finding.judgement.detail}", indent="   ")
            print_wrapped(self._out, f"   smallest: {finding.smallest}")
            self._out.print(f"   {finding.command}", markup=False)
        if len(result.findings) > SHOWN_MAX:
            self._out.print(f"\n{len(result.findings) - SHOWN_MAX} more: --json and --html have them all")
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(result.counts.items())) or "none"
        resumed = f", {result.resumed} of them before" if result.resumed else ""
        speed = (len(result.judged) - result.resumed) / max(result.seconds, 1e-9)
        self._out.print("#")
        print_wrapped(
            self._out,
            f"# {len(result.judged)} of {counted(result.total, 'case')} judged{resumed} ({result.state}): {counts}; "
            f"{counted(len(result.findings), 'finding')}, {result.seconds:.1f} s, {speed:.0f} cases/s",
            "bold red" if result.findings else "yellow" if result.exit_code else "green",
            indent="#   ",
        )
        if result.lost:
            more = f" and {len(result.lost) - 1} more" if len(result.lost) > 1 else ""
            self.note(
                f"nothing is known of [{result.lost[0]}]{more}: its worker was killed, perhaps for lack of memory; "
                "try fewer with --jobs"
            )
        if result.declined:
            self.note(f"declined: {counted(len(result.declined), 'call')}: {'; '.join(result.declined[:SHOWN_MAX])}")
        for sentence in together(result.left_out, result.kinds_left_out).lines:
            self.note(sentence)
        if result.untried:
            why = next(judgement.detail for _, _, judgement, _ in result.judged if judgement.kind == NEVER)
            self.note(f"no fault happened in any case, so nothing is known of them: {why}")


def _table(result: CampaignResult) -> Table:
    table = Table("", "what", "where", "rule", "cases", box=box.SIMPLE_HEAD, show_edge=False)
    for number, finding in enumerate(result.findings[:SHOWN_MAX], 1):
        j = finding.judgement
        table.add_row(str(number), *map(Text, (j.kind, j.place, j.rule, str(finding.count))))
    return table
