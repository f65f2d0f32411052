"""The output of ``cxlemu mutate``: a line per plan, a line per operator, survivors and needless instructions; and
JSON."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from cxlemu.cli.console import console, print_wrapped
from cxlemu.cli.interruption import Interruption
from cxlemu.cli.output import write_json
from cxlemu.cli.report import LiveReport
from cxlemu.units import counted
from cxlemu.version import __version__
from faults.left_out import NOTHING, NotDone
from faults.lockstep.schedule import to_json
from faults.mutate.cases import MutationCase
from faults.mutate.operators import FAR, OPERATORS
from faults.mutate.sweep import MutationRow, equivalent, killed, survived
from faults.mutate.trial import SURVIVAL, Fate, MutantJudgement, Trial
from faults.prove import Proof
from faults.replay.calls import token_of
from faults.token import Token
from faults.verdict import Verdict

COLUMNS = ("mutants", "killed", "confirmed", "equivalent", "survived")
HEADS = (("", "", "con-", "equi-", "sur-", ""), ("mutants", "killed", "firmed", "valent", "vived", "seconds"))
NAME_WIDTH = 32  # with six columns of 8, a line has 80; a longer name has a line of its own
SHOWN_MAX = 20  # survivors and needless instructions that are printed; JSON has all


class MutateReport(LiveReport):
    """A context that prints a line when a plan is done, and the rest when all plans are or something failed."""

    def __init__(
        self,
        cases: Sequence[MutationCase],
        json_file: Path | None,
        interruption: Interruption,
        left_out: NotDone = NOTHING,
    ) -> None:
        super().__init__("mutants", None, json_file=json_file)
        self._interruption, self._cases, self._left_out = interruption, cases, left_out
        self._rows: dict[MutationCase, MutationRow] = {}

    @property
    def verdict(self) -> Verdict:
        """VIOLATION if prover and executions disagree, or a shipped plan has a needless instruction; then UNKNOWN.

        A needless instruction of a user's plan does not count: the builder may have put it there.
        """
        verdicts = {survivor.fate.verdict for row in self._rows.values() for survivor in row.survivors}
        needless = any(row.needless and not row.case.algorithm for row in self._rows.values())
        if needless or Verdict.VIOLATION in verdicts:
            return Verdict.VIOLATION
        return Verdict.UNKNOWN if verdicts or self._left_out.nowhere else Verdict.OK

    @property
    def left(self) -> int:
        """How many plans are not finished."""
        return len(self._cases) - sum(row.judged == row.mutants for row in self._rows.values())

    def _open(self) -> None:
        for heads in HEADS:
            self._print(f"{'':<{NAME_WIDTH}}" + "".join(f"{head:>8}" for head in heads).rstrip())

    def update(self, row: MutationRow) -> None:
        """Take a row that has changed; a row whose mutants are all judged is printed."""
        self._rows[row.case] = row
        rows = self._rows.values()
        self._progress.update(self._task, completed=sum(r.judged for r in rows), total=sum(r.mutants for r in rows))
        if row.judged == row.mutants:
            self._print(_line(str(row.case), [getattr(row, name) for name in COLUMNS], row.seconds))

    def _close(self, error: BaseException | None) -> None:
        rows = [self._rows[case] for case in self._cases if case in self._rows]
        seconds = self.seconds
        totals = {name: sum(getattr(row, name) for row in rows) for name in COLUMNS}
        operators = {
            one.name: sum((row.operators.get(one.name, Counter()) for row in rows), Counter()) for one in OPERATORS
        }
        if error is None:
            self._print(_line("all", list(totals.values()), sum(row.seconds for row in rows)))
            self._print_operators(operators, sum(row.pairs for row in rows))
            self._list("survived", [(row, judgement) for row in rows for judgement in row.survivors])
            self._list("needless", [(row, judgement) for row in rows for judgement in row.needless])
            if any(row.needless and row.case.algorithm for row in rows):
                self._print("needless instructions of an algorithm or plan of your own are no failure")
        for sentence in self._left_out.lines:
            print_wrapped(self._out, sentence, "yellow")
        document = {
            "cxlemu": __version__,
            "complete": error is None and not self._interruption.happened,
            "interrupted": self._interruption.happened,
            "seconds": seconds,
            "summary": {**totals, "needless": sum(len(row.needless) for row in rows)},
            "operators": {name: _counts(fates) for name, fates in operators.items()},
            "far_pairs": sum(row.pairs for row in rows),
            "rows": [_as_dict(row) for row in rows],
        } | self._left_out.data
        write_json(self._json_file, document)

    def _print_operators(self, operators: dict[str, Counter[Fate]], pairs: int) -> None:
        """Print what became of each operator's mutants, and from how many pairs the operator ``far`` takes its own."""
        self._print("")
        for name, fates in operators.items():
            if fates:
                text = f", {fates.total()} of {counted(pairs, 'pair')}" if name == FAR else ""
                self._print(_line(f"  {name}{text}", list(_counts(fates).values())))

    def _list(self, what: str, rows: Sequence[tuple[MutationRow, MutantJudgement]]) -> None:
        for row, judgement in rows[:SHOWN_MAX]:
            reason = f": {judgement.reason}" if judgement.reason else ""
            fate = f" ({judgement.fate.value})" if judgement.fate.survived else ""
            text = f"{what}{fate}: [{row.case}] {judgement.mutant} {judgement.instruction}{reason}"
            print_wrapped(self._out, text)
        if len(rows) > SHOWN_MAX:
            self._print(f"... and {len(rows) - SHOWN_MAX} more")
        for survivor, meaning in SURVIVAL.items():
            if any(judgement.fate is survivor for _, judgement in rows):
                print_wrapped(self._out, f"{survivor.value}: {meaning}")


def _line(name: str, counts: Sequence[int], seconds: float | None = None) -> str:
    text = "" if seconds is None else f"{seconds:>8.1f}"
    before = f"{name:<{NAME_WIDTH}}" if len(name) <= NAME_WIDTH else f"{name}\n{'':<{NAME_WIDTH}}"
    return before + "".join(f"{count:>8}" for count in counts) + text


def _counts(fates: Counter[Fate]) -> dict[str, int]:
    """Count fates by COLUMNS."""
    counts = fates.total(), killed(fates), fates[Fate.CONFIRMED], equivalent(fates), survived(fates)
    return dict(zip(COLUMNS, counts, strict=True))


def _as_dict(row: MutationRow) -> dict[str, Any]:
    return {
        "name": str(row.case),
        **row.case._asdict(),
        **{name: getattr(row, name) for name in COLUMNS},
        **{fate.value: row.fates[fate] for fate in Fate},
        "operators": {name: _counts(fates) for name, fates in row.operators.items()},
        "far_pairs": row.pairs,
        "seconds": round(row.seconds, 3),
        "survivors": [_judgement(judgement) for judgement in row.survivors],
        "needless": [_judgement(judgement) for judgement in row.needless],
    }


def _judgement(judgement: MutantJudgement) -> dict[str, Any]:
    return {
        "mutant": str(judgement.mutant),
        "fate": judgement.fate.value,
        "instruction": judgement.instruction,
        "reason": judgement.reason,
        "schedule": to_json(judgement.shown.schedule) if judgement.shown else None,
    }


def _token(case: MutationCase, judgement: MutantJudgement) -> Token:
    assert judgement.shown is not None
    trial, mutant = Trial(case), judgement.mutant
    plans, own = trial.program(mutant.rank).plans, case.algorithm or None
    return token_of(plans, judgement.shown, mutated=trial.plan, mutant=str(mutant), algorithm=own)


def print_unmutated(case: MutationCase, proof: Proof, json_file: Path | None) -> None:
    """Print why nothing is mutated: the plan is not right as it is."""
    console().print(Text(f"{case}: {proof.verdict.value} before anything is mutated: {proof.reason}"))
    found = {"name": str(case), "verdict": proof.verdict.value, "reason": proof.reason}
    write_json(json_file, {"cxlemu": __version__, "complete": False, "unmutated": found, "rows": []})


def print_one(case: MutationCase, judgement: MutantJudgement, json_file: Path | None) -> None:
    out = console()
    lines = [f"{case}: {judgement.mutant} {judgement.instruction}: {judgement.fate.value}"]
    lines += [judgement.reason] if judgement.reason else []
    lines += [f"{judgement.fate.value}: {SURVIVAL[judgement.fate]}"] if judgement.fate.survived else []
    if judgement.shown is not None:
        lines += [f"{judgement.shown.kind.value}: {judgement.shown.detail}"]
        lines += [f"again: {_token(case, judgement).command(case.algorithm or None)}"]
        lines += [f"schedule: {json.dumps(to_json(judgement.shown.schedule), separators=(',', ':'))}"]
    for line in lines:
        out.print(line, markup=False)
    write_json(json_file, {"cxlemu": __version__, "complete": True, "name": str(case), **_judgement(judgement)})
