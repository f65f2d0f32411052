"""What ``cxlemu exec`` says of its runs: sentences, findings and their files, JSON, and the exit code."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from cxlemu.cli.console import console, print_wrapped
from cxlemu.cli.output import check_kept, check_output, write_json, write_output
from cxlemu.cli.progress import spinning
from cxlemu.errors import ArgumentError
from cxlemu.units import counted
from faults.cli.exec import ExecFlags
from faults.programs import reports
from faults.programs.doing import died_before
from faults.programs.judge import again, report_of
from faults.programs.reports import ProgramReport
from faults.programs.result import ExecSetting, RunEnding, RunResult
from faults.programs.suppressions import read as read_suppressions
from faults.programs.words import repeats, shortened, text, unused, wrapped
from faults.verdict import Verdict

OUTPUT_LINES = 20


class ExecReport:
    """Prints and writes what the verb's options ask for; files that cannot be written are refused at once."""

    def __init__(self, asked: ExecFlags) -> None:
        check_output("--sarif", asked.sarif)
        check_output("--html", asked.html)
        if asked.resume is not None:
            check_kept("--resume", asked.resume)
        folder = asked.litmus
        if folder is not None and not (folder.is_dir() or (not folder.exists() and folder.parent.is_dir())):
            raise ArgumentError(f"--litmus {folder}: name a folder, or a new one in an existing folder")
        self._asked = asked
        self.reasons = read_suppressions(asked.suppressions) if asked.suppressions is not None else []
        self.out = console()

    def note(self, sentence: str, style: str = "yellow") -> None:
        print_wrapped(self.out, sentence, style)

    def say(self, sentence: str, indent: str = "", more: str = "  ", style: str | None = None) -> None:
        """Print a sentence on lines of 80 columns, wherever they go to."""
        self.out.print(wrapped(sentence, indent, more), style=style, markup=False)

    def shorten(self, setting: ExecSetting, failed: RunResult) -> RunResult:
        """Look for a shorter schedule that fails as well, for as long as was asked for."""
        if self._asked.no_shrink:
            return failed
        from faults.programs import replays

        began = time.monotonic()
        with spinning("looking for a shorter schedule", self.out):
            shrink = replays.shrink(setting, failed, seconds=self._asked.shrink_s)
        if len(shrink.turns) < len(failed.turns):
            turns = f"{counted(len(failed.turns), 'turn')}, now {len(shrink.turns)}"
            self.out.print(f"# shortened: {turns}, in {time.monotonic() - began:.1f} s", markup=False)
        if str(shrink.choice) != str(failed.choice):
            self.say(f"# {failed.choice}: fails without random moves of lines, too; it is {shrink.choice} from here on")
        return shrink

    def show(
        self, setting: ExecSetting, shown: Sequence[RunResult], failed: RunResult | None, which: str
    ) -> ProgramReport:
        """Print the findings of runs, and how the one that failed, which ``which`` names, is made again."""
        words = self._asked.words
        report = report_of(setting, shown, words, self.reasons)
        self.out.print(text(report), end="", markup=False, highlight=False, soft_wrap=True)
        if failed is not None:
            self._tell(setting, failed)
        also = {again(setting, failed, words): which} if failed is not None and not failed.findings else {}
        self.out.print(repeats(report, also), end="", markup=False, soft_wrap=True)
        return report

    def _tell(self, setting: ExecSetting, result: RunResult) -> None:
        where = f"{result.choice}, {counted(result.steps, 'step')}, {counted(len(result.turns), 'turn')}"
        for ended in result.exits:
            if not ended.failed:
                continue
            name = shlex.join(setting.commands[ended.command].words)
            how = f"exited with {ended.code}" if ended.code > 0 else f"was killed by signal {-ended.code}"
            self.say(f"{name} (host {setting.commands[ended.command].host}) {how}: {where}", style="bold red")
            for line in ended.output.splitlines()[-OUTPUT_LINES:]:
                self.out.print(f"  | {line}", markup=False)
        if result.ending is RunEnding.NO_PROGRESS:
            same = "each thread returns to the same step in the same state, and nothing changes"
            self.say(f"the programs hang: {same}: {where}", more="", style="bold red")
            for sentence in result.doing if not result.findings else ():  # a finding names the load
                self.say(shortened(sentence), "  ")
            if dead := "" if result.findings else died_before(setting, result):
                self.say(dead, "  ")

    def end(
        self,
        ctx: click.Context,
        verdict: Verdict,
        setting: ExecSetting,
        results: Sequence[RunResult],
        smallest: RunResult | None,
        report: ProgramReport,
        stop: BaseException | None = None,
        **search: Any,
    ) -> NoReturn:
        """Write the files that were asked for, and exit with the code that the command's help states; or stop."""
        asked = self._asked
        document = {
            "verdict": verdict.value,
            "commands": [{"words": list(c.words), "host": c.host, "stage": c.stage} for c in setting.commands],
            "runs": [_row(result) for result in results],
            "token": _token(setting, smallest) if smallest is not None else None,
        }
        write_json(asked.json_file, document | search | {"found": reports.as_json(report)})
        if asked.sarif is not None:
            write_output("--sarif", asked.sarif, (json.dumps(reports.as_sarif(report), indent=2) + "\n").encode())
        if asked.html is not None:
            from faults.programs.page import page  # it needs half of the project

            write_output("--html", asked.html, page(report, shlex.join(asked.words)).encode())
        if asked.litmus is not None:
            _write_litmus(asked.litmus, report)
        if stop is not None and verdict is not Verdict.VIOLATION:
            raise stop
        click.echo(unused(report), err=True, nl=False)
        ctx.exit(asked.error_exitcode if verdict is Verdict.VIOLATION else verdict.exit_code)


def _write_litmus(folder: Path, report: ProgramReport) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"--litmus {folder} cannot be made: {error.strerror}") from error
    for number, mistake in enumerate(report.mistakes, 1):
        chain = mistake.chain()
        if chain is not None:
            write_output("--litmus", folder / f"{number:02}-{mistake.kind.name}.yaml", chain.broken.encode())
            write_output("--litmus", folder / f"{number:02}-{mistake.kind.name}-fixed.yaml", chain.fixed.encode())


def _token(setting: ExecSetting, result: RunResult) -> str:
    from faults.programs.replays import token_of

    return str(token_of(setting, result))


def _row(result: RunResult) -> dict[str, Any]:
    return {
        "seed": result.choice.seed,
        "schedule": result.choice.schedule,
        "ending": result.ending.value,
        "failed": result.failed,
        "steps": result.steps,
        "turns": len(result.turns),
        "trace": f"{result.trace:016x}",
        "unannounced_lines": result.unannounced,
        "exits": [{"command": e.command, "code": e.code, "asked": e.asked, "output": e.output} for e in result.exits],
        "notes": result.notes,
        "doing": result.doing,
        "unfired": list(result.unfired.values()),
        "undecided": result.undecided,
    }
