"""Requests served by instances in virtual time: discrete events in integer nanoseconds, in a total order.

A request goes to the instance with the least to do. There it reuses the blocks of its prompt that the accelerators'
memory has, then those that the store has, which are read before the rest is computed. What was computed is written to
the store behind the computation. With prefill and decoding apart, all of a prompt's keys and values go through the
store's place to the instance that answers: written there, then read.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from cxlemu.cost import CostModel
from cxlemu.engines.shared import SharedFabric
from cxlemu.errors import ArgumentError
from cxlemu.topology import Topology
from studies.choices import BATCH_REQUESTS, CHUNK_TOKENS
from studies.serving.events import COLD, CRASH, LOSE_CARD, Incident
from studies.serving.instance import BOTH, DECODE, PREFILL, Instance, Served
from studies.serving.iterations import Iterations
from studies.serving.movement import BlockMove, Movement
from studies.serving.places import SHARED, KvStore, StoreHome, weights_home
from studies.serving.requests import BLOCK_TOKENS, ServingRequest

WEIGHTS_STEP_BYTES = 64 << 20


@dataclass(frozen=True)
class ServingSetup:
    topology: Topology
    iterations: Iterations
    place: str
    capacity_bytes: int | None = None
    prefill: int = 0  # of the instances, how many only compute prompts; the others then only answer
    chunk: int = CHUNK_TOKENS
    most: int = BATCH_REQUESTS
    route: str = "balance"
    warm: bool = False  # the store has all blocks that come again from the start, as far as it has room
    incidents: Sequence[Incident] = ()


@dataclass
class Simulation:
    """One run; `run` it once, or `begin` it on a fabric that others use as well."""

    setup: ServingSetup
    served: list[Served]
    fabric: SharedFabric | None = None
    ranks: range | None = None  # of the fabric's
    happened: list[Incident] = field(default_factory=list)
    unwritten: int = 0  # blocks for which the store had no room, as all it holds was in use

    def __post_init__(self) -> None:
        topology, setup = self.setup.topology, self.setup
        ranks = range(topology.host_count * topology.hosts.ranks_per_host) if self.ranks is None else self.ranks
        self._fabric = self.fabric or SharedFabric(CostModel.of(topology, len(ranks)))
        self._schedule, self.model = self._fabric.schedule, self._fabric.model
        self.hosts = tuple(dict.fromkeys(self.model.hosts[rank] for rank in ranks))
        self.place = KvStore(setup.place, self.model, self.hosts, setup.iterations.block_bytes, setup.capacity_bytes)
        self.instances = _instances(setup, self.model, ranks)
        self.movement = Movement(self._fabric.transfers, self._schedule)
        self._open = len(self.served)
        self._writing: set[tuple[int, int]] = set()  # home and block
        self._unrouted: deque[Served] = deque()

    # --- time ---------------------------------------------------------------------------------------------------------

    @property
    def now_ns(self) -> int:
        """When the last thing happened."""
        return self._fabric.now_ns

    @property
    def over(self) -> bool:
        """Whether every request is served or refused."""
        return not self._open

    def run(self, seen: Callable[[int], None] | None = None) -> None:
        """Run until it is over, or nothing is left that could happen; ``seen`` hears how many requests are through."""
        self.begin()
        saying = None if seen is None else lambda _: seen(len(self.served) - self._open)
        self._fabric.run(lambda: not self.over, saying)

    def begin(self) -> None:
        """Schedule all requests and incidents."""
        if self.setup.warm:
            self._warm()
        for incident in self.setup.incidents:
            if incident.kind == COLD and not self._crashes_before(incident):
                for instance in self._of_host(incident.number):
                    instance.alive = False
            self._schedule(incident.at_ns, partial(self._incident, incident))
        for reply in self.served:
            self._schedule(reply.request.arrival_ns, partial(self._route, reply))

    # --- requests -----------------------------------------------------------------------------------------------------

    def _route(self, its: Served, now_ns: int) -> None:
        self._send(its, PREFILL, now_ns)

    def _send(self, its: Served, role: str, now_ns: int) -> None:
        chosen = self._choose(its, role)
        if chosen is None:
            if any(instance.fits(its.request) for instance in self.instances if instance.role in (BOTH, role)):
                self._hold(its)
            else:
                its.refused = True
                self._open -= 1
            return
        chosen.take(its)
        self._go_on(chosen, now_ns)

    def _choose(self, its: Served, role: str) -> Instance | None:
        def cost(instance: Instance) -> tuple[int, int]:
            known = 0
            if self.setup.route == "prefix":
                known = its.request.tokens_of(instance.memory.prefix(its.request.blocks))
            return instance.load - known, instance.number

        there = [
            instance
            for instance in self.instances
            if instance.alive and instance.role in (BOTH, role) and instance.fits(its.request)
        ]
        return min(there, key=cost, default=None)

    def _go_on(self, one: Instance, now_ns: int) -> None:
        """Admit what there is room for, and begin the next iteration."""
        while one.alive and (reply := one.admit()) is not None:
            self._fetch(one, reply, now_ns)
        if one.alive and not one.busy and (ns := one.begin()) is not None:
            self._schedule(now_ns + ns, partial(self._iterated, one, one.memory))

    def _iterated(self, one: Instance, memory: object, now_ns: int) -> None:
        if not one.alive or one.memory is not memory:
            return  # its host crashed meanwhile
        through, ended = one.end()
        for reply in ended:
            one.answered(reply)
            self._end(reply, now_ns)
        for reply in through:
            reply.first_ns = now_ns if reply.first_ns is None else reply.first_ns
            one.share(reply, [block for block in reply.request.blocks if block not in reply.kept])
            self._store(one, reply, now_ns)
            if reply.request.output_tokens == 1:
                one.leave(reply)
                self._end(reply, now_ns)
            elif one.role == BOTH:
                one.answer(reply)
            else:
                self._hand_over(one, reply, now_ns)
        self._go_on(one, now_ns)

    def _end(self, its: Served, now_ns: int) -> None:
        its.end_ns = now_ns
        self._open -= 1

    # --- the store ----------------------------------------------------------------------------------------------------

    def _nbytes(self, its: Served, index: int) -> int:
        tokens = its.request.tokens_of(index + 1) - its.request.tokens_of(index)
        return tokens * self.setup.iterations.model.kv_bytes

    def _fetch(self, one: Instance, its: Served, now_ns: int) -> None:
        """Read what the store has of a prompt, behind what the accelerators' memory has, then let it be computed."""
        if one.role == DECODE:
            self._receive(one, its, now_ns)
            return
        first, found = len(its.kept), []
        for block in its.request.blocks[first:]:
            home = self.place.home(block, one.host)
            if home is None or block not in home.cache:
                break
            found.append((home, block))
        if not found or its.ready == its.request.input_tokens - 1:
            one.prompts.append(its)
            return
        for home, block in found:
            home.cache.use([block])

        def give_back() -> None:
            for home, block in found:
                home.cache.leave([block])

        def loaded(now_ns: int) -> None:
            give_back()
            one.share(its, [block for _, block in found])
            ready = min(its.request.tokens_of(first + len(found)), its.request.input_tokens - 1)
            its.from_store, its.ready = ready - its.ready, ready
            one.prompts.append(its)
            self._go_on(one, now_ns)

        def failed(now_ns: int) -> None:
            one.prompts.append(its)
            self._go_on(one, now_ns)

        steps = deque((home, self._nbytes(its, first + index)) for index, (home, _) in enumerate(found))
        self.movement.add(BlockMove(one.ranks_of(its), steps, False, loaded, give_back, failed), now_ns)

    def _store(self, one: Instance, its: Served, now_ns: int) -> None:
        """Write those blocks of a prompt to the store that it does not have."""
        for index, block in enumerate(its.request.blocks):
            home = self.place.home(block, one.host)
            if home is None or block in home.cache or (id(home.cache), block) in self._writing:
                continue
            if not home.cache.reserve(1):
                self.unwritten += 1
                continue
            self._writing.add((id(home.cache), block))
            give_back = partial(self._unwritten, home, block)
            written = partial(self._written, home, block)
            steps = deque([(home, self._nbytes(its, index))])
            self.movement.add(BlockMove(one.ranks_of(its), steps, True, written, give_back), now_ns)

    def _warm(self) -> None:
        counts = Counter(block for reply in self.served for block in reply.request.blocks)
        for block, count in counts.items():
            if count > 1:
                for host in self.hosts if self.place.kind == "host" else self.hosts[:1]:
                    home = self.place.home(block, host)
                    if home is not None and block not in home.cache and home.cache.held < home.cache.capacity:
                        home.cache.reserve(1)
                        self._written(home, block, 0)

    def _written(self, home: StoreHome, block: int, now_ns: int) -> None:
        self._writing.discard((id(home.cache), block))
        if home.cache.share([block]):
            home.cache.leave([block])

    def _unwritten(self, home: StoreHome, block: int) -> None:
        self._writing.discard((id(home.cache), block))
        home.cache.release(1)

    # --- prefill and decoding apart -----------------------------------------------------------------------------------

    def _hand_over(self, one: Instance, its: Served, now_ns: int) -> None:
        """Write a prompt's keys and values where the instance that answers reads them."""
        target = self._choose(its, DECODE)
        home = None if target is None else self.place.near(target.host)
        if home is None:
            one.leave(its)
            self._hold(its)
            return

        def sent(now_ns: int) -> None:
            one.leave(its)
            self._send(its, DECODE, now_ns)
            self._go_on(one, now_ns)

        failed = partial(self._undelivered, one, its)
        self.movement.add(BlockMove(one.ranks_of(its), self._prompt(its, home), True, sent, _nothing, failed), now_ns)

    def _receive(self, one: Instance, its: Served, now_ns: int) -> None:
        home = self.place.near(one.host)
        if home is None:
            one.leave(its)
            self._hold(its)
            return

        def received(now_ns: int) -> None:
            one.share(its, [block for block in its.request.blocks if block not in its.kept])
            one.answer(its)
            self._go_on(one, now_ns)

        failed = partial(self._undelivered, one, its)
        self.movement.add(
            BlockMove(one.ranks_of(its), self._prompt(its, home), False, received, _nothing, failed), now_ns
        )

    def _prompt(self, its: Served, home: StoreHome) -> deque[tuple[StoreHome, int]]:
        count = -(-its.request.input_tokens // BLOCK_TOKENS)
        return deque((home, self._nbytes(its, index)) for index in range(count))

    # --- incidents ----------------------------------------------------------------------------------------------------

    def _incident(self, its: Incident, now_ns: int) -> None:
        if {CRASH: self._crash, LOSE_CARD: self._lose_card, COLD: self._start}[its.kind](its.number, now_ns):
            self.happened.append(its)

    def _crash(self, host: int, now_ns: int) -> bool:
        lost: list[Served] = []
        mine = [instance for instance in self._of_host(host) if instance.alive]
        gone = self.place.homes[host] if self.place.kind in ("host", "rdma") else None
        for one in mine:
            for move in self.movement.of(one.ranks):
                self.movement.end_early(move)
            lost += one.lose()
        self.place.lose_host(host)
        if gone is not None:
            self._fail(gone, now_ns)
        for reply in lost:
            self._again(reply, now_ns)
        return bool(mine)

    def _lose_card(self, card: int, now_ns: int) -> bool:
        lost = self.place.lose_card(card)
        if lost is not None:
            self._fail(lost, now_ns)
        return lost is not None

    def _fail(self, home: StoreHome, now_ns: int) -> None:
        for move in self.movement.through(home):
            self.movement.end_early(move)
            if move.failed is not None:
                move.failed(now_ns)

    def _undelivered(self, one: Instance, its: Served, now_ns: int) -> None:
        one.leave(its)
        self._again(its, now_ns)
        self._go_on(one, now_ns)

    def _again(self, its: Served, now_ns: int) -> None:
        """Let a request begin again, with its prompt; the time of its first token stays."""
        its.restarts += 1
        its.begin()
        self._schedule(now_ns, partial(self._route, its))

    def _hold(self, its: Served) -> None:
        """Let a request wait until a host starts, as nobody is left who could serve it; it begins again then."""
        its.begin()
        self._unrouted.append(its)

    def _start(self, host: int, now_ns: int) -> bool:
        """Read the weights into a host's accelerators, which serve from then on."""
        if any(instance.alive for instance in self._of_host(host)):
            return False
        self.place.restore_host(host)
        for instance in self._of_host(host):
            home = weights_home(self.model, self.place, host)
            whole, rest = divmod(self.setup.iterations.weight_bytes, WEIGHTS_STEP_BYTES)
            steps = deque((home, nbytes) for nbytes in [WEIGHTS_STEP_BYTES] * whole + [rest] * bool(rest))
            self.movement.add(
                BlockMove(instance.ranks, steps, False, partial(self._started, instance), _nothing), now_ns
            )
        return True

    def _started(self, one: Instance, now_ns: int) -> None:
        one.alive = True
        waiting, self._unrouted = self._unrouted, deque()
        for reply in waiting:
            self._route(reply, now_ns)

    def _of_host(self, host: int) -> list[Instance]:
        return [instance for instance in self.instances if instance.host == host]

    def _crashes_before(self, its: Incident) -> bool:
        others = self.setup.incidents
        return any(one.kind == CRASH and one.number == its.number and one.at_ns < its.at_ns for one in others)


def _nothing() -> None:
    """Give nothing back."""


def _instances(setup: ServingSetup, model: CostModel, mine: range) -> list[Instance]:
    iterations, per_host = setup.iterations, setup.topology.hosts.ranks_per_host
    if per_host % iterations.ranks:
        degrees = f"tp={iterations.tensor}" + f" x ep={iterations.expert}" * (iterations.expert > 1)
        raise ArgumentError(
            f"{degrees} does not divide the accelerators of a host of {setup.topology.name}, {per_host}: give hosts a "
            "fitting ranks_per_host"
        )
    count = len(mine) // iterations.ranks
    if setup.prefill and not setup.prefill < count:
        raise ArgumentError(f"--prefill {setup.prefill} leaves none of {count} instances to answer")
    if setup.prefill and setup.place not in SHARED:
        raise ArgumentError(
            f"--prefill hands keys and values over through the store's place, which all hosts must reach: "
            f"--place {' or '.join(SHARED)}, not {setup.place}"
        )
    made = []
    for number in range(count):
        ranks = mine[number * iterations.ranks : (number + 1) * iterations.ranks]
        role = BOTH if not setup.prefill else PREFILL if number < setup.prefill else DECODE
        host = model.hosts[ranks[0]]
        made.append(Instance(number, host, ranks, role, iterations, setup.chunk, setup.most))
    return made


def with_hosts(topology: Topology, count: int) -> Topology:
    """Return a topology with another number of hosts, and all else as it is."""
    if topology.fabrics:
        raise ArgumentError(f"{topology.name} is made of fabrics, whose switches depend on the number of hosts")
    return topology.model_copy(update={"hosts": topology.hosts.model_copy(update={"count": count})})


def simulate(
    setup: ServingSetup, requests: Iterable[ServingRequest], seen: Callable[[int], None] | None = None
) -> Simulation:
    """Serve requests; ``seen`` hears now and then how many are through."""
    made = Simulation(setup, [Served(number, request) for number, request in enumerate(requests)])
    made.run(seen)
    return made
