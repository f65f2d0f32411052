"""The model's figure beside each measured one. Topologies are as shipped, except that processors instead of
accelerators issue requests where processors were measured (`by_processors`), as many at once as a benchmark keeps
(processor.yaml), and that calls are launched in a graph and adapters are those of DGX Sparks where they were."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from collectives.sweep.sweep import Sweep
from collectives.sweep.virtual.simulated import simulate_case
from cxlemu.plan import Instruction, Kind, Op, Operand
from cxlemu.topology import Accelerator, Costs, Topology
from studies.published.rows import MISS
from studies.validation import measured
from studies.validation.accelerators import (
    FOLDED,
    OWN_LIMITS,
    call,
    in_switch_busbw,
    in_switch_us,
    of_a100,
    of_hopper,
    of_nccl,
    of_products,
    payload_gbytes_per_s,
)
from studies.validation.measured import SMALL, Measurement
from studies.validation.processor import Processor
from studies.validation.sparks import of_sparks
from studies.validation.streams import Requests, by_processors, ends_ns, gbytes_per_s, requests_ns

SWITCHED, NETWORK, NVLINK = "titan2-6xcz120", "infiniband-3xh100", "nvlink-8xa100"
GPUDIRECT, NDR, RACK, HOPPER = "infiniband-3xh100-gpudirect", "clusters-rdma", "nvl72", "nvlink-8xh800"
PCIE, RINGS, PRODUCTS = "pcie-8xa100", "nvlink-8xh100-nccl", "products"
ADAPTERS = 4  # of each host whose rings were measured together
RING_BYTES = 1 << 28
PORT = "card-x8"
EVERY = tuple(range(6))  # cards
DEPTHS = (1, 2, 4, 8, 16, 32)
PROCESSOR = "processor"
SMALL_REQUEST, REQUEST, COUNT = 64, 4096, 400
LARGE = 1 << 20
GATHERED_BYTES = 1 << 30  # for 16 GiB: busbw does not change any more
OTHER_CARD = "the card of CCCL's test bed: the bandwidth of this one's controller and memory is not published"
OTHER_SWITCH = "CCCL's figure: measurements behind switches of one maker reach from 0.22 to 0.75 us"
TO_EXPERTS = "an adapter's rate: NCCL's grouped sends would be slower, and the library has kernels of its own"
LOADS = "the link's rate, with packets of 256 B: the number of loads under way is not published"


@dataclass(frozen=True, slots=True)
class Validated:
    measured: Measurement  # what others measured
    config: str  # the topology that ours is of
    ours: float  # the model's figure, in the same unit
    why: str = ""  # why it is off; for a miss only

    @property
    def relative_error(self) -> float:
        """Ours by the nearer end of what was measured, less 1; 0 within it."""
        return self.ours / min(max(self.ours, self.measured.low), self.measured.high) - 1

    @property
    def missed(self) -> bool:
        return abs(self.relative_error) > MISS


@dataclass(frozen=True, slots=True)
class Beside:
    """64 B reads beside this many 4 KiB reads under way at once, through one port."""

    at_once: int  # how many 4 KiB reads are under way
    alone_gbytes_per_s: float  # of these reads, with no other traffic
    kept: float  # the share of it that they keep beside 64 B reads
    slower: float  # how much longer a 64 B read takes than alone


def beside(topology: Topology, at_once: int, small_at_once: int = 1) -> Beside:
    """Read 64 B on one host while another keeps 4 KiB reads under way, all from one card."""
    large = [Requests(0, 0, REQUEST, COUNT)] * at_once
    small = Requests(1, 0, SMALL_REQUEST, COUNT)
    alone = gbytes_per_s(topology, large)
    small_ns = requests_ns(topology, [small])[0]
    together = requests_ns(topology, [*large, *[small._replace(times=COUNT // 20)] * small_at_once])[-1]
    many = small._replace(times=COUNT * 2)  # 64 B reads last longer than 4 KiB ones
    large_ns = max(requests_ns(topology, [*large, *[many] * small_at_once])[:at_once])
    return Beside(at_once, alone, at_once * REQUEST / large_ns / alone, together / small_ns)


class Study:
    """All figures, each computed when it is first asked for."""

    def __init__(
        self,
        machines: Mapping[str, Topology] | None = None,
        accelerator: Accelerator | None = None,
        processor: Processor | None = None,
    ) -> None:
        """Compute the figures of configs, an H100 and a processor as shipped, or of others in their places."""
        self._machines, self._accelerator = dict(machines or {}), accelerator
        self.processor = processor or Processor.load(PROCESSOR)

    def machine(self, config: str) -> Topology:
        if config not in self._machines:
            self._machines[config] = Topology.load(config)
        return self._machines[config]

    @cached_property
    def switched(self) -> Topology:
        return by_processors(self.machine(SWITCHED))

    @cached_property
    def curve(self) -> list[Beside]:
        return [beside(self.switched, at_once) for at_once in DEPTHS]

    @cached_property
    def blocking(self) -> Beside:
        """The same beside a benchmark's reads, where the port's link takes in one and blocks what is behind it."""
        links = tuple(
            link.model_copy(update={"buffer_bytes": REQUEST}) if link.name == PORT else link
            for link in self.switched.links
        )
        return beside(self.switched.model_copy(update={"links": links}), self.processor.reads_at_once)

    @property
    def queued_bytes(self) -> float:
        """What must stand before a 64 B read that takes as long as measured, by Little's law: the rate by the time."""
        full = self.curve[-1].alone_gbytes_per_s
        return full * (measured.SLOWER.low - 1) * requests_ns(self.switched, [Requests(0, 0, SMALL_REQUEST, 1)])[0]

    @cached_property
    def rows(self) -> list[Validated]:
        """Every figure, in the order of the table."""
        return [row for config in PARTS for row in self.rows_of(config)]

    def rows_of(self, config: str) -> list[Validated]:
        return [row for part in PARTS[config] for row in part(self)]

    def _ports(self) -> list[Validated]:
        at_once = self.processor.reads_at_once
        one = beside(self.switched, at_once, self.processor.small_reads_at_once)
        streams = ((measured.TWO_STREAMS, Op.READ), (measured.WRITE_STREAMS, Op.WRITE))
        two = [Requests(host, 0, REQUEST, COUNT) for host in (0, 1) for _ in range(at_once)]
        of_two = {op: gbytes_per_s(self.switched, [its._replace(op=op) for its in two]) / 2 for _, op in streams}
        rates = [
            gbytes_per_s(self.switched, [Requests(0, card, LARGE, 40, op) for card in cards for _ in range(2)])
            for cards, op in (((0,), Op.READ), ((0,), Op.WRITE), ((0, 1), Op.READ), (EVERY, Op.READ))
        ]
        stores = [Requests(0, card, LARGE, 40, Op.WRITE) for card in EVERY for _ in range(2)]
        first = int(self.processor.lines_read_first * LARGE)
        loads = [part._replace(op=Op.READ, nbytes=first) for part in stores if first]
        ends = ends_ns(self.switched, [(0, its.program()) for its in (*stores, *loads)])
        stored_gbytes_per_s = len(stores) * 40 * LARGE / max(ends)
        stored = (
            "the port's rate: how many writes a processor keeps under way, and whether it reads each line before, is "
            "not published"
        )
        queue = (
            f"with {at_once} reads of 4 KiB under way; the real number, which decides the wait of a 64 B read, is "
            "not published"
        )
        return [
            Validated(measured.PORT_READ, SWITCHED, rates[0]),
            Validated(measured.PORT_WRITE, SWITCHED, rates[1]),
            Validated(measured.TWO_PORTS, SWITCHED, rates[2]),
            Validated(measured.HOST_READ, SWITCHED, rates[3]),
            Validated(measured.HOST_WRITE, SWITCHED, stored_gbytes_per_s, stored),
            Validated(measured.MIXED, SWITCHED, self._mixed_gbytes_per_s(2, 1, self.switched)),
            *(
                Validated(its, SWITCHED, self._mixed_gbytes_per_s(*mix, self._other_card()), OTHER_CARD)
                for mix, its in measured.OTHER_CARD.items()
            ),
            *(Validated(its, SWITCHED, of_two[op]) for its, op in streams),
            Validated(measured.KEPT, SWITCHED, one.kept),
            Validated(measured.SLOWER, SWITCHED, one.slower, queue),
        ]

    def _other_card(self) -> Topology:
        (card,) = self.switched.cards
        its = card.model_copy(update={"total_gbytes_per_s": self.processor.other_card_gbytes_per_s})
        return self.switched.model_copy(update={"cards": (its,)})

    def _mixed_gbytes_per_s(self, reads: int, writes: int, topology: Topology) -> float:
        """What 32 streams that read and write one card in turn have together, in GB/s."""
        asked = Requests(0, 0, REQUEST, reads).program() + Requests(0, 0, REQUEST, writes, Op.WRITE).program()
        asked *= COUNT // 2
        return 32 * REQUEST * len(asked) / max(ends_ns(topology, [(0, asked)] * 32))

    def _processors(self) -> list[Validated]:
        thread = Costs(
            to_pool_gbytes_per_s=self.processor.thread_write_gbytes_per_s,
            from_pool_gbytes_per_s=self.processor.thread_read_gbytes_per_s,
            flush_line_ns=self.processor.flush_line_ns,
        )
        machine = by_processors(self.switched, thread)
        stored = [*Requests(0, 0, 16 << 10, 1, Op.WRITE).program(), Instruction(Op.FENCE)]
        read = Requests(0, 0, 16 << 10, 1).program()
        flush = Instruction(Op.FLUSH, nbytes=16 << 10, a=Operand(Kind.REGION))
        write = Instruction(Op.WRITE, nbytes=8, dst=Operand(Kind.REGION), a=Operand(Kind.BUFFER))
        steps = [(0, [write, Instruction(Op.SIGNAL, arg=0)]), (1, [Instruction(Op.WAIT, arg=0)])]
        message_ns = ends_ns(self.switched, steps)[1]
        copies = self.machine(SWITCHED).costs.model_copy(update={"call_ns": None})  # no collective is launched
        gpu = by_processors(self.switched, copies)
        (copied_ns,) = ends_ns(gpu, [(0, Requests(0, 0, 64 << 10, 1).program())])
        flushed = "the time to flush a line of CXL memory is not published: here, the time on DRAM"
        # one line carries the bytes and the flag, so that nothing is fenced between them; a line that is stored through
        # the caches is read before, and written back when it is flushed
        load_ns = requests_ns(self.switched, [Requests(0, 0, 64, 1)])[0]
        switch_ns = 2 * (self.switched.switches[0].port_latency_ns + self.switched.links[0].latency_ns)
        return [
            Validated(measured.LOAD, SWITCHED, load_ns / 1e3),
            Validated(measured.TITAN_LOAD, SWITCHED, load_ns / 1e3, OTHER_SWITCH),
            Validated(measured.OTHER_LOAD, SWITCHED, (load_ns - switch_ns) / 1e3, OTHER_CARD),
            Validated(measured.STORED, SWITCHED, ends_ns(machine, [(0, stored)])[0] / 1e3),
            Validated(
                measured.FLUSHED_WRITE, SWITCHED, ends_ns(machine, [(0, [*read, flush, *stored])])[0] / 1e3, flushed
            ),
            Validated(measured.FLUSHED_READ, SWITCHED, ends_ns(machine, [(0, [flush, *read])])[0] / 1e3, flushed),
            Validated(measured.MESSAGE, SWITCHED, message_ns / 1e3),
            Validated(measured.ANSWERED, SWITCHED, 2 * message_ns / 1e3, "the server's work is left out"),
            Validated(measured.COPIED, SWITCHED, copied_ns / 1e3, "the time to start a copy is assumed"),
        ]

    def _network(self) -> list[Validated]:
        network = self.machine(NETWORK)
        sparks = of_sparks(network)
        bounced = "GB10 copies through its host's memory, at an unpublished cost"
        collected = nccl_us("all_gather", GATHERED_BYTES, network)
        return [
            Validated(measured.RDMA_READ, NETWORK, next(iter(network.expanded.links)).payload_gbytes_per_s),
            Validated(measured.GATHERED, NETWORK, GATHERED_BYTES / 2 / collected / 1e3),
            *(
                Validated(figure, NETWORK, nccl_us("all_reduce", nbytes, sparks if nbytes > 64 else network), bounced)
                for nbytes, figure in SMALL.items()
            ),
        ]

    def _adapters(self) -> list[Validated]:
        gpudirect = self.machine(GPUDIRECT)
        way_ns = gpudirect.load_latency_ns(0, 1)
        rings, pair = (
            call(gpudirect, "all_reduce", RING_BYTES, hosts).busbw_gbytes_per_s for hosts in (gpudirect.host_count, 2)
        )
        one_way_ns = (way_ns - gpudirect.card(1).latency_ns) / 2
        unnamed = "an adapter, a switch and a cable of HDR; the measured adapter is not named"
        return [
            Validated(measured.HDR_RINGS, GPUDIRECT, ADAPTERS * rings),
            Validated(measured.HDR_WRITE, GPUDIRECT, payload_gbytes_per_s(gpudirect)),
            Validated(measured.DGX_RINGS, GPUDIRECT, 2 * ADAPTERS * pair),
            Validated(measured.RDMA_LOAD, GPUDIRECT, way_ns / 1e3, unnamed),
            Validated(measured.RDMA_STORE, GPUDIRECT, one_way_ns / 1e3, unnamed),
        ]

    def _ndr(self) -> list[Validated]:
        ndr = self.machine(NDR)
        return [
            Validated(measured.NDR_RING, NDR, call(ndr, "all_gather", RING_BYTES, 2).busbw_gbytes_per_s),
            *(
                Validated(its, NDR, adapters * call(ndr, "all_reduce", RING_BYTES, hosts).busbw_gbytes_per_s)
                for (hosts, adapters), its in measured.NDR_RINGS.items()
            ),
            Validated(measured.TOKENS_RDMA, NDR, payload_gbytes_per_s(ndr), TO_EXPERTS),
            Validated(measured.NDR_WRITE, NDR, payload_gbytes_per_s(ndr)),
        ]

    def _nvlink_5(self) -> list[Validated]:
        rack = self.machine(RACK)
        return [
            Validated(measured.NVLINK_5, RACK, payload_gbytes_per_s(rack), OWN_LIMITS),
            Validated(measured.IN_SWITCH_B300, RACK, in_switch_busbw(rack, 8), FOLDED),
            Validated(measured.IN_SWITCH_B200, RACK, in_switch_busbw(rack, 8), FOLDED),
            *(
                Validated(its, RACK, in_switch_us(rack, 72, nbytes), FOLDED)
                for nbytes, its in measured.IN_SWITCH_72.items()
            ),
        ]

    def _pcie(self) -> list[Validated]:
        rate = payload_gbytes_per_s(self.machine(PCIE))
        ours = [(its, rate) for its in (measured.PCIE_4, *measured.PCIE_4_LOADS)]
        ours += [(its, 2 * rate) for its in (measured.PCIE_5_WRITE, measured.PCIE_5_READ)]
        return [Validated(its, PCIE, each, LOADS) for its, each in ours]

    def _a100(self) -> list[Validated]:
        return [Validated(figure, NVLINK, ours, why) for figure, ours, why in of_a100(self.machine(NVLINK))]

    def _hopper(self) -> list[Validated]:
        return [Validated(figure, HOPPER, ours, why) for figure, ours, why in of_hopper(self.machine(HOPPER))]

    def _nccl(self) -> list[Validated]:
        return [Validated(its, RINGS, ours, why) for its, ours, why in of_nccl(self.machine(RINGS))]

    def _products(self) -> list[Validated]:
        products = of_products(self.machine(HOPPER), self._accelerator, self.processor.matmul_ns)
        return [Validated(figure, PRODUCTS, ours, why) for figure, ours, why in products]


def nccl_us(collective: str, nbytes: int, topology: Topology | None = None) -> float:
    (case,) = Sweep((collective,), [nbytes]).cases(2)
    return simulate_case(topology or Topology.load(NETWORK), case, space="inboxes")[0].time_us


# by config, what is computed on it; products, which also depend on an accelerator, stand for themselves
PARTS: dict[str, tuple[Callable[[Study], list[Validated]], ...]] = {
    SWITCHED: (Study._ports, Study._processors),
    NETWORK: (Study._network,),
    GPUDIRECT: (Study._adapters,),
    NDR: (Study._ndr,),
    RACK: (Study._nvlink_5,),
    PCIE: (Study._pcie,),
    NVLINK: (Study._a100,),
    HOPPER: (Study._hopper,),
    RINGS: (Study._nccl,),
    PRODUCTS: (Study._products,),
}
