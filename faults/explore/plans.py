"""A plan, or calls of plans one after the other on one ring, as a program of the abstract machine.

A thread is a stream of a rank. Every store brings a version of its own, and every load has to see the version that it
sees when all goes well: in order, on a coherent pool, which also checks the contract (coherent.py). Then the search
says whether any other version could ever be seen. Local memory is modelled where two streams of a rank meet in it, and
a collective that moves no data is given some: what every rank published before it, all see after it.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from collectives.contracts import COLLECTIVES, check_buffers
from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Flag, Instruction, Layout, Op, Plan, rules
from cxlemu.plan.features import declared, unmodelled
from faults import dead
from faults.explore import core
from faults.explore.coherent import BEGINS, ENDS, PlanPoint, Trouble, in_order
from faults.explore.places import Pieces, WordNumbers
from faults.explore.result import Budget, Exploration, FindingKind, SearchFinding
from faults.explore.search import UNLESS_TOLD
from faults.explore.touches import Local, RankInCall, TouchedBytes
from faults.machine.program import Do, MachineProgram, Step, Straight
from faults.machine.schedule import Act, Schedule
from faults.machine.steps import TWO_MOVES, Machine
from faults.verdict import Verdict

FIRST_EPOCH = 1
MODELS = declared(
    "CHECKSUMS EVENTS FOLDS HEAP MATRIX_PRODUCTS NON_TEMPORAL OWN_MEMORIES PAYLOADS PEER_WRITES TOLD_PLACES "
    "UNEVEN_BLOCKS UNIFORM_ORDER"
)


@dataclass(frozen=True)
class PlanProgram:
    """Calls of plans, as a program of the abstract machine."""

    plans: tuple[Plan, ...]  # the calls that the program holds, in order
    program: MachineProgram  # a thread for each stream of each rank
    origins: tuple[tuple[PlanPoint, ...], ...]  # ``[thread][node]``: the instruction that the step belongs to
    trouble: Trouble | None  # what is wrong even in order on a coherent pool, or None
    # what the plans have that the explorer does not model, in a sentence; then the program is empty
    unmodelled: str = ""

    def known(self, machine: Machine) -> Exploration | None:
        """Return what is known of the program without a search; None: nothing."""
        if self.unmodelled:
            return Exploration(Verdict.UNKNOWN, 0, 0, 0.0, reason=self.unmodelled)
        if self.trouble is not None:
            return Exploration(Verdict.VIOLATION, 0, 0, 0.0, *self.trouble.shown(machine, self.origins))
        return None


def explore_plan(
    plans: Plan | Sequence[Plan],
    hosts: Sequence[int] | None = None,
    *,
    lazy: bool = True,
    checked_reads: bool = True,
    ample: bool = True,
    budget: Budget = UNLESS_TOLD,
) -> Exploration:
    """Search every execution of consecutive calls; calls that are wrong even in order are reported with 0 states."""
    compiled = compile_plans([plans] if isinstance(plans, Plan) else list(plans), hosts)
    machine = Machine(compiled.program)
    if (known := compiled.known(machine)) is not None:
        return known
    found = core.explore(machine, budget, lazy=lazy, checked_reads=checked_reads, ample=ample)
    return replace(found, finding=found.finding and located(compiled, found.finding, found.schedule))


def tiny_layout(ranks: int, *, lines: int = 2, slots: int = 2, doorbells: int | None = None, cards: int = 1) -> Layout:
    """Make a ring small enough to explore."""
    card_bytes = -(-ranks * lines // cards) * LINE_BYTES
    return Layout(ranks, cards, slots, card_bytes, doorbells or lines, interleave_bytes=LINE_BYTES)


def located(compiled: PlanProgram, finding: SearchFinding, schedule: Schedule) -> SearchFinding:
    """Add to a finding's text the instruction it is about; if its thread has ended, return it as it is."""
    place = where(compiled, finding.thread, schedule)
    if place is None:
        return finding
    at = f"call {place.call}, rank {place.rank}, stream {place.stream}"
    at += f", instruction {place.at}" if BEGINS < place.at < ENDS else ""
    unused = finding.kind == FindingKind.UNEXPECTED and dead.why(
        compiled.plans[place.call], place.rank, place.stream, place.at
    )
    return replace(finding, text=f"{finding.text} ({at}){unused or ''}")


def where(compiled: PlanProgram, thread: int, schedule: Schedule) -> PlanPoint | None:
    """Return the instruction at which a thread is after a schedule; None if the thread has ended."""
    straight = compiled.program.threads[thread]
    node, begun = 0, False
    for move in schedule:
        if move.act == Act.STEP and move.who == thread:
            step = straight.step(node)
            begun = not begun and step is not None and step.do in TWO_MOVES
            node += not begun
    return compiled.origins[thread][node] if node < len(compiled.origins[thread]) else None


def compile_plans(plans: Sequence[Plan], hosts: Sequence[int] | None = None) -> PlanProgram:
    """Turn calls into a program, no further than to a call that is wrong even in order on a coherent pool."""
    for plan in {id(plan): plan for plan in plans}.values():
        rules.check(plan)
        check_buffers(plan)
    if not plans or any(plan.layout != plans[0].layout for plan in plans):
        raise ArgumentError("a sequence of calls is one plan or more, all with the same layout")
    ranks = plans[0].layout.ranks
    if hosts is not None and (len(hosts) != ranks or min(hosts) < 0):
        raise ArgumentError(f"hosts are given as {ranks} numbers, one for each rank, not {list(hosts)}")
    if beyond := unmodelled(plans, MODELS, "the explorer"):
        return PlanProgram(tuple(plans), MachineProgram((), (), ()), (), None, beyond)
    compiled = _Compiler(plans, hosts or range(ranks)).compiled()
    if compiled.trouble is not None and compiled.trouble.call < len(plans) - 1:
        return compile_plans(plans[: compiled.trouble.call + 1], hosts)
    return compiled


class _Compiler:
    def __init__(self, plans: Sequence[Plan], hosts: Sequence[int]) -> None:
        self.plans, self.hosts, self.layout = plans, hosts, plans[0].layout
        self.epochs = [FIRST_EPOCH + sum(plan.rounds for plan in plans[:call]) for call in range(len(plans))]
        self.places = WordNumbers()
        self.pieces = Pieces()
        self.shared: set[tuple[Local, int, int]] = set()  # pieces in which streams of a rank meet
        self.versions: defaultdict[int, int] = defaultdict(int)  # count of stores to each word
        self.events: dict[object, int] = {}
        self.threads: defaultdict[tuple[int, int], list[tuple[PlanPoint, Step]]] = defaultdict(list)

    def compiled(self) -> PlanProgram:
        calls = [
            RankInCall(call, self.layout, plan.frame, part, epoch)
            for call, (plan, epoch) in enumerate(zip(self.plans, self.epochs, strict=True))
            for part in plan.parts
        ]
        self.cut(calls)
        for rank in calls:
            self.emit(rank)
        order, trouble = in_order(self.plans, self.epochs)
        if trouble is None:
            self.expect(order)
        threads = sorted(self.threads)
        program = MachineProgram(
            tuple(
                Straight(self.hosts[rank], rank, f"rank {rank} stream {stream}", tuple(step for _, step in steps))
                for (rank, stream), steps in sorted(self.threads.items())
            ),
            tuple(self.places.words),
            tuple(self.places.lines),
        )
        origins = tuple(tuple(place for place, _ in self.threads[key]) for key in threads)
        return PlanProgram(tuple(self.plans), program, origins, trouble)

    def cut(self, calls: Sequence[RankInCall]) -> None:
        touched: list[tuple[int, TouchedBytes]] = []
        for rank in calls:
            for stream, i in _instructions(rank):
                touched += ((stream, touch) for touch in rank.touches(i))
        for _, touch in touched:
            self.pieces.cut(touch.memory, touch.begin, touch.end)
        users: defaultdict[tuple[Local, int, int], set[tuple[int, Do]]] = defaultdict(set)
        for stream, touch in touched:
            if isinstance(touch.memory, Local):
                for begin, end in self.pieces.of(touch.memory, touch.begin, touch.end):
                    users[touch.memory, begin, end].add((stream, touch.do))
        for piece, by in users.items():
            if len({stream for stream, _ in by}) > 1 and any(do == Do.STORE for _, do in by):
                self.shared.add(piece)

    # -- steps

    def emit(self, rank: RankInCall) -> None:
        """Add a rank's call.

        A rank's streams begin a call together, when all of them have ended the one before: the first one leads.
        """
        streams = range(len(rank.part.streams))
        call = self.plans[rank.call].call
        is_barrier = call.gemm is None and not COLLECTIVES[call.collective].moves_data
        for stream in streams:
            begins = PlanPoint(rank.call, rank.part.rank, stream, BEGINS)
            if stream == 0 and is_barrier:
                self.add(begins, self.come(rank))
            if rank.call or is_barrier:
                do = Do.AWAIT if stream else Do.RECORD
                self.add(begins, [Step(do, self.event("begins", rank.call, rank.part.rank))])
            for index, i in enumerate(rank.part.streams[stream].instructions):
                self.add(begins._replace(at=index), self.steps(rank, i))
            if stream and (rank.call < len(self.plans) - 1 or is_barrier):
                self.add(
                    begins._replace(at=ENDS), [Step(Do.RECORD, self.event("ends", rank.call, rank.part.rank, stream))]
                )
        ends = PlanPoint(rank.call, rank.part.rank, 0, ENDS)
        if rank.call < len(self.plans) - 1 or is_barrier:
            events = (self.event("ends", rank.call, rank.part.rank, stream) for stream in streams[1:])
            self.add(ends, [Step(Do.AWAIT, event) for event in events])
        if is_barrier:
            self.add(ends, self.meet(rank))

    def add(self, place: PlanPoint, steps: Sequence[Step]) -> None:
        self.threads[place.rank, place.stream] += ((place, step) for step in steps)

    def event(self, *key: object) -> int:
        return self.events.setdefault(key, len(self.events))

    def steps(self, rank: RankInCall, i: Instruction) -> list[Step]:
        match i.op:
            case Op.FENCE:
                return [Step(Do.FENCE)]
            case Op.FLUSH | Op.INVALIDATE:
                do = Do.FLUSH if i.op == Op.FLUSH else Do.INVALIDATE
                return [Step(do, self.line(*line)) for line, _, _ in rank.lines(i.a, i.nbytes)]
            case Op.RECORD | Op.AWAIT:
                do = Do.RECORD if i.op == Op.RECORD else Do.AWAIT
                return [Step(do, self.event("of the plan", rank.call, rank.part.rank, i.arg))]
            case Op.SIGNAL | Op.SIGNAL_DATA:
                stores = [self.stored(Do.STORE, self.payload(rank, i))] if _carries(i) else []
                return [*(self.data(rank, i) if i.op == Op.SIGNAL_DATA else []), *stores, self.ring(rank, i)]
            case Op.WAIT_ALL:
                return list(self.waits(rank, i))
            case Op.WAIT | Op.WAIT_DATA:
                loads = [Step(Do.LOAD, self.payload(rank, i))] if _carries(i) else []
                return [*self.waits(rank, i), *loads, *(self.data(rank, i) if i.op == Op.WAIT_DATA else [])]
        return self.data(rank, i)

    def data(self, rank: RankInCall, i: Instruction) -> list[Step]:
        steps = []
        for touch in rank.touches(i):
            for begin, end in self.pieces.of(touch.memory, touch.begin, touch.end):
                word = self.word(touch.memory, begin, end)
                if word is None:
                    continue
                if touch.do == Do.LOAD:
                    steps.append(Step(Do.LOAD, word))
                else:
                    nt = i.op == Op.WRITE_NT and not isinstance(touch.memory, Local)
                    steps.append(self.stored(Do.STORE_NT if nt else Do.STORE, word))
                    if isinstance(touch.memory, Local):  # or a search would go into whether the line was evicted
                        steps.append(Step(Do.FLUSH_KEEP, self.places.words[word].line))
        return steps

    def stored(self, do: Do, word: int) -> Step:
        self.versions[word] += 1
        return Step(do, word, self.versions[word])

    def ring(self, rank: RankInCall, i: Instruction) -> Step:
        epoch = rank.epoch + i.value
        return Step(Do.SIGNAL, self.flag(i.arg, epoch), epoch)

    def waits(self, rank: RankInCall, i: Instruction) -> Iterator[Step]:
        epoch = rank.epoch + i.value
        if i.op != Op.WAIT_ALL:
            yield Step(Do.WAIT, self.flag(i.arg, epoch), epoch)
        elif epoch > 0:  # before the first round there was nothing to wait for
            yield from (Step(Do.WAIT, self.flag(bell, epoch), epoch) for bell in rank.frame.groups[i.arg].doorbells)

    def come(self, rank: RankInCall) -> list[Step]:
        """Return the steps that publish a rank's sign, before a collective that moves nothing else ..."""
        word = self.sign(rank.call, rank.part.rank)
        return [Step(Do.STORE, word, 1), Step(Do.FLUSH, self.places.words[word].line), Step(Do.FENCE)]

    def meet(self, rank: RankInCall) -> list[Step]:
        """... and the steps that look at the others' signs after it."""
        words = [self.sign(rank.call, peer) for peer in range(self.layout.ranks) if peer != rank.part.rank]
        look = ((Step(Do.INVALIDATE, self.places.words[w].line), Step(Do.LOAD, w, expect=1)) for w in words)
        return [step for steps in look for step in steps]

    # -- places

    def line(self, card: int, line: int) -> int:
        return self.places.line((card, line), f"line {line} of card {card}")

    def word(self, memory: Local | tuple[int, int], begin: int, end: int) -> int | None:
        if isinstance(memory, Local):
            if (memory, begin, end) not in self.shared:
                return None
            name = f"{memory.name}[{begin}:{end}] of rank {memory.rank} in call {memory.call}"
            return self.places.word((memory, begin), name, self.places.line((memory, begin), name))
        return self.places.word((memory, begin), f"bytes {begin}..{end - 1} of card {memory[0]}", self.line(*memory))

    def flag(self, doorbell: int, epoch: int) -> int:
        card, offset = self.layout.doorbell_address(doorbell, epoch)
        name = self.layout.doorbell_name(doorbell)
        if doorbell < self.layout.published_count:
            name += f" of slot {epoch % self.layout.slots}"
        return self.places.word(("flag", card, offset), name, self.line(card, offset // LINE_BYTES))

    def payload(self, rank: RankInCall, i: Instruction) -> int:
        flag = self.places.words[self.flag(i.arg, rank.epoch + i.value)]
        return self.places.word(("payload", flag.name), f"payload of {flag.name}", flag.line)

    def sign(self, call: int, rank: int) -> int:
        name = f"sign of rank {rank} in call {call}"
        return self.places.word(name, name, self.places.line(name, name))

    # -- versions

    def expect(self, order: Sequence[PlanPoint]) -> None:
        """Make every load expect what it sees in this order."""
        steps: defaultdict[PlanPoint, list[int]] = defaultdict(list)
        for thread in self.threads.values():
            for index, (place, _) in enumerate(thread):
                steps[place].append(index)
        shows: defaultdict[int, int] = defaultdict(int)
        for place in order:
            thread = self.threads[place.rank, place.stream]
            for index in steps[place]:
                step = thread[index][1]
                if step.do in (Do.STORE, Do.STORE_NT):
                    shows[step.place] = step.value
                elif step.do == Do.LOAD:
                    thread[index] = (place, step._replace(expect=shows[step.place]))


def _carries(i: Instruction) -> bool:
    """Whether a doorbell's line has a payload for an instruction: bytes, or the places of arrays."""
    return i.op in (Op.SIGNAL_DATA, Op.WAIT_DATA) or bool(i.flags & Flag.PLACES)


def _instructions(rank: RankInCall) -> Iterator[tuple[int, Instruction]]:
    for stream, records in enumerate(rank.part.streams):
        yield from ((stream, i) for i in records.instructions)
