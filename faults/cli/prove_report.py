"""The output of ``cxlemu prove``: a line per proof, violations told and shown, time against ranks; and JSON."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from cxlemu.cli.console import print_wrapped
from cxlemu.cli.output import write_json
from cxlemu.cli.report import LiveReport
from cxlemu.units import counted, format_bytes
from cxlemu.version import __version__
from faults.cli.prove_rows import Case, ProofRow
from faults.left_out import NOTHING, NotDone
from faults.prove.coverage import Coverage, Covered
from faults.prove.proof import nothing_judged
from faults.verdict import Verdict

COLUMNS = "{:<19} {:<18} {:>5} {:>8} {:<9} {:>8} {:>7}"
STYLES = {Verdict.OK: "green", Verdict.VIOLATION: "bold red", Verdict.UNKNOWN: "bold yellow"}


class ProveReport(LiveReport):
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
        left_out: NotDone = NOTHING,
        ranks_per_host: int = 1,
    ) -> None:
        """Prepare the report; the context starts it."""
        super().__init__("proofs", proofs, json_file=json_file)
        self._proofs, self._integrity = proofs, integrity
        self._machine, self._roots, self._left_out = machine, roots, left_out
        self._ranks_per_host = ranks_per_host
        self._rows: list[ProofRow] = []
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
        verdicts = {row.proof.verdict for row in self._rows} | ({Verdict.UNKNOWN} if self.spent else set())
        return next((v for v in (Verdict.VIOLATION, Verdict.UNKNOWN) if v in verdicts), Verdict.OK)

    def _open(self) -> None:
        self._print(COLUMNS.format("collective", "variant", "ranks", "bytes", "verdict", "instr.", "seconds"))

    def begin(self, case: Case) -> None:
        """Show which case is proved; of several that are, the first."""
        self._name = f"{case.call.collective} {case.call.algorithm} {counted(case.call.ranks, 'rank')}"
        self._progress.update(self._task, description=self._name)

    def progress(self, done: int, of: int) -> None:
        self._progress.update(self._task, description=f"{self._name}, {done} of {counted(of, 'sequence')}")

    def add(self, row: ProofRow) -> None:
        """Add a proof, and print its line."""
        self._rows.append(row)
        self._progress.advance(self._task)
        case, proof, call, style = row.case, row.proof, row.case.call, STYLES[row.proof.verdict]
        columns = (call.collective, call.algorithm, call.ranks, format_bytes(case.size_bytes), proof.verdict.value)
        more = [f"and {counted(proof.rounds_alike, 'round')} alike"] if proof.rounds_alike else []
        more += [f"clusters of {call.cluster}"] if call.cluster > 1 else []
        alike = ", ".join(more + [row.file] * bool(row.file))
        self._print(COLUMNS.format(*columns, f"{proof.instructions:,}", f"{row.seconds:.2f}"), style)
        if alike:
            self._print(f"  {alike}", style)
        if proof.reason:
            print_wrapped(self._out, f"  {proof.reason}", style)
        if row.violation is not None and row.violation.executed:
            print_wrapped(self._out, f"  executed: {row.violation.executed}", style)
            if row.violation.again:
                self._print(f"  again: {row.violation.again}", style)

    def _close(self, error: BaseException | None) -> None:
        seconds = self.seconds
        self.spent = self.spent or nothing_judged([row.proof for row in self._rows]) or self._left_out.nowhere
        count = {verdict: sum(row.proof.verdict is verdict for row in self._rows) for verdict in Verdict}
        if len(by_ranks := self._by_ranks()) > 1:
            self._print("")
            self._print(f"{'ranks':>5} {'proofs':>7} {'instructions':>13} {'seconds':>8}")
            for r in by_ranks:
                self._print(f"{r['ranks']:>5} {r['proofs']:>7} {r['instructions']:>13,} {r['seconds']:>8.2f}")
        text = ", ".join(f"{number} {verdict.value}" for verdict, number in count.items())
        done, spent = f"{len(self._rows)} of {counted(self._proofs, 'proof')}", self.spent and f"; {self.spent}"
        print_wrapped(self._out, f"{done}: {text}; {seconds:.1f} s{spent}", STYLES[self.verdict])
        for sentence in self._left_out.sentences:
            print_wrapped(self._out, sentence, "yellow")
        coverage = self._coverage()
        line = coverage.sentence(violated=self.verdict is Verdict.VIOLATION)
        print_wrapped(self._out, line, STYLES[self.verdict])
        document = {
            "cxlemu": __version__,
            "complete": error is None and not self.spent,
            "reason": self.spent,
            "interrupted": self.interrupted,
            "verdict": self.verdict.value,
            "integrity": self._integrity,
            "seconds": seconds,
            "coverage": coverage.as_dict(),
            "by_ranks": by_ranks,
            "rows": [_as_dict(row) for row in self._rows],
        } | self._left_out.data
        write_json(self._json_file, document)

    def _coverage(self) -> Coverage:
        right = [row for row in self._rows if row.proof.verdict is Verdict.OK]
        calls = [replace(row.case.call, in_place=row.case.in_place) for row in right]
        texts = [format_bytes(row.case.size_bytes) for row in right]
        roots = [(row.case.call.root,) if row.file else self._roots for row in right]
        covered = [Covered(*proof) for proof in zip(calls, texts, roots, strict=True)]
        return Coverage.of(covered, machine=self._machine, ranks_per_host=self._ranks_per_host)

    def _by_ranks(self) -> list[dict[str, Any]]:
        """Count proofs, instructions and seconds for each number of ranks."""
        documents = []
        for ranks in sorted({row.case.call.ranks for row in self._rows}):
            rows = [row for row in self._rows if row.case.call.ranks == ranks]
            instructions, seconds = sum(r.proof.instructions for r in rows), sum(r.seconds for r in rows)
            documents.append({"ranks": ranks, "proofs": len(rows), "instructions": instructions, "seconds": seconds})
        return documents


def _as_dict(row: ProofRow) -> dict[str, Any]:
    call, proof = row.case.call, row.proof
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
    return described if row.violation is None else described | row.violation.data
