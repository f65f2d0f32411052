"""The output of ``cxlemu prove --algorithm``: a line per number of ranks, every kind of mistake once, coverage."""

import re
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.markup import escape

from collectives.contracts import COLLECTIVES
from collectives.defaults import REGION_BYTES
from cxlemu.choices import DEFAULT_TOPOLOGY
from cxlemu.cli.console import console, print_wrapped
from cxlemu.cli.output import write_json
from cxlemu.cli.progress import bar
from cxlemu.units import counted, format_bytes, format_numbers
from cxlemu.version import __version__
from faults.cli.prove_rows import Answer
from faults.cli.violations import ViolationTold, told_of, violation_as_dict
from faults.prove.coverage import COMBINED, IN_TURNS, Coverage, Covered
from faults.prove.matrix import AnsweredQuestion, Matrix, Question, judge
from faults.prove.proof import nothing_judged
from faults.verdict import Verdict

FATES = (*(verdict.value for verdict in Verdict), "declined")
# The worst fate decides. If an algorithm declines everything, nothing was proved.
EXIT_CODES = {"violation": 1, "unknown": 3, "ok": 0, "declined": 3}
COLORS = {"violation": "bold red", "unknown": "bold yellow", "ok": "green", "declined": "yellow"}
COLUMNS = "{:>5} {:>6} {:>6} {:>9} {:>7} {:>7} {:>12} {:>8}"
KINDS_TOLD = 5  # of mistakes, and of reasons to decline
WITNESSES = 2  # numbers of ranks with which an execution of a mistake is looked for


class MatrixReport:
    """A context that prints numbers of ranks as they are done; mistakes, coverage and the JSON file when all are."""

    def __init__(
        self,
        matrix: Matrix,
        algorithm: str,
        config: str,
        integrity: str | None,
        json_file: Path | None,
        *,
        named: Sequence[str] = (),
        left_out: Sequence[str] = (),
    ) -> None:
        """Prepare the report; the context starts it. ``named``: which of `_DIMENSIONS` were asked for by name."""
        self._named, self._left_out = named, left_out
        self._matrix, self._algorithm, self._json_file = matrix, algorithm, json_file
        self._again = ["cxlemu", "prove", "--algorithm", algorithm]
        self._again += ["-c", config] if config != DEFAULT_TOPOLOGY else []
        self._again += ["--integrity", integrity] if integrity else []
        self._config, self._integrity = config, integrity
        self._rows: list[tuple[AnsweredQuestion, float]] = []
        self._told: dict[int, ViolationTold] = {}  # by the row's number
        self._out = console()
        self._bar = bar(self._out)
        self._questions: list[Question] = []
        self.spent = ""  # why not everything was proved
        self.interrupted = False  # by Ctrl-C

    @property
    def left(self) -> str:
        """What did not end, in words."""
        return f"{counted(len(self._questions) - len(self._rows), 'call')} did not end"

    @property
    def verdict(self) -> str:
        """The worst fate of all calls, or "declined" where none was proved."""
        fates = {judged.fate for judged, _ in self._rows} | ({"unknown"} if self.spent else set())
        return next((fate for fate in EXIT_CODES if fate in fates), "declined")

    @property
    def exit_code(self) -> int:
        """The exit code that the command's help tells for the verdict."""
        return EXIT_CODES[self.verdict]

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._bar.start()
        recipe = self._matrix.recipe
        self._print(f"{recipe.collective} {self._algorithm}")
        self._print(COLUMNS.format("ranks", "calls", "ok", "violation", "unknown", "declined", "instructions", "s"))
        return self

    def prove(self, questions: Sequence[Question], answers: Iterator[Answer]) -> None:
        """Ask all questions, in this order."""
        self._questions = list(questions)
        task = self._bar.add_task("calls", total=len(questions))
        for ranks, same_ranks in groupby(self._questions, key=lambda question: question.call.ranks):
            try:
                for question in same_ranks:
                    text = f"{counted(ranks, 'rank')}, {question.size.text}, {question.call.dtype}"
                    self._bar.update(task, description=text)
                    self._rows.append(next(answers))
                    self._bar.advance(task)
            finally:
                if self._rows and self._rows[-1][0].question.call.ranks == ranks:
                    self._tell_ranks(ranks)  # also when Ctrl-C or the budget ends it early

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            for fate in FATES[1:]:
                self._tell_kinds(fate)
        self._bar.stop()
        self.spent = self.spent or nothing_judged([judged.proof for judged, _ in self._rows if judged.proof])
        self.spent = self.spent or self._nowhere() * (kind is None)
        coverage = self._coverage()
        counts = Counter(judged.fate for judged, _ in self._rows)
        seconds = time.monotonic() - self._began
        text = ", ".join(f"{counts[fate]} {fate}" for fate in FATES)
        style = COLORS[self.verdict]
        if counts["declined"] > counts["ok"]:
            reasons = dict.fromkeys(self._rows[kind[0]][0].why for kind in self._kinds("declined")[:KINDS_TOLD])
            print_wrapped(
                self._out, f"{counts['ok']} proved, {counts['declined']} declined: {'; '.join(reasons)}", style
            )
        spent = f"; {self.spent}" if self.spent else ""
        self._print(
            f"{len(self._rows)} of {counted(len(self._questions), 'call')}: {text}; {seconds:.1f} s{spent}", style
        )
        for sentence in self._left_out:
            print_wrapped(self._out, sentence, "yellow")
        print_wrapped(self._out, self._last_line(coverage), style)
        document = {
            "cxlemu": __version__,
            "complete": kind is None and not self.spent,
            "reason": self.spent,
            "interrupted": self.interrupted,
            "verdict": self.verdict,
            "algorithm": self._algorithm,
            "integrity": self._integrity,
            "seconds": seconds,
            "coverage": coverage.as_dict()
            | {"declined": [self._kind_as_dict(kind) for kind in self._kinds("declined")]},
            "by_ranks": [self._ranks_as_dict(ranks) for ranks in self._ranks],
            "rows": [self._row_as_dict(number) for number in range(len(self._rows))],
        }
        write_json(self._json_file, document)

    def _nowhere(self) -> str:
        """Say which names of some of the calls decline all of theirs; empty: none, or all calls are declined."""
        found = []
        for name in self._named:
            fates: dict[str, set[str]] = {}
            for judged, _ in self._rows:
                value = _DIMENSIONS[name](judged.question)
                fates.setdefault(f"n = {value}" if name == "ranks" else str(value), set()).add(judged.fate)
            found += [value for value, its in fates.items() if its == {"declined"}]
        all_declined = all(judged.fate == "declined" for judged, _ in self._rows)
        return f"nothing was judged with {', '.join(found)}" if found and not all_declined else ""

    # --- in words ---------------------------------------------------------------------------------------------

    def _tell_ranks(self, ranks: int) -> None:
        counts = self._ranks_as_dict(ranks)
        fates = [counts[fate] for fate in FATES]
        columns = (ranks, counts["calls"], *fates, f"{counts['instructions']:,}", f"{counts['seconds']:.2f}")
        self._print(COLUMNS.format(*columns), COLORS[next(fate for fate in EXIT_CODES if counts[fate])])

    def _tell_kinds(self, fate: str) -> None:
        """Tell one of each kind whole, with the command that shows it; of the others, what they have in common."""
        kinds, style = self._kinds(fate), COLORS[fate]
        for kind in kinds[:KINDS_TOLD]:
            first = self._shown(kind)
            judged, _ = self._rows[first]
            rule = f" ({judged.rule})" if judged.rule else ""
            print_wrapped(self._out, f"{fate}{rule}: {_named(judged)}", style)
            print_wrapped(self._out, f"  {judged.why}", style)
            if told := self._told.get(first):
                if told.executed:
                    print_wrapped(self._out, f"  executed: {told.executed}", style)
                if told.again:
                    self._print(f"  again: {told.again}", style)
            if judged.proof is not None:
                self._print(f"  this call alone: {self._command(judged)}", style)
            if len(kind) > 1:
                common = self._common(kind)
                print_wrapped(self._out, f"  and {len(kind) - 1} more" + (f": {common}" if common else ""), style)
        if len(kinds) > KINDS_TOLD:
            self._print(f"{fate}: {len(kinds) - KINDS_TOLD} more kinds, which --json lists")

    def _shown(self, kind: Sequence[int]) -> int:
        """Return the kind's first call that an execution shows, among the first ones of WITNESSES numbers of ranks; or
        its first call."""
        firsts: dict[int, int] = {}
        for number in kind:
            firsts.setdefault(self._rows[number][0].question.call.ranks, number)
        for number in [*firsts.values()][:WITNESSES]:
            judged, _ = self._rows[number]
            proof = judged.proof
            if proof is not None and proof.violation is not None and not proof.calls:  # a worker's
                proof = judge(judged.question).proof
            if proof is None or proof.violation is None:
                break
            told = told_of(proof.violation, proof, algorithm=self._algorithm, hosts=judged.question.hosts)
            self._told[number] = told
            if told.executed:
                return number
        return kind[0]

    def _last_line(self, coverage: Coverage) -> str:
        words = []
        for kind in self._kinds("declined")[:KINDS_TOLD]:
            common = self._common(kind)
            calls, why = counted(len(kind), "call"), self._rows[kind[0]][0].why
            words.append(f"declined: {calls}{': ' + common if common else ''} ({why})")
        roots = {root for judged, _ in self._rows for root in judged.declined_roots}
        if roots:
            why = next(judged.why_declined for judged, _ in self._rows if judged.declined_roots)
            words.append(f"declined: roots {format_numbers(sorted(roots))} ({why})")
        return coverage.sentence(words, violated=self.verdict == Verdict.VIOLATION.value)

    def _command(self, judged: AnsweredQuestion) -> str:
        question, call = judged.question, judged.question.call
        contract = COLLECTIVES[call.collective]
        words = [*self._again, "-n", str(call.ranks)]
        if contract.moves_data:
            words += ["-b", str(question.size_bytes), "-d", call.dtype]
            words += ["-o", call.redop] if contract.reduces else []
            words += ["-r", str(judged.root)] if contract.rooted and judged.root is not None else []
            words.append("--in-place" if call.in_place else "--out-of-place")
        if question.ranks_per_host > 1:
            words += ["--cluster", str(question.ranks_per_host)]
        if question.size.region_bytes != REGION_BYTES:
            words += ["--region-bytes", str(question.size.region_bytes)]
        return shlex.join(words)

    def _common(self, rows: Sequence[int]) -> str:
        """Tell what these calls have in common that not all calls have."""
        words = []
        asked = [judged.question for judged, _ in self._rows]
        chosen = [asked[number] for number in rows]
        for name, of in _DIMENSIONS.items():
            here = {of(question) for question in chosen}
            there = list(dict.fromkeys(map(of, asked)))
            others = [value for value in there if value not in here]
            but = 0 < len(others) < len(here)
            values = others if but else [value for value in there if value in here]
            text = f"n = {format_numbers(values)}" if name == "ranks" else ", ".join(map(str, values))
            words += [f"all but {text}" if but else text] if others else []
            asked = [question for question in asked if of(question) in here]
        return "; ".join(words)

    # --- kinds ------------------------------------------------------------------------------------------------

    def _kinds(self, fate: str) -> list[list[int]]:
        """Group the rows of a fate: by the broken rule, or by the same words but for numbers."""
        kinds: dict[str, list[int]] = {}
        for number, (judged, _) in enumerate(self._rows):
            if judged.fate == fate:
                words = re.sub(r"\d+", "#", judged.why.replace(str(judged.question.call), ""))
                kinds.setdefault(judged.rule or words, []).append(number)
        return list(kinds.values())

    @property
    def _ranks(self) -> list[int]:
        return sorted({judged.question.call.ranks for judged, _ in self._rows})

    def _coverage(self) -> Coverage:
        right = [judged for judged, _ in self._rows if judged.fate == Verdict.OK.value]
        rings = [judged.question.size.region_bytes for judged in right]
        sizes = " to ".join(dict.fromkeys(format_bytes(ring) for ring in (min(rings), max(rings)))) if rings else ""
        calls = [Covered(judged.question.call, judged.question.size_text, judged.roots) for judged in right]
        kinds = "dtype and op" if COLLECTIVES[self._matrix.recipe.collective].reduces else "dtype"
        combined = IN_TURNS.format(kinds) if self._matrix.in_turns else COMBINED
        combined += ", except for the calls above" if len(right) < len(self._rows) else ""
        machine = f"{self._config}, of {sizes}"
        return Coverage.of(calls, machine=machine, combined=combined, ranks_per_host=self._matrix.cluster or 1)

    # --- as data ----------------------------------------------------------------------------------------------

    def _ranks_as_dict(self, ranks: int) -> dict[str, Any]:
        rows = [(judged, s) for judged, s in self._rows if judged.question.call.ranks == ranks]
        fates = Counter(judged.fate for judged, _ in rows)
        instructions = sum(judged.proof.instructions for judged, _ in rows if judged.proof)
        document = {"ranks": ranks, "calls": len(rows)} | {fate: fates[fate] for fate in FATES}
        return document | {"instructions": instructions, "seconds": sum(s for _, s in rows)}

    def _kind_as_dict(self, rows: Sequence[int]) -> dict[str, Any]:
        return {"calls": len(rows), "why": self._rows[rows[0]][0].why, "common": self._common(rows)}

    def _row_as_dict(self, number: int) -> dict[str, Any]:
        judged, seconds = self._rows[number]
        question, call, proof = judged.question, judged.question.call, judged.proof
        described: dict[str, Any] = {
            "collective": call.collective,
            "variant": call.algorithm,
            "ranks": call.ranks,
            "size": question.size.text,
            "bytes": question.size_bytes,
            "dtype": call.dtype,
            "op": call.redop,
            "roots": list(question.all_roots if judged.roots is None else judged.roots),
            "in_place": call.in_place,
            "cluster": call.cluster,
            "ranks_per_host": question.ranks_per_host,
            "region_bytes": question.size.region_bytes,
            "verdict": judged.fate,
            "instructions": proof.instructions if proof else 0,
            "seconds": seconds,
            "reason": judged.why,
        }
        if proof is not None and judged.fate != Verdict.OK.value:
            described |= {"rule": judged.rule, "root": judged.root, "command": self._command(judged)}
        if proof is not None and proof.violation is not None:
            described |= self._told[number].data if number in self._told else violation_as_dict(proof.violation)
        return described

    def _print(self, line: str, style: str = "") -> None:
        self._out.print(escape(line), style=style)


def _named(judged: AnsweredQuestion) -> str:
    """The call in words: ``3 ranks, 1 element of f64 (8 B), avg, in place``."""
    question, call = judged.question, judged.question.call
    contract = COLLECTIVES[call.collective]
    words = [counted(call.ranks, "rank") + (f" in clusters of {call.cluster}" if call.cluster > 1 else "")]
    if contract.moves_data:
        size = f"blocks of {format_bytes(call.nbytes)}"
        words += [f"{question.size.text} of {call.dtype}" + (f" ({size})" if call.nbytes else "")]
        words += [call.redop] if contract.reduces else []
        words += [f"root {judged.root}"] if contract.rooted and judged.root is not None else []
        words += ["in place" if call.in_place else "out of place"]
        words += [f"a ring of {format_bytes(question.size.region_bytes)}"]
    return ", ".join(words)


_DIMENSIONS: dict[str, Callable[[Question], Any]] = {
    "ranks": lambda question: question.call.ranks,
    "size": lambda question: question.size.text,
    "cluster": lambda question: f"clusters of {question.call.cluster}",
    "dtype": lambda question: question.call.dtype,
    "op": lambda question: question.call.redop,
    "place": lambda question: "in place" if question.call.in_place else "out of place",
}
