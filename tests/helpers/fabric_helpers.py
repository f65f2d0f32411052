"""Small fabrics and hand-written plans, whose times can be told with a pencil."""

from collections.abc import Mapping, Sequence
from fractions import Fraction

from cxlemu.cost import CostModel
from cxlemu.engines.virtual import VirtualCall, VirtualRun, simulate
from cxlemu.plan import Call, DoorbellGroup, Frame, Instruction, Layout, Op, Plan, RankPart, Region
from cxlemu.topology import Topology
from tests.helpers.by_hand import local, pool, streams

WAY_NS, CARD_NS = 140, 378  # 20 + 100 + 20 there; the card itself
LOAD_NS = 2 * WAY_NS + CARD_NS  # 658, CCCL's pool load


def ns(nbytes: int, gbytes_per_s: float) -> int:
    """Bytes by rate, rounded up: the only rounding there is."""
    return -(-Fraction(nbytes) // Fraction(str(gbytes_per_s)))


def fabric(
    hosts: int,
    cards: int,
    *,
    read: float = 22.5,
    write: float = 22.5,
    total: float | None = None,
    host_link: float = 63,
    card_link: float = 31.5,
    trunk: float | None = None,
    up: str = "",
    **costs: float,
) -> Topology:
    """Hosts and cards around one switch, or two with a ``trunk`` between them. ``up``: more of the hosts' links."""
    far = "spine" if trunk else "leaf"
    lines = (
        ["costs:"] + [f"  {name}: {value if isinstance(value, int) else f'{value:f}'}" for name, value in costs.items()]
        if costs
        else []
    )
    links = f"""
  - {{name: up, ends: [hosts, leaf], gbytes_per_s: {host_link}, latency_ns: 20{up}}}
  - {{name: down, ends: [cards, {far}], gbytes_per_s: {card_link}, latency_ns: 20}}"""
    if trunk:
        links += f"\n  - {{name: trunk, ends: [leaf, spine], gbytes_per_s: {trunk}, latency_ns: 30}}"
    switches = "\n  - {name: leaf, port_latency_ns: 100}" + (
        "\n  - {name: spine, level: 2, port_latency_ns: 100}" if trunk else ""
    )
    text = f"""
name: pencil
hosts: {{count: {hosts}, memory: {{latency_ns: 100, read_gbytes_per_s: 100, write_gbytes_per_s: 100}}}}
cards:
  count: {cards}
  capacity_bytes: 128GiB
  latency_ns: {CARD_NS}
  read_gbytes_per_s: {read}
  write_gbytes_per_s: {write}
  total_gbytes_per_s: {total or read + write}
switches: {switches}
links: {links}
spaces:
  - {{name: pool, kind: cxl_pool, coherent: false, interleave_bytes: 64KiB}}
emulation: {{card_bytes: 32MiB}}
"""
    return Topology.parse(("\n".join(lines) + text).encode(), "pencil.yaml")


def write(region: int, nbytes: int) -> Instruction:
    return Instruction(Op.WRITE, nbytes=nbytes, dst=pool(region=region), a=local())


def read(region: int, nbytes: int) -> Instruction:
    return Instruction(Op.READ, nbytes=nbytes, dst=local(), a=pool(region=region))


Ranks = Sequence[Sequence[Sequence[Instruction]]]  # of each rank, of each stream, its instructions


def on_cards(cards: int) -> tuple[Region, ...]:
    """Region k lies on card k."""
    return tuple(Region(card, 1, 64, 0, 0, 1 << 32) for card in range(cards))


def plan(
    ranks: Ranks,
    cards: int,
    *,
    regions: tuple[Region, ...] | None = None,
    groups: tuple[DoorbellGroup, ...] = (),
    doorbells_per_rank: int = 8,
    rounds: int = 1,
    events: int = 0,
) -> Plan:
    """A plan of these instructions. Doorbell ``rank * doorbells_per_rank + k`` is published[rank][k]."""
    layout = Layout(len(ranks), cards, 4, 1 << 32, doorbells_per_rank, 1 << 16)
    frame = Frame(rounds, regions if regions is not None else on_cards(cards), groups)

    def build(rank: int) -> tuple[Frame, RankPart]:
        return frame, RankPart(rank, (), streams(ranks[rank]), events)

    return Plan(Call("pencil", "pencil", len(ranks), 0), layout, build)


def simulated(topology: Topology, ranks: Ranks, *, log: bool = False, calls: int = 1, **more: object) -> VirtualRun:
    cards = topology.card_count
    made = plan(ranks, cards, **more)  # type: ignore[arg-type]
    return simulate(CostModel.of(topology, len(ranks)), [VirtualCall(made)] * calls, log=log)


def ends(run: VirtualRun) -> list[int]:
    found: list[int] = run.end_ns[0].tolist()
    return found


def used(run: VirtualRun) -> Mapping[str, tuple[int, int, int]]:
    """Name -> bytes, busy and queue."""
    return {use.resource.name: (use.bytes, use.busy_ns, use.queue_ns) for use in run.uses}
