"""Shows a mistake: finds a schedule with which the reference engine gives wrong bytes, deadlocks or leaves too early.

    shown = witness(plans, prove_calls(plans).violation)
    shown.kind, shown.detail, shown.schedule
    execute(plans, shown.schedule) == shown        # the same again, wherever it is done

A search, not a proof: that it shows nothing means nothing. It begins with the orders that expose most mistakes near
the suspect: peers that are eager or late, a rank in a hurry, each on a cache that never evicts; then nature fetches
the lines under suspicion as early as it can, or evicts them; then orders and nature are random.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from itertools import count
from time import thread_time
from typing import NamedTuple

import numpy as np

from collectives.checking import fused_oracle as products
from collectives.checking import oracle
from cxlemu.errors import ArgumentError, DeadlineError, IntegrityError, MismatchError, UntoldError
from cxlemu.memory.adversary import Action
from cxlemu.memory.protocol import Bytes
from cxlemu.plan import Op, Plan
from cxlemu.plan.features import unmodelled
from faults.lockstep.lockstep import MODELS, Lockstep
from faults.lockstep.orders import (
    PUBLISH,
    RETRIEVE,
    Order,
    after_each_step,
    by,
    hasty,
    in_random_nature,
    lagging,
    replay,
    slow,
)
from faults.lockstep.places import Line, data_lines
from faults.lockstep.schedule import LockstepMove, StreamStep
from faults.lockstep.twin import UNCHECKED, UNKNOWN, OrderTable, StepsSpentError, Twin, table_of
from faults.prove.proof import Violation

SEED = 1  # seed of the inputs
BUDGET_S = 60.0
RANDOM_ORDERS = 60
BETWEEN_LOOKS = 256  # steps of an execution, from one look at the clock to the next


class CounterexampleKind(Enum):
    NOTHING = "nothing"
    WRONG = "wrong bytes"
    DEADLOCK = "deadlock"
    TOO_EARLY = "a barrier left too early"
    MISMATCH = "a false mismatch"
    DAMAGED = "false damage"


class Counterexample(NamedTuple):
    """What one execution came to, and the schedule that repeats it."""

    kind: CounterexampleKind  # what the execution showed; NOTHING if all went well
    detail: str  # the same in words; empty if all went well
    schedule: tuple[LockstepMove, ...]  # the moves that were made


class Suspect(NamedTuple):
    rank: int
    stream: int = 0  # the stream of this rank
    owner: int | None = None  # the rank that it waits for, which owns the doorbell; None if no other rank is involved
    lines: tuple[Line, ...] = ()  # lines that may be stale


@dataclass(frozen=True)
class CallSequence:
    """Calls one after another, with inputs that no two calls share, and what must come out of them."""

    plans: Sequence[Plan]  # the plan of each call
    inputs: list[list[Bytes]] = field(repr=False)  # ``inputs[call][rank]``: the input bytes
    # ``outputs[call][rank]``: what the rank must get; None: this is not checked
    outputs: list[list[_Right | None]] = field(repr=False)
    hosts: Sequence[int] | None = None  # the host of each rank; None: each has its own
    _twins: list[Twin] = field(default_factory=list, repr=False, compare=False)  # of all sequences made from this one

    @classmethod
    def of(cls, plans: Sequence[Plan], hosts: Sequence[int] | None = None) -> CallSequence:
        """Make inputs for calls, and work out their outputs."""
        if beyond := unmodelled(plans, MODELS, "lockstep"):
            raise ArgumentError(beyond)
        given: list[list[Bytes]] = []
        wanted: list[list[_Right | None]] = []
        for serial, plan in enumerate(plans):
            ranks = range(plan.ranks)
            if plan.call.gemm is not None:
                given.append([products.as_bytes(plan.call, rank, SEED, serial) for rank in ranks])
                wanted.append([_Right(products.expected(plan.call, rank, SEED, serial)) for rank in ranks])
                continue
            given.append([_bytes(oracle.inputs(plan.call, rank, SEED, serial), plan, rank) for rank in ranks])
            wanted.append([_right(plan, rank, serial) for rank in ranks])
        return cls(plans, given, wanted, hosts)

    def with_plan(self, plan: Plan, instead: Plan) -> CallSequence:
        """Return the sequence in which one plan is executed wherever another one was; the same bytes must come out."""
        return replace(self, plans=[instead if p is plan else p for p in self.plans])

    def run(self, order: Order, *, quick: bool = False, end_s: float = math.inf) -> Counterexample:
        """Execute the calls in one order to the first mistake, or until ``end_s`` in processor time of this thread."""
        table = table_of(order, self.plans[0].ranks) if quick else None
        if table is not None:
            return self._run_twin(table, end_s)
        quick = quick and not any(_posts_nt(plan) for plan in self.plans)
        order = _until(end_s, order) if end_s < math.inf else order
        world = Lockstep(self.plans[0].layout, hosts=self.hosts, order=order, quick=quick)
        program = list(zip(self.plans, self.inputs, strict=True))
        kind, detail = self._shown(lambda: world.calls(program, ended=partial(self._check, {})))
        if kind is CounterexampleKind.NOTHING:
            spans = [[(min(rank, default=-1), max(rank, default=-1)) for rank in call] for call in world.steps]
            kind, detail = self._left_early(spans)
        return Counterexample(kind, detail, tuple(world.moves))

    def _run_twin(self, order: OrderTable, end_s: float) -> Counterexample:
        if not self._twins or not self._twins[0].takes(self.plans):
            self._twins[:] = [Twin(self.plans, self.inputs, self._known_outputs(), self.hosts)]
        [twin] = self._twins
        kind, detail = self._shown(lambda: twin.run(self.plans, order, partial(self._check, {}), end_s))
        if kind is CounterexampleKind.NOTHING:
            kind, detail = self._left_early([twin.spans(number) for number in range(len(self.plans))])
        return Counterexample(kind, detail, twin.moves)

    def _known_outputs(self) -> list[list[Bytes | int]]:
        """List the bytes of every output, as `Twin` takes them: UNKNOWN where other bytes are as good."""

        def known(right: _Right | None, nbytes: int) -> Bytes | int:
            if right is None:
                return UNCHECKED
            return UNKNOWN if right.slack is not None or right.values.nbytes != nbytes else _flat(right.values)

        return [
            [known(right, plan.part(rank).buffers[1].nbytes) for rank, right in enumerate(call)]
            for plan, call in zip(self.plans, self.outputs, strict=True)
        ]

    @staticmethod
    def _shown(execute: Callable[[], object]) -> tuple[CounterexampleKind, str]:
        """Say what is wrong in an execution, and in words; NOTHING if it comes to its end."""
        try:
            execute()
        except _Wrong as wrong:
            return CounterexampleKind.WRONG, str(wrong)
        except DeadlineError as deadlock:
            return CounterexampleKind.DEADLOCK, str(deadlock)
        except MismatchError as mismatch:
            return CounterexampleKind.MISMATCH, str(mismatch)
        except IntegrityError as damaged:
            return CounterexampleKind.DAMAGED, str(damaged)
        except UntoldError as untold:
            return CounterexampleKind.WRONG, str(untold)
        return CounterexampleKind.NOTHING, ""

    def _left_early(self, spans: Sequence[Sequence[tuple[int, int]]]) -> tuple[CounterexampleKind, str]:
        """Say which barrier was left too early; ``spans``: by call and rank, when its first and last instruction was
        done, -1: it has none, and so waits for nobody."""
        for number, (plan, ranks) in enumerate(zip(self.plans, spans, strict=True)):
            if plan.call.collective != "barrier" or len(ranks) == 1:
                continue
            left = min(last for _, last in ranks)
            if left < max(first for first, _ in ranks) or left < 0:
                detail = f"call {number} ({plan.call}): a rank has left it before another one came"
                return CounterexampleKind.TOO_EARLY, detail
        return CounterexampleKind.NOTHING, ""

    def _check(self, held: dict[int, Bytes], number: int, rank: int, got: Bytes) -> None:
        """``held``: what the first rank got, of each call of which all must get the same."""
        right = self.outputs[number][rank]
        if right is None:
            return
        values = got.view(right.values.dtype)
        first = held.setdefault(number, got.copy()) if right.alike else None
        elements = oracle.wrong_elements(values, right.values, right.slack, first)
        if not elements.size:
            return
        is_far = first is None or oracle.wrong_elements(values, right.values, right.slack).size
        bits = _flat(right.values) if is_far or first is None else first
        wrong = np.flatnonzero((got != bits) & np.isin(np.arange(got.size) // values.itemsize, elements))
        raise _Wrong(
            f"call {number} ({self.plans[number].call}): {wrong.size} of rank {rank}'s {got.size} bytes are wrong, "
            f"the first of them byte {wrong[0]}: {got[wrong[0]]}, not {bits[wrong[0]]}"
            + ("" if is_far else ", which another rank has")
        )


class _Wrong(Exception):
    pass


class _Right(NamedTuple):
    """What a rank must get; if ``alike``, only within the slack, but the same on all ranks."""

    values: oracle.Array
    slack: oracle.Array | None = None
    alike: bool = False


def _right(plan: Plan, rank: int, serial: int) -> _Right | None:
    values = oracle.expected(plan.call, rank, SEED, serial)
    if values is None:
        return None
    slack = oracle.slack(plan.call, rank, SEED, serial)
    return _Right(values, slack, slack is not None and oracle.held_by_all(plan.call))


def _bytes(given: oracle.Array | None, plan: Plan, rank: int) -> Bytes:
    if given is None:
        return np.zeros(plan.part(rank).buffers[0].nbytes, np.uint8)
    return _flat(given)


def _flat(array: oracle.Array) -> Bytes:
    return array.reshape(-1).view(np.uint8)


def execute(plans: Sequence[Plan], schedule: Sequence[LockstepMove]) -> Counterexample:
    """Execute plans as a schedule says; impossible moves are left out, and remaining ones are made in the end."""
    return CallSequence.of(plans).run(replay(schedule))


def witness(
    plans: Sequence[Plan],
    violation: Violation | None = None,
    *,
    hosts: Sequence[int] | None = None,
    budget_s: float = BUDGET_S,
) -> Counterexample | None:
    """Find an execution in which calls go wrong as the prover says."""
    return search(CallSequence.of(plans, hosts), suspects(violation) if violation else (), budget_s=budget_s)


def search(program: CallSequence, near: Sequence[Suspect], *, budget_s: float = BUDGET_S) -> Counterexample | None:
    """Find an execution in which calls go wrong, the first suspect first, within a budget of processor time, or None.

    The result depends on time only if the budget cuts the search off.
    """
    end = thread_time() + budget_s
    try:
        for order in orders(program.plans, near):
            shown = program.run(order, quick=True, end_s=end)
            if shown.kind is not CounterexampleKind.NOTHING:
                return shown
    except StepsSpentError:
        pass
    return None


def _until(end: float, order: Order) -> Order:
    """The order, which looks at the clock now and then: a single execution may take long."""
    steps = count()

    def choose(choices: Sequence[StreamStep]) -> LockstepMove:
        if next(steps) % BETWEEN_LOOKS == 0 and thread_time() > end:
            raise StepsSpentError
        return order(choices)

    return choose


def _posts_nt(plan: Plan) -> bool:
    return any((stream.records["op"] == Op.WRITE_NT).any() for part in plan.parts for stream in part.streams)


def suspects(violation: Violation) -> tuple[Suspect, ...]:
    """Return the stream at which a violation was found and, if the violation names one, the other that is involved."""
    lines = ((violation.card, violation.line),) if violation.card >= 0 else ()
    by = violation.by
    suspect = Suspect(max(violation.rank, 0), max(violation.stream, 0), by.rank if by else None, lines)
    return (suspect,) if by is None else (suspect, Suspect(by.rank, by.stream, suspect.rank, lines))


def orders(plans: Sequence[Plan], near: Sequence[Suspect]) -> Iterator[Order]:
    """List orders, from the likeliest to show something to the least."""
    for suspect in near[:1]:
        yield _near(suspect)[0]()
        yield from _with_nature(suspect, _near(suspect)[:1])
    streams = max(len(plan.part(0).streams) for plan in plans)
    staged = [suspect for suspect in near if suspect.owner is not None and streams > RETRIEVE + 1]
    for suspect in staged:
        yield from (order() for order in _stages(suspect, streams))
    for suspect in near:
        yield from (order() for order in _near(suspect))
        yield from _with_nature(suspect, _near(suspect))
    for suspect in staged:
        yield from _with_nature(suspect, _stages(suspect, streams))
    ranks = range(plans[0].ranks)
    for rank in ranks:
        yield from (order() for order in _near(Suspect(rank, PUBLISH, rank)))
    lines = tuple({line: None for suspect in near for line in suspect.lines}) or data_lines(plans)
    for seed in range(RANDOM_ORDERS):
        yield in_random_nature(seed, ranks, lines, rate=(0.0, 0.2, 0.5)[seed % 3])


def _near(suspect: Suspect) -> list[Callable[[], Order]]:
    rank, owner = suspect.rank, suspect.owner
    found: list[Callable[[], Order]] = []
    if owner is not None:  # the rank that should be waited for comes last
        found += [lambda: slow(owner, RETRIEVE), lambda: slow(owner, PUBLISH)]
    found.append(lambda: slow(rank, suspect.stream))  # peers look at once at whatever its stream has just done
    found.append(lambda: hasty(rank))  # it goes on before its peers have done anything
    found.append(lambda: by(lambda step: step == (rank, PUBLISH)))  # it retrieves and overwrites before it publishes
    return found


def _stages(suspect: Suspect, streams: int) -> list[Callable[[], Order]]:
    """The rank that should be waited for does each of its stages last, while the others go on by themselves."""
    owner = suspect.owner
    return [] if owner is None else [partial(lagging, owner, stream) for stream in range(streams)]


def _with_nature(suspect: Suspect, near: Sequence[Callable[[], Order]]) -> Iterator[Order]:
    """The same orders, but nature does what it can to the lines as soon as it can."""
    lines = [(suspect.rank, *line) for line in suspect.lines]
    for action in Action if lines else ():
        for order in near:
            yield after_each_step(order(), action, lines)
