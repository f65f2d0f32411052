"""Accelerators on NVLink: the rate of two of them, collectives, and products fused with a reduce-scatter.

No config is of H100: theirs is that of H800, whose NVLink alone differs.
"""

from collections.abc import Iterator

from collectives.defaults import AUTO
from collectives.fused.choice import Operator
from collectives.sizes import busbw_gbytes_per_s
from collectives.sweep.sweep import Sweep
from collectives.sweep.virtual.in_switch import in_switch_ns
from collectives.sweep.virtual.simulated import Simulated, simulate_case
from cxlemu.cost.gemm import Product, fastest
from cxlemu.errors import ArgumentError
from cxlemu.plan import Call
from cxlemu.topology import Accelerator, Topology
from studies.published.flux_clusters import Clusters
from studies.validation import measured
from studies.validation.measured import Measurement

H100_NVLINK_GBYTES_PER_S = 450.0
LARGE, SYMMETRIC_BYTES, GRAPH_BYTES = 8 << 30, 8, 64 << 10
TOKENS_BYTES = 256 << 20  # of a rank, to all experts
COLUMNS, DEPTH = 8192, 28672  # of the products
SIX_LINKS = 6 / 18  # of an H100's
FOUR_LINKS = 4 / 12  # of an A100's
Found = Iterator[tuple[Measurement, float, str]]  # what was measured, ours, and why it would be off

OWN_LIMITS = "the link as NCCL counts it, with the packets of its kernels"
KERNELS = "a link's full rate, which a kernel of a few blocks does not reach; its other costs are not published"
RINGS = "NCCL's constants, in a ring: the measured algorithm is not stated, and its LL loads flag and data at once"
ALONE = "the product alone: its launch and falling clocks are not modelled"
OTHER_ALGORITHM = "our plan of direct reads, at the rate that NCCL counts; the measured one is NCCL's ring"
ONE_HOP = "a launch in a graph and a hop of LL: the kernel's work before and after is not published"
DIRECT = "the measured call may have folded in the switch: ours reads the peer's vector"
FEW = "a link's rate if the switch folds; among so few GPUs the measured rate is that of NCCL's ring"
SMALL_FOLDED = "the latency in NCCL's planner: the measured kernel is another one"
FOLDED = "the share of a link that NVIDIA's planner assumes for folding in the switch"
RATED = "the collective copies at the link's full rate, which NCCL's kernels do not reach"
SHARED = (
    "tiles and copies share nothing here, so that a fused time is a lower bound: held_by_copies and "
    "slowed_by_copies of FLUX's kernels are not published"
)


def of_h100(topology: Topology) -> Topology:
    (link,) = topology.links
    return topology.model_copy(update={"links": (link.model_copy(update={"gbytes_per_s": H100_NVLINK_GBYTES_PER_S}),)})


def payload_gbytes_per_s(topology: Topology) -> float:
    """Return the payload of the first link in one direction, in GB/s."""
    return next(iter(topology.expanded.links)).payload_gbytes_per_s


def call(topology: Topology, collective: str, nbytes: int, ranks: int, variant: str = AUTO) -> Simulated:
    """Simulate a call, by default the plan that is taken by default."""
    (case,) = Sweep((collective,), [nbytes], variant=variant).cases(ranks)
    return simulate_case(topology, case)[0]


def in_switch_us(topology: Topology, ranks: int, nbytes: int) -> float:
    """Return the time of an all_reduce that the switch folds, in microseconds."""
    ns = in_switch_ns(topology, Call("all_reduce", "", ranks, nbytes, "f32", "sum"), nbytes)
    if ns is None:
        raise ArgumentError(f"no switch of {topology.name} folds")
    return ns / 1e3


def in_switch_busbw(topology: Topology, ranks: int) -> float:
    """Return the busbw of a large one, in GB/s."""
    return busbw_gbytes_per_s("all_reduce", ranks, LARGE / in_switch_us(topology, ranks, LARGE) / 1e3)


def tflop_per_s(chip: Accelerator, product: Product, start_ns: float = 0) -> float:
    """Return how fast products are that follow each other, or are started one by one if that takes longer."""
    return product.flops / max(fastest(chip, product).ns(chip.multiprocessors), start_ns) / 1e3


def of_a100(topology: Topology) -> Found:
    yield measured.PAIR, 2 * payload_gbytes_per_s(topology), OWN_LIMITS
    yield measured.FOUR_LINKS, FOUR_LINKS * payload_gbytes_per_s(topology), OWN_LIMITS
    for figure, ranks in ((measured.REDUCED_BY_EIGHT, 8), (measured.REDUCED_BY_TWO, 2)):
        yield figure, call(topology, "all_reduce", LARGE, ranks).busbw_gbytes_per_s, OTHER_ALGORITHM


def of_nccl(topology: Topology) -> Found:
    """Yield the figures of NCCL's rings on Hopper."""
    for collective, its in measured.OF_EIGHT.items():
        yield its, call(topology, collective, LARGE, 8).busbw_gbytes_per_s, RINGS
    for (ranks, nbytes), its in measured.BY_NCCL.items():
        yield its, call(topology, "all_reduce", nbytes, ranks).time_us, RINGS
    yield measured.EXCHANGED, call(topology, "all_to_all", LARGE, 4).busbw_gbytes_per_s, RINGS


def of_hopper(topology: Topology) -> Found:
    h100 = of_h100(topology)
    yield measured.NVLINK_H800, payload_gbytes_per_s(topology), OWN_LIMITS
    yield measured.NVLINK_H100, payload_gbytes_per_s(h100), OWN_LIMITS
    yield measured.NVLINK_H100_BOTH, 2 * payload_gbytes_per_s(h100), OWN_LIMITS
    yield measured.SYMMETRIC_8, call(topology.in_graph(), "all_reduce", SYMMETRIC_BYTES, 8).time_us, ONE_HOP
    yield measured.GRAPH_64K, call(h100.in_graph(), "all_reduce", GRAPH_BYTES, 2).time_us, DIRECT
    for ranks, figure in measured.IN_SWITCH_H100.items():
        yield figure, in_switch_busbw(h100, ranks), FEW
    yield measured.SIX_LINKS, 2 * SIX_LINKS * payload_gbytes_per_s(h100), OWN_LIMITS
    yield measured.TOKENS_NVLINK, call(topology, "all_to_all", TOKENS_BYTES, 8).busbw_gbytes_per_s, OWN_LIMITS
    for kib, (one_step, two_steps, folded) in measured.OF_SIX.items():
        for figure, variant in ((one_step, "staged-1"), (two_steps, "two_shot_crosswise-1")):
            yield figure, call(h100.in_graph(), "all_reduce", kib << 10, 6, variant).time_us, KERNELS
        yield folded, in_switch_us(h100, 6, kib << 10), SMALL_FOLDED
    yield measured.IN_SWITCH_H200, in_switch_busbw(h100, 8), FOLDED
    yield measured.IN_SWITCH_H800, in_switch_busbw(topology, 8), FOLDED


TUNED: dict[str, Clusters] = {}  # with the figures as shipped, whose tiles others keep


def of_products(topology: Topology, accelerator: Accelerator | None = None, start_ns: float = 0) -> Found:
    """Yield products of an H100, and of eight, unfused and fused, where others than the shipped keep their tiles."""
    chip = accelerator or Accelerator.load("h100-sxm")
    for shape, its in measured.GEMM.items():
        yield its, tflop_per_s(chip, Product(*shape), start_ns), ALONE
    for shape, its in measured.KERNELS.items():
        yield its, tflop_per_s(chip, Product(*shape)), ALONE
    yield measured.GEMM_A100, tflop_per_s(Accelerator.load("a100-sxm"), Product(8192, 8192, 8192)), ALONE
    shipped = TUNED.setdefault("h100", Clusters(None, lambda _: (of_h100(topology), Accelerator.load("h100-sxm"))))
    simulator = Clusters(shipped, lambda _: (of_h100(topology), accelerator)).simulator("h100")
    for rows, (unfused, fused) in measured.PRODUCTS.items():
        operator = Operator("gemm_reduce_scatter", rows, COLUMNS, DEPTH)
        tuned = shipped.shape("h100", operator)
        if accelerator is None:
            times = tuned.metrics.unfused_ns, tuned.metrics.fused_ns
        else:
            times = (
                simulator.run(simulator.fastest(operator, "unfused")).time_ns,
                simulator.fused_ns(operator, tuned.tuned.choice),
            )
        yield unfused, times[0] / 1e6, RATED
        yield fused, times[1] / 1e6, SHARED
