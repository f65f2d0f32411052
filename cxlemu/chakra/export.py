"""A plan's traffic as traces: ranks are endpoints 0, 1, ..., and the cards are endpoints after them.

Chakra knows messages, not memory, so what crosses the fabric becomes messages between a rank and a card:

    FLUSH, WRITE_NT   a SEND of the bytes to each card they lie on (what a flushed line brings is what was stored there)
    FENCE             a COMPLETION of one line back from each card that was written to since the last one
    SIGNAL            a SEND of the doorbell's line; WAIT a line from its card, sent when the doorbell has been rung
    READ, REDUCE      a REQUEST to each card, then the bytes back
    COMPUTE, REDUCE   a COMP node of as many operations as elements are combined

Cards hold what orders ranks: their nodes depend on each other across endpoints, so a simulator needs no notion of a
doorbell. Polls that find an old word, write-allocates and coherence are not in it. Every node depends on the one before
it in its stream.
"""

from collections import defaultdict
from dataclasses import dataclass, field

from cxlemu.chakra.files import Node
from cxlemu.chakra.schema import NodeType
from cxlemu.engines.streams import Binding, Blocked, Streams, run_in_turn
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import DTYPES, Instruction, Kind, Op, Operand, Plan, accesses

REQUEST_BYTES = 64  # a read request takes a slot of a flit; 64 bytes are the most that it takes on its way

_DTYPES = tuple(DTYPES.values())


@dataclass
class Endpoint:
    nodes: list[Node] = field(default_factory=list)

    def add(self, name: str, kind: NodeType, deps: tuple[int, ...], **attributes: int | str | bool) -> int:
        """Append a node that follows those of ``deps`` (negative ids are ignored); return its id."""
        number = len(self.nodes)
        needed = tuple(sorted({dep for dep in deps if dep >= 0}))
        self.nodes.append(Node(number, name, kind, needed, attributes={"is_cpu_op": False, **attributes}))
        return number


@dataclass
class ExportedFabric:
    ranks: int
    endpoints: list[Endpoint]
    _tags: defaultdict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))
    rung: dict[tuple[int, int], int] = field(default_factory=dict)  # doorbell, epoch: the card's node that took it
    shows: dict[int, int] = field(default_factory=dict)  # doorbell: newest epoch

    def first_ring(self, doorbell: int, epoch: int) -> int:
        """Return the card's node that first let the doorbell show ``epoch`` or a later one."""
        epochs = range(epoch, self.shows[doorbell] + 1)
        return next(self.rung[doorbell, epoch] for epoch in epochs if (doorbell, epoch) in self.rung)

    def send(
        self, source: int, target: int, nbytes: int, name: str, after: tuple[int, ...], there: tuple[int, ...] = ()
    ) -> tuple[int, int]:
        """Append a SEND at its source and a RECV at its target; return both ids."""
        tag = self._tags[source, target]
        self._tags[source, target] += 1
        about = {"comm_src": source, "comm_dst": target, "comm_tag": tag, "comm_size": nbytes}
        sent = self.endpoints[source].add(f"{name} to {target}", NodeType.COMM_SEND, after, **about)
        received = self.endpoints[target].add(f"{name} from {source}", NodeType.COMM_RECV, there, **about)
        return sent, received


@dataclass
class TracedRank(Streams):
    """Executes one rank's part on no memory, and writes down what crosses the fabric."""

    fabric: ExportedFabric = field(kw_only=True)
    _last: dict[int, int] = field(init=False, default_factory=dict)  # stream: its newest node
    _stream: int = field(init=False, default=0)
    _happened: dict[int, int] = field(init=False, default_factory=dict)  # event: the node that it follows
    _unfenced: defaultdict[int, list[int]] = field(init=False, default_factory=lambda: defaultdict(list))  # by card

    def step(self, stream: int) -> Blocked | None:
        """Take the next step of a stream, whose nodes follow each other."""
        self._stream = stream
        return super().step(stream)

    @property
    def _after(self) -> tuple[int, ...]:
        return (self._last.get(self._stream, -1),)

    def execute(self, instruction: Instruction) -> Blocked | None:
        """Append an instruction's nodes; a wait that is not satisfied returns what it waits for."""
        i = instruction
        match i.op:
            case Op.FLUSH:
                self._push(i.a, i)
            case Op.WRITE_NT:
                self._push(i.dst, i)
            case Op.FENCE:
                self._fence()
            case Op.SIGNAL | Op.SIGNAL_DATA:
                self._signal(i)
            case Op.WAIT | Op.WAIT_DATA | Op.WAIT_ALL:
                return self._wait(i)
            case Op.READ | Op.REDUCE | Op.REDUCE_LOCAL | Op.COMPUTE:
                for operand in (i.a, i.b, i.c):
                    if operand.kind == Kind.REGION:
                        self._pull(operand, i)
                if i.op != Op.READ:
                    self._compute(i)
            case Op.RECORD:
                self.events.add(i.arg)
                self._happened[i.arg] = self._last.get(self._stream, -1)
            case Op.AWAIT:
                if i.arg not in self.events:
                    return Blocked("", 0, i)
                self._last[self._stream] = max(self._last.get(self._stream, -1), self._happened[i.arg])
        return None

    def _cards(self, operand: Operand, nbytes: int) -> dict[int, int]:
        cards: defaultdict[int, int] = defaultdict(int)
        for extent in self.frame.regions[operand.id].map.extents(operand.offset, nbytes):
            cards[extent.card] += extent.nbytes
        return dict(cards)

    def _push(self, operand: Operand, i: Instruction) -> None:
        for card, nbytes in self._cards(operand, i.nbytes).items():
            there = self.fabric.ranks + card
            sent, received = self.fabric.send(self.part.rank, there, nbytes, i.op.name, self._after)
            self._last[self._stream] = sent
            self._unfenced[card].append(received)

    def _fence(self) -> None:
        for card, received in self._unfenced.items():
            node = self.fabric.ranks + card
            _, done = self.fabric.send(node, self.part.rank, LINE_BYTES, "COMPLETION", tuple(received), self._after)
            self._last[self._stream] = done
        self._unfenced.clear()

    def _signal(self, i: Instruction) -> None:
        epoch = self.binding.epoch + i.value
        card, _ = self.binding.layout.doorbell_address(i.arg, epoch)
        node = self.fabric.ranks + card
        sent, received = self.fabric.send(self.part.rank, node, LINE_BYTES, i.op.name, self._after)
        self._last[self._stream] = sent
        self.fabric.rung[i.arg, epoch] = received
        self.fabric.shows[i.arg] = epoch

    def _wait(self, i: Instruction) -> Blocked | None:
        epoch, layout = self.binding.epoch + i.value, self.binding.layout
        group = accesses.doorbells(self.frame, i)
        for doorbell in group:
            shows = self.fabric.shows.get(doorbell, self.binding.epoch - 1)
            if shows < epoch:
                return Blocked("", 0, i, doorbell, layout.owner(doorbell), epoch, shows)
        for doorbell in group:
            if i.value < 0 or layout.owner(doorbell) == self.part.rank:
                continue  # rung in an earlier call, or by this rank itself
            card, _ = layout.doorbell_address(doorbell, epoch)
            node, rung = self.fabric.ranks + card, self.fabric.first_ring(doorbell, epoch)
            _, seen = self.fabric.send(node, self.part.rank, LINE_BYTES, i.op.name, (rung,), self._after)
            self._last[self._stream] = seen
        return None

    def _pull(self, operand: Operand, i: Instruction) -> None:
        for card, nbytes in self._cards(operand, i.nbytes).items():
            node = self.fabric.ranks + card
            sent, asked = self.fabric.send(self.part.rank, node, REQUEST_BYTES, "REQUEST", self._after)
            _, got = self.fabric.send(node, self.part.rank, nbytes, i.op.name, (asked,), (sent,))
            self._last[self._stream] = got

    def _compute(self, i: Instruction) -> None:
        operands = sum(operand.kind != Kind.NONE for operand in (i.a, i.b, i.c))
        elements = i.nbytes // _DTYPES[i.dtype].itemsize
        operations = elements * max(operands - 1, 1)
        endpoint = self.fabric.endpoints[self.part.rank]
        self._last[self._stream] = endpoint.add(
            i.op.name, NodeType.COMP, self._after, num_ops=operations, tensor_size=i.nbytes
        )


def traffic(plan: Plan) -> list[list[Node]]:
    """Return the traces of one call of a plan that no other call precedes: all ranks', then all cards'."""
    layout = plan.layout
    fabric = ExportedFabric(plan.ranks, [Endpoint() for _ in range(plan.ranks + layout.cards)])
    binding = Binding(layout, base=0, epoch=layout.slots + 1, tag=plan.call.tag())
    run_in_turn([TracedRank(plan.call, plan.frame, part, binding, fabric=fabric) for part in plan.parts])
    return [endpoint.nodes for endpoint in fabric.endpoints]
