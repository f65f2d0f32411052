"""Consecutive calls of plans on one ring, decided for all interleavings and all that caches may do."""

import time
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from itertools import chain

import numpy as np

from collectives.checking.symbolic import verify
from collectives.contracts import COLLECTIVES, postcondition
from collectives.fused import products
from collectives.fused.shapes import WEIGHTS
from collectives.in_heap import lends
from cxlemu.compiled import check_compiled
from cxlemu.errors import ArgumentError, ContractError, DeadlineError, PlanError
from cxlemu.plan import DTYPE_NAMES, RANK_ORDER, Layout, Op, Plan, RankPart, RedOp, rules
from cxlemu.plan.accesses import LOADED, STORED
from cxlemu.plan.features import declared, unmodelled
from cxlemu.plan.instructions import OPERAND_FIELDS
from cxlemu.plan.kernels import KERNELS, Touched
from cxlemu.plan.layout import layout_record
from cxlemu.plan.plan import group_table, region_table
from cxlemu.plan.reduction import commutes
from faults import dead
from faults.prove import _pass
from faults.prove.proof import DEADLOCK, FOLD_ORDER, RULES, ProgramPoint, Proof, Violation, mask_of
from faults.prove.sentences import MISFOLDED, UNMATCHED, UNWRITTEN, rule_name, sentence
from faults.verdict import Verdict

check_compiled(
    "faults.prove._pass", _pass.CONSTANTS, {rule.upper(): point for point, rule in enumerate((*RULES, DEADLOCK))}
)


def _operands(table: Mapping[Op, tuple[str, ...]]) -> dict[Op, int]:
    """Encode each opcode's operands in plan/accesses.py as C has them: a bit for each of OPERAND_FIELDS."""
    return {op: sum(1 << OPERAND_FIELDS.index(name) for name in table.get(op, ())) for op in Op}


def check_accesses(compiled: Sequence[tuple[int, int]]) -> None:
    """Check that C and plan/accesses.py agree on each opcode's operands; a mask has a bit per field of
    OPERAND_FIELDS."""
    for verb, column, table in (("loads", 0, LOADED), ("stores", 1, STORED)):
        ours = {f"{op.name} {verb}": bits for op, bits in _operands(table).items()}
        check_compiled("faults.prove._pass", {f"{op.name} {verb}": compiled[op][column] for op in Op}, ours)


check_accesses(_pass.accesses())
_PROVED, _VIOLATED, _OPAQUE, _CHECKSUM, _PRODUCT, _FOLD_WORDS, _PRODUCT_WORDS = (
    _pass.CONSTANTS[name]
    for name in ("PROVED", "VIOLATED", "OPAQUE", "CHECKSUM", "PRODUCT", "FOLD_WORDS", "PRODUCT_WORDS")
)
_NOTHING = Touched(0, 0, 0)
MODELS = declared(
    "CHECKSUMS EVENTS FOLDS HEAP MATRIX_PRODUCTS NON_TEMPORAL OWN_MEMORIES PAYLOADS PEER_WRITES PROCESS_ARRAYS "
    "TOLD_PLACES UNEVEN_BLOCKS UNIFORM_ORDER"
)
CARDS_MAX = 256  # of one pool, as cxlemu/native/core.h has it
_REASONS = {
    _pass.CONSTANTS[
        "SIGNALS_UNORDERED"
    ]: "rings a doorbell that was rung before, and no wait orders the two: it has no one writer",
    _pass.CONSTANTS["SIGNALS_FALL"]: "rings a doorbell with a smaller value than before",
    _pass.CONSTANTS["TOO_MANY_FENCES"]: "completes a flush that more fences than the prover keeps complete",
    _pass.CONSTANTS["TOO_MANY_DRAINS"]: "flushes a store that more streams than the prover keeps have flushed",
    _pass.CONSTANTS["COMPUTES"]: "computes part of a result: synchronization is proved, values computed by kernel "
    "{kernel} are not",
}


def prove_calls(
    plans: Sequence[Plan],
    *,
    hosts: Sequence[int] | None = None,
    without: Collection[str] = frozenset(),
    mapped: bool = False,
    obliges: bool = False,
) -> Proof:
    """Prove that consecutive calls are right in every interleaving; UNKNOWN names the prover's limit."""
    began, mask = time.monotonic(), mask_of(without)
    layout = _layout(plans)
    kinds = list({id(plan): plan for plan in plans}.values())
    plan_of = {id(plan): index for index, plan in enumerate(kinds)}
    hosts = range(layout.ranks) if hosts is None else hosts
    if len(hosts) != layout.ranks:
        raise ArgumentError(f"{len(hosts)} hosts are named for {layout.ranks} ranks")
    epochs = np.cumsum([1, *(plan.rounds for plan in plans)])[:-1]
    try:
        answer = _pass.run(
            layout_record(layout),
            np.array(hosts, np.int32),
            np.array(_strips(layout), np.int64),
            [_described(_Itself(plan), mapped) for plan in kinds],
            np.array([plan_of[id(plan)] for plan in plans], np.int32),
            epochs.astype(np.int64),
            mask,
            obliges,
        )
    except ValueError as error:
        for plan in kinds:
            rules.check(plan)  # names the instruction and the rule
        raise PlanError(f"the prover cannot take this plan: {error}") from error
    if beyond := next(filter(None, (_beyond(_Itself(plan)) for plan in kinds)), ""):
        return Proof(Verdict.UNKNOWN, None, beyond, 0, time.monotonic() - began, tuple(plans))
    verdict, reason, rule, detail, instructions, point, by, card, line = answer

    def proof(verdict: Verdict, violation: Violation | None = None, why: str = "") -> Proof:
        return Proof(verdict, violation, why, instructions, time.monotonic() - began, tuple(plans))

    if verdict == _VIOLATED:
        assert point is not None
        place, other = ProgramPoint(*point), ProgramPoint(*by) if by else None
        name = rule_name(rule)
        if name in ("contract", FOLD_ORDER):
            text = _broken(plans, name, detail, place, line)
        else:
            text = sentence(plans, name, detail, place, other, card, line)
            text += dead.why(plans[place.call], place.rank, place.stream, place.at)
        violation = Violation(name, *point, card, line if card >= 0 else -1, text, other, mapped)
        return proof(Verdict.VIOLATION, violation, text)
    if verdict != _PROVED:
        assert point is not None
        return proof(Verdict.UNKNOWN, None, _unknown(plans, ProgramPoint(*point), reason))
    return proof(Verdict.OK)


def _unknown(plans: Sequence[Plan], point: ProgramPoint, reason: int) -> str:
    instruction, kernel = plans[point.call].part(point.rank).streams[point.stream].instructions[point.at], ""
    if instruction.op == Op.COMPUTE:
        kernel = plans[point.call].frame.kernels[instruction.arg].name
    where = f"call {point.call}, rank {point.rank}, stream {point.stream}, instruction {point.at}"
    return f"{where} {_REASONS[reason].format(kernel=kernel)}"


# --- arguments of the pass --------------------------------------------------------------------------------------


def _layout(plans: Sequence[Plan]) -> Layout:
    if not plans:
        raise ArgumentError("there are no calls to prove")
    for plan in plans:
        if plan.layout != plans[0].layout:
            raise ArgumentError(f"[{plan.call}] has another layout than [{plans[0].call}]: they share no ring")
    if plans[0].layout.cards > CARDS_MAX:
        raise ArgumentError(f"a plan for {plans[0].layout.cards} cards is too large to be proved: {CARDS_MAX} at most")
    return plans[0].layout


@lru_cache(64)
def _strips(layout: Layout) -> list[tuple[int, int, int]]:
    """Locate each rank's strip of the heap: its card, its offset in the extent there, and its bytes."""
    strips = map(layout.heap_strip, range(layout.ranks))
    return [(strip.card, layout.heap_offset + strip.offset, strip.nbytes) for strip in strips]


_Described = tuple[
    object, object, object, int, bool, int, int, bool, list[tuple[int, object, object, object, list[object]]]
]


class _Itself:
    """A plan that equals only itself: plans are compared by digests, which takes longer than to describe them."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.plan is other.plan

    def __hash__(self) -> int:
        return id(self.plan)


@lru_cache(8)  # the calls before and after are those of the last proof, too
def _described(its: _Itself, mapped: bool) -> _Described:
    plan = its.plan
    parts: list[tuple[int, object, object, object, list[object]]] = [
        (
            part.events,
            np.array([buffer.nbytes for buffer in part.buffers], np.int64),
            np.array(_lodgings(plan, part, mapped), np.int64),
            np.array(_contract(plan, part.rank), np.int64),
            [stream.records.view(np.uint8) for stream in part.streams],
        )
        for part in plan.parts
    ]
    frame = plan.frame
    regions, groups = region_table(frame.regions), group_table(frame.groups)
    meets = plan.call.gemm is None and not COLLECTIVES[plan.call.collective].moves_data and plan.ranks > 1
    dtype, redop = plan.call.dtype, plan.call.redop
    folds = DTYPE_NAMES.index(dtype), RedOp[redop.upper()], commutes(dtype, redop)
    return regions.view(np.uint8), groups.view(np.uint8), _kernels(plan), frame.rounds, meets, *folds, parts


@lru_cache(8)
def _beyond(its: _Itself) -> str:
    return unmodelled([its.plan], MODELS, "the prover")


def _kernels(plan: Plan) -> object:
    """Describe each kernel: (rows, bytes, stride) of dst, a, b and c that it touches, what it makes, and the dtype of a
    product.

    Raises PlanError for an unknown kernel.
    """
    if any(kernel.name not in KERNELS for kernel in plan.frame.kernels):
        rules.check(plan)
    rows = []
    for kernel in plan.frame.kernels:
        kind = KERNELS[kernel.name]
        touches = [*kind.touches(kernel.parameters), _NOTHING, _NOTHING, _NOTHING][:4]
        makes = _CHECKSUM if kind.checks else _PRODUCT if kind.product else _OPAQUE
        unit = DTYPE_NAMES.index(kind.product) if kind.product else 0
        rows.append([*chain.from_iterable(touches), makes, unit])
    return np.array(rows, np.int64)


def _lodgings(plan: Plan, part: RankPart, mapped: bool) -> list[tuple[int, int, int, int]]:
    """Locate each buffer: (the buffer that it lies in, its offset there, its card or -1, its offset in the extent)."""
    names = [buffer.name for buffer in part.buffers]
    heap, layout = plan.call.heap, plan.layout
    in_heap: dict[int, int] = {}  # buffer -> offset in the rank's strip
    lies = heap is not None and not (heap.told and not lends(plan.call, part.rank))
    if mapped and heap is not None and part.buffers and heap.is_written_by_peers:
        if heap.output is not None:
            in_heap[1] = heap.output
    elif mapped and heap is not None and lies and part.buffers:
        point, _ = heap.places(part.rank)
        in_heap[0] = point
        if part.buffers[0].inside:
            in_heap[1] = point - part.buffers[0].at
        elif part.buffers[1].inside:
            in_heap[1] = point + part.buffers[1].at
        elif heap.output is not None:
            in_heap[1] = heap.output
    card, start, _ = _strips(layout)[part.rank]
    return [
        (
            *((names.index(buffer.inside), buffer.at) if buffer.inside else (index, 0)),
            *((card, start + in_heap[index]) if index in in_heap else (-1, 0)),
        )
        for index, buffer in enumerate(part.buffers)
    ]


# --- contracts ---------------------------------------------------------------------------------------------------


def _contract(plan: Plan, rank: int) -> list[int]:
    """Describe what the rank's output must be, piece by piece.

    For each piece: its offset, its bytes, the divisor, the count of contributions, 2, and how many of them are folded
    apart, or 0 for any order that all holders share; then (rank, offset) of each contribution.
    """
    if plan.call.gemm is not None:
        return _products(plan, rank)
    if plan.call.collective not in COLLECTIVES:
        raise ArgumentError(f"{plan.call.collective!r} has no contract, so nothing can be proved")
    words: list[int] = []
    for piece in postcondition(plan.call, rank):
        apart = piece.apart if plan.call.fold_order == RANK_ORDER else 0
        words += (piece.at, piece.nbytes, piece.divisor, len(piece.contributions), _FOLD_WORDS, apart)
        words += chain.from_iterable(piece.contributions)
    return words


def _products(plan: Plan, rank: int) -> list[int]:
    """Describe what the rank's output of a matrix product must be, row by row."""
    unit = DTYPE_NAMES.index(plan.call.dtype)
    words: list[int] = []
    for row in products.postcondition(plan.call, rank):
        words += (row.at, row.nbytes, 1, len(row.products), _PRODUCT_WORDS, 1)
        for dot in row.products:
            words += (dot.a_rank, dot.b_at, dot.a_at, dot.a_bytes)
            words += (dot.b_rank, WEIGHTS, dot.b_rows, dot.b_stride_bytes, unit)
    return words


def _broken(plans: Sequence[Plan], rule: str, detail: int, place: ProgramPoint, byte: int) -> str:
    """Tell a broken contract in the words of the contract's own checker, if it knows the plan's kernels and finds the
    mistake in the plan alone."""
    plan = plans[place.call]
    if detail in (UNMATCHED, MISFOLDED):
        return sentence(plans, "contract", detail, place, None, -1, 0)
    if all(KERNELS[kernel.name].checks for kernel in plan.frame.kernels):
        try:
            verify(plan)
        except ContractError as error:
            return str(error)
        except DeadlineError:
            pass
    if rule == FOLD_ORDER:
        why = "it is folded in another order than is promised"
    elif detail == UNWRITTEN:
        why = "nobody wrote it"
    else:
        why = "it is another product, or of another call" if plan.call.gemm else "it is of another call"
    return f"[{plan.call}] byte {byte} of rank {place.rank}'s output is not what the contract says: {why}"
