"""The matrix of calls that proves a user's algorithm: sizes, ranks, operations, dtypes, roots, in place and not.

A proof holds for one call, of any root, among any others. An algorithm may still be wrong at sizes that its slices do
not divide, in a second round, or from some number of ranks on, so it is asked for a matrix of calls. Sizes of a few
elements are given. Sizes of one round, of one round and one element, of three, and of enough rounds for the ring to
wrap twice are looked up, on a ring so small that they are a few kilobytes. Every number of ranks meets every size, in
place and not. By default dtypes and operations take turns: each pair of them meets every number of ranks, and every
size. Blocks are of any number of bytes: where something is folded, those of MATRIX_ODD_DTYPE.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm

from collectives.algorithms.catalog import build, endless
from collectives.builder.recipes import Recipe
from collectives.contracts import COLLECTIVES, NO_ZERO_COPY_IN_PLACE
from collectives.defaults import REGION_BYTES
from collectives.layouts import world_layout
from collectives.sizes import block_bytes, size_bytes
from cxlemu.errors import ArgumentError, BuilderError, CxlemuError, EndlessError, PlanError
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import DTYPES, Call, Layout, Plan, rules
from cxlemu.plan.reduction import reductions
from cxlemu.rounding import round_down
from cxlemu.topology import Topology
from cxlemu.topology.clusters import cluster_sizes, hosts_of
from cxlemu.units import counted, format_bytes
from faults.choices import MATRIX_DTYPES, MATRIX_MOVED_DTYPES, MATRIX_ODD_DTYPE, MATRIX_RANKS, MATRIX_REDOPS
from faults.prove.proof import Proof
from faults.prove.sequences import Progress, prove, some_roots
from faults.verdict import Verdict
from faults.zero_copy_calls import placed

ELEMENTS = (1, 13, 101)  # fewer than ranks; then several lines, in sizes that no number of ranks divides
MACHINE_BYTES = 4096  # on the ring that the machine has for any other call
QUESTIONS_MAX = 10_000

_PROBE_DTYPE, _PROBE_BYTES = "f64", 8  # to look up how many bytes make a round


@dataclass(frozen=True, slots=True)
class Size:
    """A size of blocks, on a ring of its own."""

    text: str  # the size in words
    region_bytes: int  # bytes of the ring
    nbytes: int = 0  # bytes of a block, rounded down to whole elements, to which ``elements`` are added
    elements: int = 0  # elements of a block beyond ``nbytes``
    total: int | None = None  # bytes as nccl-tests counts them, instead of ``nbytes`` and ``elements``

    def block_bytes(self, collective: str, ranks: int, itemsize: int) -> int:
        if self.total is not None:
            return block_bytes(collective, self.total, ranks, itemsize)
        return round_down(self.nbytes, itemsize) + self.elements * itemsize


@dataclass(frozen=True, slots=True)
class Question:
    """One call, on its ring."""

    recipe: Recipe
    layout: Layout
    call: Call
    size: Size  # its size, as the matrix has it
    roots: tuple[int, ...] | None = None  # the roots to prove it for; None: as `prove` chooses them
    ranks_per_host: int = 1  # how many ranks each host has

    @property
    def size_bytes(self) -> int:
        """Bytes of the call, as nccl-tests counts them."""
        return size_bytes(self.call.collective, self.call.nbytes, self.call.ranks)

    @property
    def size_text(self) -> str:
        """The size in words, where it was asked for in bytes as it was rounded to whole elements."""
        return self.size.text if self.size.total is None else format_bytes(self.size_bytes)

    @property
    def hosts(self) -> Sequence[int] | None:
        """The host of each rank; None: each has its own."""
        return hosts_of(self.call.ranks, self.ranks_per_host) if self.ranks_per_host > 1 else None

    @property
    def all_roots(self) -> Sequence[int]:
        """The roots to prove the call for; (0,) if its collective has none."""
        if not COLLECTIVES[self.call.collective].rooted:
            return (0,)
        return some_roots(self.call.ranks) if self.roots is None else self.roots


@dataclass(frozen=True)
class AnsweredQuestion:
    question: Question
    proof: Proof | None  # the proof; None if the algorithm declines the call
    why: str = ""  # why the algorithm declines the call, or what is wrong or not known
    # the rule that is broken: a rule of the memory model, "plan" for one that every plan obeys, "builder" if the
    # algorithm misuses the builder or fails, or "twice" if it builds another plan the second time
    rule: str = ""
    root: int | None = None  # the root of the call that is wrong
    declined_roots: tuple[int, ...] = ()  # roots that the algorithm declines, although others are proved
    why_declined: str = ""  # why it declines the first of them

    @property
    def roots(self) -> tuple[int, ...] | None:
        """The roots that the answer is about; None: as `prove` chooses them."""
        if not self.declined_roots:
            return self.question.roots
        return tuple(root for root in self.question.all_roots if root not in self.declined_roots)

    @property
    def fate(self) -> str:
        """The verdict of the proof, or "declined" if there is none."""
        return "declined" if self.proof is None else self.proof.verdict.value


@dataclass(frozen=True)
class Matrix:
    """The calls that an algorithm is asked for."""

    recipe: Recipe
    topology: Topology  # the machine whose ring is used
    ranks: Sequence[int] = MATRIX_RANKS  # numbers of ranks
    # total bytes, as nccl-tests counts them; None: the sizes that the head of this module describes
    sizes: Sequence[int] | None = None
    redops: Sequence[str] | None = None  # operations, for a collective that reduces; None: MATRIX_REDOPS
    # names of dtypes; None: MATRIX_DTYPES, or MATRIX_MOVED_DTYPES for a collective that does not reduce
    dtypes: Sequence[str] | None = None
    roots: tuple[int, ...] | None = None  # roots, for a collective that has one; None: as `prove` chooses them
    in_place: bool | None = None  # whether the result replaces the input; None: both
    region_bytes: int | None = None  # bytes of the ring; None: a small one, or the machine's own if ``sizes`` are given
    # how many ranks each host has; None: one, on clusters of every size if the algorithm takes clusters
    cluster: int | None = None

    @property
    def in_turns(self) -> bool:
        """Whether dtypes and operations take turns, instead of each pair meeting everything."""
        reduces = COLLECTIVES[self.recipe.collective].reduces
        return (self.dtypes is None or (reduces and self.redops is None)) and len(self._kinds) > 1

    def questions(self) -> list[Question]:
        """List the calls, from few ranks and small sizes on."""
        asked: list[Question] = []
        for ranks in self.ranks:
            for question in self._questions(ranks):
                if len(asked) == QUESTIONS_MAX:
                    raise ArgumentError(f"this matrix has more than {QUESTIONS_MAX} calls: narrow it, as with -n")
                asked.append(question)
        return asked

    @property
    def _dtypes(self) -> Sequence[str]:
        contract = COLLECTIVES[self.recipe.collective]
        usual = MATRIX_DTYPES if contract.reduces else MATRIX_MOVED_DTYPES
        return tuple(dict.fromkeys(self.dtypes or usual)) if contract.moves_data else ("u8",)

    @property
    def _kinds(self) -> Sequence[tuple[str, str]]:
        """All pairs of a dtype and an operation that there are; neighbours have different dtypes."""
        contract = COLLECTIVES[self.recipe.collective]
        if not contract.reduces:
            return [(dtype, "none") for dtype in self._dtypes]
        asked = tuple(dict.fromkeys(self.redops or (op for op in MATRIX_REDOPS if op in contract.ops)))
        there = reductions(self._dtypes, asked)
        odd = [(MATRIX_ODD_DTYPE, redop) for redop in asked[:1] if self.dtypes is None and contract.moves_data]
        return [(dtype, redop) for redop in asked for dtype in self._dtypes if (dtype, redop) in there] + odd

    def _turn(self, row: int, column: int, columns: int, place: int) -> Iterator[tuple[str, str]]:
        """Choose the kinds that meet a number of ranks, a row, and a size, a column, in the first or second place.

        They go on from row to row and from column to column, and from place to place by half, so that each row and
        each column meets all.
        """
        kinds = self._kinds
        if not self.in_turns:
            yield from kinds
            return
        half = -(-len(kinds) // len(self._places))
        few = -(-half // min(len(self.ranks), columns))
        first = (row + column) * few + place * half
        yield from (kinds[(first + number) % len(kinds)] for number in range(few))

    @property
    def _places(self) -> Sequence[bool]:
        contract = COLLECTIVES[self.recipe.collective]
        if not contract.moves_data:
            return (False,)
        if self.in_place is not None:
            return (self.in_place,)
        return False, True

    def _questions(self, ranks: int) -> Iterator[Question]:
        collective = self.recipe.collective
        if self.roots and max(self.roots) >= ranks:
            raise ArgumentError(f"root {max(self.roots)} is not one of {ranks} ranks: leave out that number with -n")
        hosts_of(ranks, self.cluster or 1)
        seen: set[tuple[Call, int]] = set()
        sizes = self._sizes(ranks)
        for nth, size in enumerate(sizes):
            layout = world_layout(self.topology, ranks, region_bytes=size.region_bytes)
            for which, place in enumerate(self._places):
                for dtype, redop in self._turn(self.ranks.index(ranks), nth, len(sizes), which):
                    nbytes = size.block_bytes(collective, ranks, DTYPES[dtype].itemsize)
                    for cluster in self._clusters(ranks):
                        fields = (collective, self.recipe.name, ranks, nbytes, dtype, redop)
                        call = Call(*fields, (self.roots or (0,))[0], place, cluster=cluster)
                        if (call, size.region_bytes) not in seen:
                            seen.add((call, size.region_bytes))
                            yield Question(self.recipe, layout, call, size, self.roots, self.cluster or 1)

    def _clusters(self, ranks: int) -> Sequence[int]:
        if not self.recipe.builder.takes_clusters:
            return (1,)
        return cluster_sizes(ranks) or (1,) if self.cluster is None else (self.cluster,)

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

        Its slots are kilobytes, with a few lines for each of as many blocks as there are ranks, of every rank, and more
        where what ranks share alike would not fit one. If the algorithm needs much more, it is the machine's own ring.
        """
        region = max(ranks * ranks * 2048, self.topology.pool_card_count * 4096)
        while region < REGION_BYTES:
            rounds = self._rounds(ranks, region)
            few, fewest = rounds(_alike(ranks)), rounds(LINE_BYTES)
            if few is not None and fewest in (few, None):
                return region
            region *= 2
        return REGION_BYTES

    def _rounds(self, ranks: int, region_bytes: int) -> Callable[[int], int | None]:
        """Return a function from bytes of a block to the rounds that it takes, or None where there is no such call."""
        layout = world_layout(self.topology, ranks, region_bytes=region_bytes)
        redop = "sum" if COLLECTIVES[self.recipe.collective].reduces else "none"

        def rounds(nbytes: int) -> int | None:
            fields = (self.recipe.collective, self.recipe.name, ranks, nbytes, _PROBE_DTYPE, redop)
            call = Call(*fields, (self.roots or (0,))[0], self._places[0], cluster=self._clusters(ranks)[0])
            try:
                call, where = placed(self.recipe, call, layout)
                return build(self.recipe, where, call).rounds
            except EndlessError:
                raise
            except CxlemuError:
                return None

        return rounds

    def _in_rounds(self, ranks: int, region: int) -> Iterator[Size]:
        """Yield one round that ranks can share alike, a second round of one element, a third one, and enough rounds for
        the ring to wrap twice."""
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
        for text, count in (("3 rounds", 2), ("many rounds", max(2, -(-(2 * layout.slots + 1) // more)))):
            if rounds(count * whole + 13 * _PROBE_BYTES) is not None:
                yield Size(f"{text} and 13 elements" if count > 2 else text, region, count * whole, 13)
            else:  # it takes only what ranks can share alike
                yield Size(text, region, (count + 1) * alike)


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
    """Prove one call for all its roots, or say what is wrong with it or why the algorithm declines it."""
    recipe, collective = question.recipe, question.call.collective
    if endless(recipe):
        why = "not judged, because the algorithm did not end in an earlier call"
        return AnsweredQuestion(question, Proof(Verdict.UNKNOWN, None, why, 0, 0.0), why)
    if recipe.source and question.call.ranks == 1:
        return AnsweredQuestion(question, None, f"a call of one rank is a copy, and {recipe.name} is not called")
    if recipe.spec.zero_copy and question.call.in_place and collective in NO_ZERO_COPY_IN_PLACE:
        why = f"{collective} in place cannot be zero copy: {NO_ZERO_COPY_IN_PLACE[collective]}"
        return AnsweredQuestion(question, None, why)
    call, layout = placed(recipe, question.call, question.layout)
    plans: dict[int, Plan] = {}
    declined: dict[int, str] = {}

    def of_root(root: int) -> Plan:
        plan = build(recipe, layout, replace(call, root=root))
        plan.parts  # noqa: B018  # built when first asked for
        return plan

    for root in question.all_roots:
        try:
            plans[root] = of_root(root)
        except ArgumentError as error:
            declined[root] = str(error)
        except PlanError as error:
            return _wrong(question, str(error), "builder" if isinstance(error, BuilderError) else "plan", root)
    if not plans:
        return AnsweredQuestion(question, None, next(iter(declined.values())))
    roots = tuple(plans)
    if not _is_built_again(plans[roots[0]], of_root):
        why = "the algorithm builds another plan the second time: it depends on more than its builder"
        return _wrong(question, why, "twice", roots[0])
    try:
        proof = prove(plans[roots[0]], rooted=plans.__getitem__, roots=roots, hosts=question.hosts, progress=progress)
    except PlanError as error:
        return _wrong(question, str(error), "plan", _first_broken(plans))
    rule, root_of_it = "", None
    if proof.violation is not None:
        rule, wrong = proof.violation.rule, proof.calls[proof.violation.call].call
        root_of_it = wrong.root if (wrong.collective, wrong.algorithm) == (collective, call.algorithm) else roots[0]
    why_declined = next(iter(declined.values()), "")
    return AnsweredQuestion(question, proof, proof.reason, rule, root_of_it, tuple(declined), why_declined)


def _is_built_again(plan: Plan, of_root: Callable[[int], Plan]) -> bool:
    try:
        return of_root(plan.call.root) == plan
    except (ArgumentError, PlanError):
        return False


def _first_broken(plans: Mapping[int, Plan]) -> int:
    """The root whose plan breaks a rule."""
    for root, plan in plans.items():
        try:
            rules.check(plan)
        except PlanError:
            return root
    return next(iter(plans))


def _wrong(question: Question, why: str, rule: str, root: int) -> AnsweredQuestion:
    return AnsweredQuestion(question, Proof(Verdict.VIOLATION, None, why, 0, 0.0), why, rule, root)
