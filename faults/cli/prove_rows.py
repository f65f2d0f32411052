"""Proofs of many cases, one after another or on several cores; rows come in the order in which they are asked for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple, Protocol

from collectives.sweep.sweep import Case as CollectiveCase
from cxlemu.errors import RunError
from cxlemu.world.signals import stops_exit
from faults.campaign.executors import Workers, cores
from faults.cli.violations import ViolationTold, told_of
from faults.prove.products import ProductCase
from faults.prove.proof import Proof

Case = CollectiveCase | ProductCase


class ToProve(NamedTuple):
    """A case to prove.

    Attributes:
        case: The case.
        prove: Proves it, and calls ``progress`` now and then.
        file: The file that its plan is from; empty: none.
    """

    case: Case
    prove: Callable[..., Proof]
    file: str = ""


class ProofRow(NamedTuple):
    """One proof.

    Attributes:
        case: The call, or the cases of a fused product.
        proof: The proof, without the plans of its calls.
        seconds: How long it took, in seconds.
        file: The file that the plan is from; empty: none.
        violation: What is told of its violation, if it has one.
    """

    case: Case
    proof: Proof
    seconds: float
    file: str = ""
    violation: ViolationTold | None = None


class Listener(Protocol):
    """Hears how far proofs are."""

    def begin(self, case: Case) -> None:
        """The next row is that of a case."""

    def progress(self, done: int, of: int) -> None:
        """So many sequences of its calls are proved, of how many."""


Rows = Callable[[Listener], Iterator[ProofRow]]
# What a worker proves. It is a copy of the process that asked, and finds it here: algorithms cannot be sent to it.
_asked: Sequence[ToProve] = ()


@contextmanager
def rows_of(asked: Sequence[ToProve], jobs: int | None) -> Iterator[Rows]:
    """Prove cases: by workers that begin at once, or in this process where one worker is enough.

    Args:
        asked: The cases.
        jobs: How many workers; None: one for each core, or none in a process that has threads and must not be copied.

    Yields:
        A function that gives a row for each case, and tells a listener which one is next. It raises RunError if a
        worker was killed. Workers end with the context, whatever they do.
    """
    if jobs is None:
        jobs = cores() if threading.active_count() == 1 else 1
    if (jobs := min(jobs, len(asked))) <= 1:
        yield lambda listener: _in_turn(asked, listener)
        return
    global _asked
    _asked = asked
    with stops_exit(), _ending(Workers(jobs, copied=True)) as workers:
        rows = [workers.submit(_row_at, at) for at in range(len(asked))]

        def in_order(listener: Listener) -> Iterator[ProofRow]:
            for one, row in zip(asked, rows, strict=True):
                listener.begin(one.case)
                try:
                    yield row.result()
                except BrokenProcessPool as error:
                    raise RunError("a worker was killed, perhaps for want of memory: try fewer with --jobs") from error

        yield in_order


@contextmanager
def _ending(workers: Workers) -> Iterator[Workers]:
    """End workers with the context, whatever they do: a report that has what it wanted leaves work undone."""
    try:
        yield workers
    finally:
        workers.end()


def _in_turn(asked: Sequence[ToProve], listener: Listener) -> Iterator[ProofRow]:
    for one in asked:
        listener.begin(one.case)
        yield _row(one, progress=listener.progress)


def _row_at(at: int) -> ProofRow:
    return _row(_asked[at])


def _row(one: ToProve, **told: object) -> ProofRow:
    began = time.monotonic()
    proof = one.prove(**told)
    seconds, violation = time.monotonic() - began, None
    if proof.violation is not None:
        violation = told_of(proof.violation, proof, file=one.file)
    return ProofRow(one.case, replace(proof, calls=()), seconds, one.file, violation)
