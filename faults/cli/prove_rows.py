"""Proofs of many cases, one after another or on several cores; rows come in the order in which they are asked for."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, TypeVar

from collectives.sweep.sweep import Case as CollectiveCase
from cxlemu.signals import stops_exit
from faults.campaign.executors import Workers, cores, lost_are_told
from faults.cli.violations import ViolationTold, told_of
from faults.prove.matrix import AnsweredQuestion, Question
from faults.prove.products import ProductCase
from faults.prove.proof import Proof

Case = CollectiveCase | ProductCase
T = TypeVar("T")


class ToProve(NamedTuple):
    case: Case
    prove: Callable[..., Proof]  # proves it, and calls ``progress`` now and then
    file: str = ""  # the file that its plan is from; empty: none
    hosts: Sequence[int] | None = None  # the host of each rank; None: each has its own


class ProofRow(NamedTuple):
    case: Case  # the call, or the cases of a fused product
    proof: Proof  # the proof, without the plans of its calls
    seconds: float
    file: str = ""  # the file that the plan is from; empty: none
    violation: ViolationTold | None = None


class Listener(Protocol):
    """Hears how far proofs are."""

    def begin(self, case: Case) -> None:
        """The next row is that of a case."""

    def progress(self, done: int, of: int) -> None:
        """So many sequences of its calls are proved, of how many."""


Rows = Callable[[Listener], Iterator[ProofRow]]
Answer = tuple[AnsweredQuestion, float]  # and how long it took, in seconds
# What a worker does. It is a copy of the process that asked, and finds it here: algorithms cannot be sent to it.
_work: Callable[[int], Any]


@contextmanager
def rows_of(asked: Sequence[ToProve], jobs: int | None) -> Iterator[Rows]:
    """Prove cases: by workers that begin at once, or in this process where one worker is enough."""

    def in_order(listener: Listener) -> Iterator[ProofRow]:
        for one in asked:
            listener.begin(one.case)
            yield _row(one, progress=listener.progress) if rows is None else next(rows)

    with _by_workers(lambda index: _row(asked[index]), len(asked), jobs) as rows:
        yield in_order


@contextmanager
def answers_of(
    asked: Sequence[Question], judge: Callable[[Question], AnsweredQuestion], jobs: int | None
) -> Iterator[Iterator[Answer]]:
    """Answer the questions of a matrix, by workers or in this process as `rows_of`."""

    def answer(offset: int) -> Answer:
        began = time.monotonic()
        return judge(asked[offset]), time.monotonic() - began

    def sent(offset: int) -> tuple[dict[str, Any], float]:
        judged, seconds = answer(offset)
        fields = {**vars(judged), "proof": judged.proof and replace(judged.proof, calls=())}
        del fields["question"]  # names a function of the user's
        return fields, seconds

    with _by_workers(sent, len(asked), jobs) as answers:
        if answers is None:
            yield map(answer, range(len(asked)))
        else:
            yield (
                (AnsweredQuestion(question, **answers), seconds)
                for question, (answers, seconds) in zip(asked, answers, strict=True)
            )


@contextmanager
def _by_workers(work: Callable[[int], T], count: int, jobs: int | None) -> Iterator[Iterator[T] | None]:
    """Yield what ``work`` returns for each number up to ``count``, in order; None where one worker is enough."""
    if jobs is None:
        jobs = cores() if threading.active_count() == 1 else 1
    if (jobs := min(jobs, count)) <= 1:
        yield None
        return
    global _work
    _work = work
    with stops_exit(), _ending(Workers(jobs, copied=True)) as workers:
        submits = [workers.submit(_done_at, index) for index in range(count)]

        def in_order() -> Iterator[T]:
            with lost_are_told():
                for one in submits:
                    yield one.result()

        yield in_order()


def _done_at(offset: int) -> Any:
    return _work(offset)


@contextmanager
def _ending(workers: Workers) -> Iterator[Workers]:
    """End workers with the context, whatever they do: a report that has what it wanted leaves work undone."""
    with lost_are_told():
        try:
            yield workers
        finally:
            workers.end()


def _row(one: ToProve, **options: object) -> ProofRow:
    began = time.monotonic()
    proof = one.prove(**options)
    seconds, violation = time.monotonic() - began, None
    if proof.violation is not None:
        violation = told_of(proof.violation, proof, file=one.file, hosts=one.hosts)
    return ProofRow(one.case, replace(proof, calls=()), seconds, one.file, violation)
