"""The output of ``cxlemu prove``: a line per proof, violations told and shown, time against ranks; and JSON."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from rich.markup import escape

from collectives.checking.oracle import check_exact
from collectives.sweep.sweep import Case as CollectiveCase
from cxlemu.cli.console import console, print_wrapped
from cxlemu.cli.output import write_json
from cxlemu.cli.progress import bar
from cxlemu.errors import ArgumentError, TokenError
from cxlemu.units import counted, format_bytes
from cxlemu.version import __version__
from faults.lockstep.counterexample import Counterexample, witness
from faults.lockstep.schedule import to_json
from faults.prove.coverage import Coverage, Covered
from faults.prove.products import ProductCase
from faults.prove.proof import FOLD_ORDER, Proof, Violation
from faults.replay.calls import POOL_BYTES_MAX, token_of
from faults.verdict import Verdict

Case = CollectiveCase | ProductCase

COLUMNS = "{:<19} {:<18} {:>5} {:>8} {:<9} {:>8} {:>7}"
STYLES = {Verdict.OK: "green", Verdict.VIOLATION: "bold red", Verdict.UNKNOWN: "bold yellow"}
WITNESS_RANKS, WITNESS_BUDGET_S = 8, 5.0  # larger worlds are proved, not executed a step at a time


class ProofRow(NamedTuple):
    """One proof.

    Attributes:
        case: The call, or the cases of a fused product.
        proof: The proof.
        seconds: How long it took, in seconds.
        shown: An execution that shows the violation, if one was found.
        file: The file that the plan is from; empty: none.
    """

    case: Case
    proof: Proof
    seconds: float
    shown: Counterexample | None
    file: str = ""


class ProveReport:
    """A context that prints a line when a proof is done; the rest, and the JSON file, when all are or something
    failed."""

    def __init__(
        self,
        proofs: int,
        json_file: Path | None,
        integrity: str | None = None,
        *,
        machine: str,
        roots: tuple[int, ...] | None = None,
    ) -> None:
        """Prepare the report; the context starts it.

        Args:
            proofs: How many proofs there will be.
            json_file: Where to write the JSON file; None: nowhere.
            integrity: Which checksums plans carry; None: none.
            machine: The machine on whose rings they are proved, in words.
            roots: The roots that were asked for; None: all that `prove` chooses.
        """
        self._proofs, self._json_file, self._integrity = proofs, json_file, integrity
        self._machine, self._roots = machine, roots
        self._rows: list[ProofRow] = []
        self._began = self._row_began = time.monotonic()
        self._out = console()
        self._bar = bar(self._out)
        self._task = self._bar.add_task("proofs", total=proofs)
        self._name = ""
        self.spent = ""  # why not everything was proved
        self.interrupted = False  # by Ctrl-C

    @property
    def left(self) -> str:
        """What did not end, in words."""
        return f"{counted(self._proofs - len(self._rows), 'proof')} did not end"

    @property
    def verdict(self) -> Verdict:
        """The verdict on all proofs: a violation weighs more than an unknown."""
        found = {row.proof.verdict for row in self._rows} | ({Verdict.UNKNOWN} if self.spent else set())
        return next((v for v in (Verdict.VIOLATION, Verdict.UNKNOWN) if v in found), Verdict.OK)

    def __enter__(self) -> Self:
        self._bar.start()
        self._print(COLUMNS.format("collective", "variant", "ranks", "bytes", "verdict", "instr.", "seconds"))
        return self

    def begin(self, case: Case) -> None:
        """Show that the proof of a case begins."""
        self._row_began = time.monotonic()
        self._name = f"{case.call.collective} {case.call.algorithm} {counted(case.call.ranks, 'rank')}"
        self._bar.update(self._task, description=self._name)

    def progress(self, done: int, of: int) -> None:
        """Show how far the proof is.

        Args:
            done: Sequences of calls that are proved.
            of: How many there are.
        """
        self._bar.update(self._task, description=f"{self._name}, {done} of {counted(of, 'sequence')}")

    def add(self, case: Case, proof: Proof, *, file: str = "") -> None:
        """Add a proof, and print its line; a violation is executed if an execution is found that shows it.

        Args:
            case: The case of the last `begin`.
            proof: Its proof.
            file: The file that the plan is from.
        """
        seconds = time.monotonic() - self._row_began
        row = ProofRow(case, proof, seconds, shown_of(proof), file)
        self._rows.append(row)
        self._bar.advance(self._task)
        call, style = case.call, STYLES[proof.verdict]
        columns = (call.collective, call.algorithm, call.ranks, format_bytes(case.size_bytes), proof.verdict.value)
        more = [f"and {counted(proof.rounds_alike, 'round')} alike"] if proof.rounds_alike else []
        more += [f"clusters of {call.cluster}"] if call.cluster > 1 else []
        alike = ", ".join(more + [file] * bool(file))
        self._print(COLUMNS.format(*columns, f"{proof.instructions:,}", f"{seconds:.2f}"), style)
        if alike:
            self._print(f"  {alike}", style)
        if proof.reason:
            print_wrapped(self._out, f"  {proof.reason}", style)
        if row.shown is not None:
            print_wrapped(self._out, f"  executed: {row.shown.kind.value}: {row.shown.detail}", style)
            if not file and (again := again_with(proof, row.shown)):
                self._print(f"  again: {again}", style)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
        seconds = time.monotonic() - self._began
        count = {verdict: sum(row.proof.verdict is verdict for row in self._rows) for verdict in Verdict}
        if len(by_ranks := self._by_ranks()) > 1:
            self._print("")
            self._print(f"{'ranks':>5} {'proofs':>7} {'instructions':>13} {'seconds':>8}")
            for r in by_ranks:
                self._print(f"{r['ranks']:>5} {r['proofs']:>7} {r['instructions']:>13,} {r['seconds']:>8.2f}")
        told = ", ".join(f"{number} {verdict.value}" for verdict, number in count.items())
        done, spent = f"{len(self._rows)} of {counted(self._proofs, 'proof')}", self.spent and f"; {self.spent}"
        print_wrapped(self._out, f"{done}: {told}; {seconds:.1f} s{spent}", STYLES[self.verdict])
        coverage = self._coverage()
        line = f"covered: {coverage.covered()}. not covered: {coverage.not_covered()}"
        print_wrapped(self._out, line, STYLES[self.verdict])
        document = {
            "cxlemu": __version__,
            "complete": kind is None and not self.spent,
            "reason": self.spent,
            "interrupted": self.interrupted,
            "verdict": self.verdict.value,
            "integrity": self._integrity,
            "seconds": seconds,
            "coverage": coverage.as_dict(),
            "by_ranks": by_ranks,
            "rows": [_as_dict(row) for row in self._rows],
        }
        write_json(self._json_file, document)

    def _coverage(self) -> Coverage:
        right = [row for row in self._rows if row.proof.verdict is Verdict.OK]
        calls = [replace(row.case.call, in_place=row.case.in_place) for row in right]
        texts = [format_bytes(row.case.size_bytes) for row in right]
        roots = [(row.case.call.root,) if row.file else self._roots for row in right]
        covered = [Covered(*its) for its in zip(calls, texts, roots, strict=True)]
        return Coverage.of(covered, machine=self._machine)

    def _by_ranks(self) -> list[dict[str, Any]]:
        """Count proofs, instructions and seconds for each number of ranks."""
        found = []
        for ranks in sorted({row.case.call.ranks for row in self._rows}):
            rows = [row for row in self._rows if row.case.call.ranks == ranks]
            instructions, seconds = sum(r.proof.instructions for r in rows), sum(r.seconds for r in rows)
            found.append({"ranks": ranks, "proofs": len(rows), "instructions": instructions, "seconds": seconds})
        return found

    def _print(self, line: str, style: str = "") -> None:
        self._out.print(escape(line), style=style)


def shown_of(proof: Proof) -> Counterexample | None:
    """Find an execution that goes wrong as a proof says, and that can be checked bit by bit.

    No execution is looked for if arrays of the heap were mapped: behind emulated caches they are copied, and there is
    none to map. Nor if every execution folds in the wrong order: the reason then says which order it is, and which was
    promised. Nor in worlds or pools that are too large to execute a step at a time.

    Returns:
        The execution; None if none was found or looked for.
    """
    violation = proof.violation
    if violation is None or violation.mapped or proof.calls[0].ranks > WITNESS_RANKS or violation.rule == FOLD_ORDER:
        return None
    layout = proof.calls[0].layout
    if layout.extent_bytes * layout.cards > POOL_BYTES_MAX:
        return None
    try:
        for plan in proof.calls:
            if plan.call.gemm is None:
                check_exact(plan.call)
    except ArgumentError:
        return None
    return witness(proof.calls, violation, budget_s=WITNESS_BUDGET_S)


def _as_dict(row: ProofRow) -> dict[str, Any]:
    call, proof, violation = row.case.call, row.proof, row.proof.violation
    described: dict[str, Any] = {
        "collective": call.collective,
        "variant": call.algorithm,
        "ranks": call.ranks,
        "bytes": row.case.size_bytes,
        "in_place": row.case.in_place,
        "dtype": call.dtype,
        "op": call.redop,
        "cluster": call.cluster,
        "verdict": proof.verdict.value,
        "instructions": proof.instructions,
        "rounds_alike": proof.rounds_alike,
        "seconds": row.seconds,
        "reason": proof.reason,
    }
    described |= {"file": row.file} if row.file else {}
    return described if violation is None else described | violation_as_dict(violation, row.shown)


def again_with(proof: Proof, shown: Counterexample, algorithm: str | None = None) -> str:
    """Give the command that shows an execution again.

    Args:
        proof: The proof, with the plans of its calls.
        shown: The execution.
        algorithm: ``FILE.py:function`` of a user's algorithm.

    Returns:
        The command; empty if the schedule is too long for a token.
    """
    try:
        return token_of(proof.calls, shown, algorithm=algorithm).command(algorithm)
    except TokenError:
        return ""


def violation_as_dict(violation: Violation, shown: Counterexample | None) -> dict[str, Any]:
    """Give a violation as JSON has it.

    Args:
        violation: The violation.
        shown: An execution that shows it, if one was found.
    """
    return {
        "rule": violation.rule,
        "call": violation.call,
        "rank": violation.rank,
        "stream": violation.stream,
        "instruction": violation.at,
        "card": violation.card,
        "line": violation.line,
        "shown": shown.detail if shown else None,
        "schedule": to_json(shown.schedule) if shown else None,
    }
