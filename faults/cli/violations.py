"""A violation that the prover found, for people and for JSON: an execution that shows it, and the command for that."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from collectives.checking.oracle import check_exact
from cxlemu.errors import ArgumentError, TokenError
from faults.prove.proof import FOLD_ORDER, Proof, Violation

if TYPE_CHECKING:
    from faults.lockstep.counterexample import Counterexample

WITNESS_RANKS, WITNESS_BUDGET_S = 8, 5.0  # larger worlds are proved, not executed a step at a time


class ViolationTold(NamedTuple):
    executed: str  # what goes wrong in the execution that was found; empty: none was
    again: str  # the command that shows that execution again; empty: there is none
    data: dict[str, Any]  # the violation as JSON has it


def told_of(
    violation: Violation,
    proof: Proof,
    *,
    algorithm: str | None = None,
    file: str = "",
    hosts: Sequence[int] | None = None,
) -> ViolationTold:
    """Look for an execution that shows a violation and can be checked bit by bit, and tell both."""
    from faults.replay import calls as replay  # it loads long, and most plans are right

    shown = _execution(violation, proof, replay.POOL_BYTES_MAX, hosts)
    if shown is None:
        return ViolationTold("", "", violation_as_dict(violation))
    again = ""
    with suppress(TokenError):  # the schedule may be too long for a command line
        again = "" if file or hosts else replay.token_of(proof.calls, shown, algorithm=algorithm).command(algorithm)
    return ViolationTold(f"{shown.kind.value}: {shown.detail}", again, violation_as_dict(violation, shown))


def _execution(
    violation: Violation, proof: Proof, pool_bytes_max: int, hosts: Sequence[int] | None
) -> Counterexample | None:
    """Find an execution; None if none was found or looked for.

    None is looked for if arrays of the heap were mapped: behind emulated caches they are copied, and there is none to
    map. Nor if every execution folds in the wrong order: the reason then says which order it is, and which was
    promised. Nor in worlds or pools that are too large to execute a step at a time.
    """
    from faults.lockstep.counterexample import witness

    layout = proof.calls[0].layout
    if violation.mapped or violation.rule == FOLD_ORDER or layout.ranks > WITNESS_RANKS:
        return None
    memory_bytes = sum(part.memory_bytes for plan in dict.fromkeys(proof.calls) for part in plan.parts)
    if layout.extent_bytes * layout.cards + memory_bytes > pool_bytes_max:
        return None
    try:
        for plan in proof.calls:
            if plan.call.gemm is None:
                check_exact(plan.call)
    except ArgumentError:
        return None
    return witness(proof.calls, violation, hosts=hosts, budget_s=WITNESS_BUDGET_S)


def violation_as_dict(violation: Violation, shown: Counterexample | None = None) -> dict[str, Any]:
    from faults.lockstep.schedule import to_json

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
