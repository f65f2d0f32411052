"""Tokens of the prover's and the mutants' executions: calls on one ring, a mistake in some of them, and a schedule.

    print(token_of(plans, shown, mutated=plan, mutant="1.0.3:delete").command())

The token holds calls, layout, mistake and schedule. Plans are built anew from them, and a replay says if they changed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from collectives import fused
from collectives.algorithms import catalog
from collectives.builder.recipes import CHECKED, Recipe, with_checksums
from collectives.checking import oracle
from cxlemu.errors import ArgumentError, TokenError
from cxlemu.plan import Call, Gemm, InHeap, Layout, Plan
from cxlemu.topology.fields import Model
from cxlemu.units import counted
from faults.campaign.case import digest
from faults.campaign.picture import drawn
from faults.campaign.record import Execution
from faults.lockstep.counterexample import CallSequence, Counterexample, CounterexampleKind
from faults.lockstep.orders import replay
from faults.lockstep.schedule import from_json, to_json
from faults.machine.schedule import MOVES_MAX
from faults.mutate.mutants import Mutant, apply
from faults.token import Token

KIND = "calls"
OTHER_PLANS = "the plans that are built here differ from those that failed"
CALLS_MAX, CARD_BYTES_MAX, POOL_BYTES_MAX = 1000, 1 << 28, 1 << 30

Ranks = Annotated[int, Field(ge=1, le=64)]
Small = Annotated[int, Field(ge=0, le=4096)]
Bytes = Annotated[int, Field(ge=0, le=CARD_BYTES_MAX)]
DIMENSION_MAX = 512
Dimension = Annotated[int, Field(ge=1, le=DIMENSION_MAX)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Word = Annotated[str, Field(max_length=63)]


@dataclass(frozen=True)
class Replayed:
    """How a failure fared in a replay."""

    what: str  # the calls that were replayed, in words
    before: str  # the failure that the token holds; empty if it holds none
    now: str  # the failure of this replay; empty if nothing failed
    unknown: str = ""  # why this replay, which did not fail, says nothing; else empty
    remarks: tuple[str, ...] = ()  # reasons why the two may differ
    picture: Callable[[], str | None] = lambda: None  # draws an SVG, or gives None if there is nothing to draw

    @property
    def same(self) -> bool:
        return self.before == self.now


class Heap(Model):
    """An `InHeap`, as a token holds it."""

    input: Bytes | None
    step: Bytes = 0
    output: Bytes | None = None
    told: bool = False
    in_process: Literal[False] = False  # no execution that a token shows has arrays in its ranks' processes


class TokenGemm(Model):
    """A `Gemm`, as a token holds it."""

    m: Dimension
    n: Dimension
    k: Dimension
    comm_tile_rows: Annotated[int, Field(ge=0, le=DIMENSION_MAX)]
    tile_rows: Dimension
    tile_cols: Dimension
    order: Word
    transport: Word


class OneCall(Model):
    """A `Call`, as a token holds it, and the mistake in its plan."""

    collective: Word
    algorithm: Word
    ranks: Ranks
    nbytes: Bytes
    dtype: Word = "u8"
    redop: Word = "none"
    root: Small = 0
    in_place: bool = False
    heap: Heap | None = None
    cluster: Ranks = 1
    gemm: TokenGemm | None = None
    fold_order: Literal["rank", "uniform"] = "rank"
    counts: Annotated[tuple[Bytes, ...], Field(strict=False, max_length=1 << 16)] = ()
    mutant: Annotated[str, Field(max_length=80)] | None = None

    @property
    def call(self) -> Call:
        heap = InHeap(**self.heap.model_dump()) if self.heap else None
        gemm = Gemm(**self.gemm.model_dump()) if self.gemm else None
        return Call(**self.model_dump(exclude={"mutant", "heap", "gemm"}), heap=heap, gemm=gemm)


class Ring(Model):
    """A `Layout`, as a token holds it."""

    ranks: Ranks
    cards: Annotated[int, Field(ge=1, le=256)]
    slots: Annotated[int, Field(ge=1, le=4096)]
    slot_card_bytes: Bytes
    doorbells_per_rank: Small
    interleave_bytes: Annotated[int, Field(ge=64, le=CARD_BYTES_MAX)]
    heap_card_bytes: Bytes = 0
    owned: bool = False
    own_doorbells: Small = 0


class Body(Model):
    """The body of a token of this kind."""

    ring: Ring  # the ring of all calls
    # the calls, in order
    calls: Annotated[tuple[OneCall, ...], Field(strict=False, min_length=1, max_length=CALLS_MAX)]
    moves: Annotated[list[Any], Field(max_length=MOVES_MAX)]
    kind: Word  # what came of the execution
    detail: Annotated[str, Field(max_length=4000)]  # what came of it, in a sentence
    plans: Digest  # the digest of the plan with the mistake; without one, of the first plan
    algorithm: Annotated[str, Field(max_length=4096)] | None = None  # ``FILE.py:function`` of a user's algorithm
    algorithm_sha256: Digest | None = None  # the digest of its file


def token_of(
    plans: Sequence[Plan],
    shown: Counterexample,
    *,
    mutated: Plan | None = None,
    mutant: str | None = None,
    algorithm: str | None = None,
) -> Token:
    """Make the token of an execution that went wrong; writing one that is too large for a word raises TokenError."""
    calls = []
    for plan in plans:
        call = {name: value for name, value in asdict(plan.call).items() if value is not None}
        calls.append(call | ({"mutant": mutant} if plan is mutated and mutant else {}))
    wrong = apply(mutated, Mutant.parse(mutant)) if mutated is not None and mutant else plans[0]
    body: dict[str, Any] = {"ring": asdict(plans[0].layout), "calls": calls, "moves": to_json(shown.schedule)}
    body |= {"kind": shown.kind.value, "detail": shown.detail, "plans": wrong.digest}
    if algorithm is not None:
        body |= {"algorithm": algorithm, "algorithm_sha256": digest(algorithm)}
    return Token(KIND, body)


def replay_calls(body: Mapping[str, Any], algorithm: str | None) -> Replayed:
    """Execute the calls of a token again; ``algorithm`` is executed, and stands for the one that the token names."""
    try:
        parsed = Body.model_validate(body)
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))[:80]
        raise TokenError(f"this token is of another version, or no execution: {place}") from None
    layout = Layout(**parsed.ring.model_dump())
    if layout.extent_bytes * layout.cards > POOL_BYTES_MAX:
        raise TokenError(f"this token's pool has {layout.extent_bytes * layout.cards} bytes, which is too large")
    own, remarks = _own(parsed, algorithm)
    meant, plans = _plans(parsed, layout, own)
    wrong = next((plan for plan, right in zip(plans, meant, strict=True) if plan is not right), plans[0])
    if wrong.digest != parsed.plans:
        remarks.append(OTHER_PLANS)
    program = CallSequence.of(meant)
    for right, plan in zip(meant, plans, strict=True):
        program = program if plan is right else program.with_plan(right, plan)
    shown = program.run(replay(from_json(parsed.moves)))
    execution = Execution(
        layout,
        list(zip(plans, program.inputs, strict=True)),
        shown.schedule,
        meant=list(zip(meant, program.inputs, strict=True)),
    )
    now = "" if shown.kind is CounterexampleKind.NOTHING else f"{shown.kind.value}: {shown.detail}"
    what = (
        f"{counted(len(plans), 'call')}, [{wrong.call}] with {parsed.calls[plans.index(wrong)].mutant or 'no mutation'}"
    )
    unknown = remarks[-1] if remarks and not now else ""  # the moves are those of other plans
    return Replayed(what, f"{parsed.kind}: {parsed.detail}", now, unknown, tuple(remarks), lambda: drawn(execution))


def _own(parsed: Body, algorithm: str | None) -> tuple[Recipe | None, list[str]]:
    if parsed.algorithm is None and algorithm is not None:
        raise ArgumentError("this failure is of shipped algorithms: leave out --algorithm")
    if parsed.algorithm is not None and algorithm is None:
        raise ArgumentError(
            f"this failure is of a user's algorithm, {parsed.algorithm!r}: name the file to execute with "
            f"--algorithm FILE.py:function"
        )
    if algorithm is None:
        return None, []
    same = digest(algorithm) == parsed.algorithm_sha256
    return catalog.load_algorithm(algorithm), [] if same else [f"{algorithm} is not the file that failed"]


def _plans(parsed: Body, layout: Layout, own: Recipe | None) -> tuple[list[Plan], list[Plan]]:
    """Build the plans as they are meant, and with their mistakes; equal calls have one plan."""
    meant: dict[OneCall, Plan] = {}
    plans: dict[OneCall, Plan] = {}
    for call in parsed.calls:
        if call in meant:
            continue
        meant[call] = _plan(call.call, layout, own)
        plans[call] = meant[call] if call.mutant is None else apply(meant[call], Mutant.parse(call.mutant))
    return [meant[call] for call in parsed.calls], [plans[call] for call in parsed.calls]


def _plan(call: Call, layout: Layout, own: Recipe | None) -> Plan:
    if call.gemm is not None:
        return fused.build(layout, call)
    oracle.check_exact(call)
    name, plus, _ = call.algorithm.partition(CHECKED)
    is_own = own is not None and own.makes(replace(call, algorithm=name))
    chosen = own if own is not None and is_own else catalog.recipe(call.collective, name)
    return catalog.build(with_checksums(chosen) if plus else chosen, layout, call)
