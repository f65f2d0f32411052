"""How many calls, and which, prove a plan for all programs that it may be part of.

Three facts about every single call make any sequence right, and each proof checks them (rules exit and reuse): a rank
that stores to a slot knows that all ranks are done with the round that used it last; when they are, all that was
written in it has landed and all that was read has been read; and whatever a call reads was written, landed, and dropped
by the reader's host within that call (a contract is of one call's data only). So what happened in a slot before, by
whichever call of whichever root, is over and in the pool when the next one begins. The sequences below are what the
argument is held to: rings and roots wrap, and other collectives fill whole slots and all doorbell lines before and
after.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import lcm

from collectives.algorithms.catalog import build, recipe
from collectives.builder import LINE, NAIVE, VariantSpec
from collectives.contracts import COLLECTIVES
from cxlemu.memory.protocol import PAYLOAD_BYTES
from cxlemu.plan import Call, Layout, Plan
from cxlemu.topology.clusters import hosts_of
from cxlemu.units import counted
from faults.prove.calls import prove_calls
from faults.prove.proof import Proof
from faults.verdict import Verdict

Rooted = Callable[[int], Plan]  # the same call of another root
ALL_ROOTS_RANKS = 8  # of larger worlds the first, second, middle and last root: what differs is where blocks lie
Progress = Callable[[int, int], None]  # sequences done, of how many


def prove(
    plan: Plan,
    *,
    rooted: Rooted | None = None,
    roots: Sequence[int] | None = None,
    hosts: Sequence[int] | None = None,
    without: Collection[str] = frozenset(),
    progress: Progress | None = None,
) -> Proof:
    """Prove a plan in all executions, among any other calls; return the first proof that is not OK, else the
    last."""
    todo = [
        (calls, mapped)
        for mapped in ((False, True) if plan.call.heap else (False,))
        for calls in _sequences(plan, rooted, roots)
    ]
    instructions, seconds = 0, 0.0
    proof = Proof(Verdict.OK, None, "", 0, 0.0)
    for number, (calls, mapped) in enumerate(todo):
        proof = prove_calls(calls, hosts=hosts, without=without, mapped=mapped, obliges=True)
        instructions, seconds = instructions + proof.instructions, seconds + proof.seconds
        if progress is not None:
            progress(number + 1, len(todo))
        if proof.verdict is not Verdict.OK:
            break
    empty = proof.verdict is Verdict.OK and not any(part.instruction_count for part in plan.parts)
    return replace(proof, instructions=instructions, seconds=seconds, empty=empty)


def on_some_hosts(call: Call, prove_on: Callable[[Sequence[int] | None], Proof]) -> Proof:
    """Prove a call where nobody says which ranks share a host: it is wrong only if it is wrong on either."""
    proof = prove_on(None)
    if call.cluster == 1 or proof.verdict is not Verdict.VIOLATION:
        return proof
    shared = prove_on(hosts_of(call.ranks, call.cluster))
    if shared.verdict is Verdict.VIOLATION:
        return proof
    right = "right" if shared.verdict is Verdict.OK else "not proved wrong"
    why = f"{right} where the {counted(call.cluster, 'rank')} of each cluster share a host (prove --cluster "
    why += f"{call.cluster}), and wrong where each rank has its own (prove --cluster 1): {proof.reason}"
    return replace(proof, verdict=Verdict.UNKNOWN, violation=None, reason=why)


def _sequences(plan: Plan, rooted: Rooted | None, roots: Sequence[int] | None) -> Iterator[list[Plan]]:
    contract = COLLECTIVES.get(plan.call.collective)
    if rooted is not None and contract is not None and contract.rooted:
        yield _rotating(plan, rooted, some_roots(plan.ranks, plan.call.root) if roots is None else roots)
    yield among_others(plan) if plan.ranks > 1 else [plan] * 2


def some_roots(ranks: int, root: int = 0) -> Sequence[int]:
    """Choose the roots to rotate where the caller names none: all, or of more than 8 ranks a few, ``root`` included."""
    return sorted({0, 1, ranks // 2, ranks - 1, root}) if ranks > ALL_ROOTS_RANKS else range(ranks)


def _rotating(plan: Plan, rooted: Rooted, roots: Sequence[int]) -> list[Plan]:
    """Each root meets every slot, and what other roots left there."""
    slots = plan.layout.slots
    plans = [plan if root == plan.call.root else rooted(root) for root in roots]
    count = lcm(len(plans), slots) + slots
    return [plans[call % len(plans)] for call in range(max(_calls(plan, count), len(plans) + 1))]


def among_others(plan: Plan) -> list[Plan]:
    """Place a plan after broadcasts that fill slots until the ring wraps, and between those that fill doorbells."""
    slots, last = plan.layout.slots, plan.ranks - 1
    data, lines, others = (filling(plan.layout, *which) for which in ((NAIVE, 0), (LINE, last), (NAIVE, last)))
    return [data] * slots + [plan] * _calls(plan, slots + 1) + [lines] * slots + [plan] + [others] * slots


def _calls(plan: Plan, rounds: int) -> int:
    """Count the calls that take ``rounds`` rounds or just more."""
    return -(-rounds // max(plan.rounds, 1))


@lru_cache(64)
def filling(layout: Layout, spec: VariantSpec, root: int) -> Plan:
    """Build a broadcast of all bytes of a slot or, in lines, of all doorbell lines of a rank."""
    nbytes = layout.doorbells_per_rank * PAYLOAD_BYTES if spec.in_lines else layout.slot_bytes
    call = Call("broadcast", spec.name, layout.ranks, nbytes, root=root)
    return build(recipe("broadcast", spec.name), layout, call)
