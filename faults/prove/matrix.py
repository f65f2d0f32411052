"""The matrix of calls that proves a user's algorithm: sizes, ranks, operations, dtypes, roots, in place and not.

A proof holds for one call, of any root, among any others. An algorithm may still be wrong at sizes that its slices do
not divide, in a second round, or from some number of ranks on, so it is asked for a matrix of calls. Sizes of a few
elements are given. Sizes of one round, of one round and one element, and of enough rounds for the ring to wrap twice
are looked up, on a ring so small that they are a few kilobytes. Every number of ranks meets every size, dtype and
place, in place or not. The operation does not decide what is folded from what, except for the division of an average:
by default operations take turns, such that each meets every number of ranks with every size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm

from collectives.algorithms.catalog import build
from collectives.builder.recipes import Recipe
from collectives.contracts import COLLECTIVES, NO_ZERO_COPY_IN_PLACE
from collectives.layouts import world_layout
from collectives.sizes import block_bytes, size_bytes
from collectives.sweep.defaults import REGION_BYTES
from cxlemu.errors import ArgumentError, CxlemuError, PlanError
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import DTYPES, Call, Layout, Plan, rules
from cxlemu.plan.reduction import reductions
from cxlemu.rounding import round_down
from cxlemu.topology import Topology
from cxlemu.topology.clusters import cluster_sizes
from cxlemu.units import counted, format_bytes
from faults.choices import MATRIX_DTYPES, MATRIX_RANKS, MATRIX_REDOPS
from faults.lockstep.zero_copy_calls import placed
from faults.prove.proof import Proof
from faults.prove.sequences import Progress, prove, some_roots
from faults.verdict import Verdict

ELEMENTS = (1, 13, 101)  # fewer than ranks; then several lines, in sizes that no number of ranks divides
MACHINE_BYTES = 4096  # on the ring that the machine has for any other call
QUESTIONS_MAX = 10_000

_PROBE_DTYPE, _PROBE_BYTES = "f64", 8  # to look up how many bytes make a round


@dataclass(frozen=True, slots=True)
class Size:
    """A size of blocks, on a ring of its own.

    Attributes:
        text: The size in words.
        region_bytes: Bytes of the ring.
        nbytes: Bytes of a block, rounded down to whole elements, to which ``elements`` are added.
        elements: Elements of a block beyond ``nbytes``.
        total: Bytes as nccl-tests counts them, instead of ``nbytes`` and ``elements``.
    """

    text: str
    region_bytes: int
    nbytes: int = 0
    elements: int = 0
    total: int | None = None

    def block_bytes(self, collective: str, ranks: int, itemsize: int) -> int:
        """Compute the bytes of a block.

        Args:
            collective: Name of the collective.
            ranks: Number of ranks.
            itemsize: Bytes of an element.
        """
        if self.total is not None:
            return block_bytes(collective, self.total, ranks, itemsize)
        return round_down(self.nbytes, itemsize) + self.elements * itemsize


@dataclass(frozen=True, slots=True)
class Question:
    """One call, on its ring.

    Attributes:
        recipe: The algorithm.
        layout: The ring.
        call: The call.
        size: Its size, as the matrix has it.
        roots: The roots to prove it for; None: as `prove` chooses them.
    """

    recipe: Recipe
    layout: Layout
    call: Call
    size: Size
    roots: tuple[int, ...] | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of the call, as nccl-tests counts them."""
        return size_bytes(self.call.collective, self.call.nbytes, self.call.ranks)

    @property
    def all_roots(self) -> Sequence[int]:
        """The roots to prove the call for; (0,) if its collective has none."""
        if not COLLECTIVES[self.call.collective].rooted:
            return (0,)
        return some_roots(self.call.ranks) if self.roots is None else self.roots


@dataclass(frozen=True, slots=True)
class AnsweredQuestion:
    """What came of a question.

    Attributes:
        question: The question.
        proof: The proof; None if the algorithm refuses the call.
        why: Why the algorithm refuses the call, or what is wrong or not known.
        rule: The rule that is broken: a rule of the memory model, "plan" for one that every plan obeys, or "raises" if
            the algorithm fails.
        root: The root of the call that is wrong.
        refused_roots: Roots that the algorithm refuses, although others are proved.
        refusal: Why it refuses the first of them.
    """

    question: Question
    proof: Proof | None
    why: str = ""
    rule: str = ""
    root: int | None = None
    refused_roots: tuple[int, ...] = ()
    refusal: str = ""

    @property
    def roots(self) -> tuple[int, ...] | None:
        """The roots that the answer is about; None: as `prove` chooses them."""
        if not self.refused_roots:
            return self.question.roots
        return tuple(root for root in self.question.all_roots if root not in self.refused_roots)

    @property
    def fate(self) -> str:
        """The verdict of the proof, or "refused" if there is none."""
        return "refused" if self.proof is None else self.proof.verdict.value


@dataclass(frozen=True)
class Matrix:
    """The calls that an algorithm is asked for.

    Attributes:
        recipe: The algorithm.
        topology: The machine whose ring is used.
        ranks: Numbers of ranks.
        sizes: Total bytes, as nccl-tests counts them; None: the sizes that the head of this module describes.
        redops: Operations, for a collective that reduces; None: MATRIX_REDOPS.
        dtypes: Names of dtypes; None: MATRIX_DTYPES.
        roots: Roots, for a collective that has one; None: as `prove` chooses them.
        in_place: Whether the result replaces the input; None: both.
        region_bytes: Bytes of the ring; None: a small one, or the machine's own if ``sizes`` are given.
    """

    recipe: Recipe
    topology: Topology
    ranks: Sequence[int] = MATRIX_RANKS
    sizes: Sequence[int] | None = None
    redops: Sequence[str] | None = None
    dtypes: Sequence[str] | None = None
    roots: tuple[int, ...] | None = None
    in_place: bool | None = None
    region_bytes: int | None = None

    @property
    def in_turns(self) -> bool:
        """Whether operations take turns, instead of each meeting everything."""
        reduces = COLLECTIVES[self.recipe.collective].reduces
        return reduces and self.redops is None and len(self._dtypes) * len(self._places) >= len(MATRIX_REDOPS)

    def questions(self) -> list[Question]:
        """List the calls, from few ranks and small sizes on.

        Raises:
            ArgumentError: A root is not a rank of every call, or there are more than QUESTIONS_MAX calls.
        """
        found: list[Question] = []
        for ranks in self.ranks:
            for question in self._questions(ranks):
                if len(found) == QUESTIONS_MAX:
                    raise ArgumentError(f"this matrix has more than {QUESTIONS_MAX} calls: narrow it, as with -n")
                found.append(question)
        return found

    @property
    def _dtypes(self) -> Sequence[str]:
        moves = COLLECTIVES[self.recipe.collective].moves_data
        return tuple(dict.fromkeys(self.dtypes or MATRIX_DTYPES)) if moves else ("u8",)

    @property
    def _places(self) -> Sequence[bool]:
        contract = COLLECTIVES[self.recipe.collective]
        if not contract.moves_data:
            return (False,)
        if self.in_place is not None:
            return (self.in_place,)
        return (True,) if contract.one_buffer else (False, True)

    def _questions(self, ranks: int) -> Iterator[Question]:
        collective = self.recipe.collective
        contract = COLLECTIVES[collective]
        if self.roots and max(self.roots) >= ranks:
            raise ArgumentError(f"root {max(self.roots)} is not one of {ranks} ranks: leave out that number with -n")
        usual = tuple(op for op in MATRIX_REDOPS if op in contract.ops)
        asked = tuple(dict.fromkeys(self.redops or usual)) if contract.reduces else ("none",)
        there = reductions(self._dtypes, asked) if contract.reduces else [(dtype, "none") for dtype in self._dtypes]
        seen: set[tuple[Call, int]] = set()
        for nth, size in enumerate(self._sizes(ranks)):
            layout = world_layout(self.topology, ranks, region_bytes=size.region_bytes)
            for which, dtype in enumerate(self._dtypes):
                nbytes = size.block_bytes(collective, ranks, DTYPES[dtype].itemsize)
                redops = [redop for its, redop in there if its == dtype]
                for place in self._places:
                    turn = (self.ranks.index(ranks) + nth + which + place) % len(redops)
                    for redop in (redops[turn],) if self.in_turns else redops:
                        for cluster in self._clusters(ranks):
                            its = (collective, self.recipe.name, ranks, nbytes, dtype, redop)
                            call = Call(*its, (self.roots or (0,))[0], place, cluster=cluster)
                            if (call, size.region_bytes) not in seen:
                                seen.add((call, size.region_bytes))
                                yield Question(self.recipe, layout, call, size, self.roots)

    def _clusters(self, ranks: int) -> Sequence[int]:
        return (cluster_sizes(ranks) if self.recipe.builder.takes_clusters else ()) or (1,)

    # --- sizes ------------------------------------------------------------------------------------------------

    def _sizes(self, ranks: int) -> list[Size]:
        region = self.region_bytes or REGION_BYTES
        if not COLLECTIVES[self.recipe.collective].moves_data:
            return [Size("no data", region)]
        if self.sizes is not None:
            return [Size(format_bytes(total), region, total=total) for total in dict.fromkeys(self.sizes)]
        machine = Size(f"{format_bytes(MACHINE_BYTES)} on the machine's ring", REGION_BYTES, MACHINE_BYTES)
        region = self.region_bytes or self._small_ring(ranks)
        few = [Size(_elements(count), region, elements=count) for count in (0, *ELEMENTS)]
        return [*few, *self._in_rounds(ranks, region), *([] if self.region_bytes else [machine])]

    def _small_ring(self, ranks: int) -> int:
        """Choose the bytes of a small ring.

        Its slots are kilobytes, with a few lines for each of as many blocks as there are ranks, of every rank. If the
        algorithm needs a larger slot, it is the machine's own ring.
        """
        region = min(max(ranks * ranks * 2048, self.topology.pool_card_count * 4096), REGION_BYTES)
        return region if self._rounds(ranks, region)(_alike(ranks)) is not None else REGION_BYTES

    def _rounds(self, ranks: int, region_bytes: int) -> Callable[[int], int | None]:
        """Return a function from bytes of a block to the rounds that it takes, or None where there is no such call."""
        layout = world_layout(self.topology, ranks, region_bytes=region_bytes)
        redop = "sum" if COLLECTIVES[self.recipe.collective].reduces else "none"

        def rounds(nbytes: int) -> int | None:
            its = (self.recipe.collective, self.recipe.name, ranks, nbytes, _PROBE_DTYPE, redop)
            call = Call(*its, (self.roots or (0,))[0], self._places[0], cluster=self._clusters(ranks)[0])
            try:
                call, where = placed(self.recipe, call, layout)
                return build(self.recipe, where, call).rounds
            except CxlemuError:
                return None

        return rounds

    def _in_rounds(self, ranks: int, region: int) -> Iterator[Size]:
        """Yield one round that ranks can share alike, a second round of one element, and enough rounds for the ring to
        wrap twice."""
        rounds, layout = self._rounds(ranks, region), world_layout(self.topology, ranks, region_bytes=region)
        unit = _alike(ranks)
        alike = _whole_round(rounds, unit, layout.slot_bytes)
        if alike is None:  # however large it is
            yield Size("a slot", region, round_down(layout.slot_bytes, unit) or unit)
            return
        whole = _whole_round(rounds, LINE_BYTES, layout.slot_bytes) or alike
        yield Size("1 round", region, alike)
        yield Size("1 round and 1 element", region, whole, 1)
        more = max((rounds(2 * alike) or 2) - (rounds(alike) or 1), 1)
        many = max(2, -(-(2 * layout.slots + 1) // more))
        if rounds(many * whole + 13 * _PROBE_BYTES) is not None:
            yield Size("many rounds and 13 elements", region, many * whole, 13)
        else:  # it takes only what ranks can share alike
            yield Size("many rounds", region, (many + 1) * alike)


def _alike(ranks: int) -> int:
    """Bytes of whole lines, and of which all ranks can have equal shares of whole elements."""
    return lcm(LINE_BYTES, _PROBE_BYTES * ranks)


def _whole_round(rounds: Callable[[int], int | None], unit: int, slot_bytes: int) -> int | None:
    """Find the most bytes, in units, of a block that takes no more rounds than a block of one unit.

    None: there is no such size, because a unit is refused or a round holds any block.
    """
    few = rounds(unit)
    if few is None:
        return None
    less, more = 1, 2
    while rounds(more * unit) == few:
        less, more = more, 2 * more
        if less * unit > 2 * slot_bytes:
            return None
    while more - less > 1:
        middle = (less + more) // 2
        if rounds(middle * unit) == few:
            less = middle
        else:
            more = middle
    return less * unit


def _elements(count: int) -> str:
    return "0 B" if not count else counted(count, "element")


# --- answers ------------------------------------------------------------------------------------------------------


def judge(question: Question, *, progress: Progress | None = None) -> AnsweredQuestion:
    """Prove one call for all its roots, or say what is wrong with it or why the algorithm refuses it.

    Args:
        question: The call.
        progress: Called after each sequence of calls, with the number of sequences done and their count.
    """
    recipe, collective = question.recipe, question.call.collective
    if recipe.spec.zero_copy and question.call.in_place and collective in NO_ZERO_COPY_IN_PLACE:
        why = f"{collective} in place cannot be zero copy: {NO_ZERO_COPY_IN_PLACE[collective]}"
        return AnsweredQuestion(question, None, why)
    call, layout = placed(recipe, question.call, question.layout)
    plans: dict[int, Plan] = {}
    refused: dict[int, str] = {}
    for root in question.all_roots:
        try:
            plan = build(recipe, layout, replace(call, root=root))
            plan.parts  # noqa: B018  # built when first asked for
            plans[root] = plan
        except ArgumentError as error:
            if _is_a_failure(error):
                return _wrong(question, str(error), "raises", root)
            refused[root] = str(error)
        except PlanError as error:
            return _wrong(question, str(error), "plan", root)
    if not plans:
        return AnsweredQuestion(question, None, next(iter(refused.values())))
    roots = tuple(plans)
    try:
        proof = prove(plans[roots[0]], rooted=plans.__getitem__, roots=roots, progress=progress)
    except PlanError as error:
        return _wrong(question, str(error), "plan", _first_broken(plans))
    rule, root_of_it = "", None
    if proof.violation is not None:
        rule, wrong = proof.violation.rule, proof.calls[proof.violation.call].call
        root_of_it = wrong.root if (wrong.collective, wrong.algorithm) == (collective, call.algorithm) else roots[0]
    refusal = next(iter(refused.values()), "")
    return AnsweredQuestion(question, proof, proof.reason, rule, root_of_it, tuple(refused), refusal)


def _first_broken(plans: Mapping[int, Plan]) -> int:
    """The root whose plan breaks a rule."""
    for root, plan in plans.items():
        try:
            rules.check(plan)
        except PlanError:
            return root
    return next(iter(plans))


def _is_a_failure(error: ArgumentError) -> bool:
    """Whether the algorithm broke down, instead of saying what it does not take."""
    return error.__cause__ is not None and not isinstance(error.__cause__, CxlemuError)


def _wrong(question: Question, why: str, rule: str, root: int) -> AnsweredQuestion:
    return AnsweredQuestion(question, Proof(Verdict.VIOLATION, None, why, 0, 0.0), why, rule, root)
