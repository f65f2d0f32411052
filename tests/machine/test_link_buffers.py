"""Links whose buffers end: credits and head-of-line blocking, by pencil and paper; without them nothing changes."""

import pytest

from collectives.sweep.sweep import Sweep
from collectives.sweep.virtual.plans import model_cards, spoken
from cxlemu.cost import CostModel
from cxlemu.engines.virtual import VirtualCall, simulate
from cxlemu.errors import ConfigError
from cxlemu.topology import Link, Topology
from cxlemu.topology.shipped import shipped_configs
from tests.helpers.fabric_helpers import ends, read, simulated
from tests.helpers.tables import with_rows

SLOW, FAST = 1000, 100  # 1000 bytes at 1 and at 10 GB/s
# No links lead from everywhere to the space that is used here.
HAS_NO_WAY = {"mixed-2x4", "pod-1024-rdma", "racks-2x72-rdma"}
LOAD = 2 * (20 + 100 + 20) + 378


def two_hosts(buffer_bytes: str = "") -> Topology:
    """Two ranks on a host with a slow link, then two on one with a fast link; both read one fast card."""
    return Topology.parse(
        f"""
name: slow-neighbour
hosts: {{count: 2, ranks_per_host: 2, memory: {{latency_ns: 1, read_gbytes_per_s: 1, write_gbytes_per_s: 1}}}}
cards: {{count: 2, capacity_bytes: 1GiB, latency_ns: 378, read_gbytes_per_s: 10, write_gbytes_per_s: 10,
         total_gbytes_per_s: 10}}
switches: [{{name: leaf, port_latency_ns: 100}}]
links:
  - {{name: slow, ends: [host0, leaf], gbytes_per_s: 1, latency_ns: 20{buffer_bytes}}}
  - {{name: fast, ends: [host1, leaf], gbytes_per_s: 10, latency_ns: 20}}
  - {{name: down, ends: [cards, leaf], gbytes_per_s: 10, latency_ns: 20}}
spaces: [{{name: pool, kind: cxl_pool, coherent: false, interleave_bytes: 64KiB}}]
emulation: {{card_bytes: 32MiB}}
""".encode(),
        "slow.yaml",
    )


def reads(topology: Topology, *cards: int) -> list[int]:
    """When ranks are done that read 1000 bytes each, at once, from these cards: less the latency."""
    return [end - LOAD for end in ends(simulated(topology, [[[read(card, 1000)]] for card in cards]))]


def test_a_queue_without_end_blocks_nobody_else() -> None:
    """The card sends in turn, 100 ns each; the slow link takes 1000 each, which the fast host does not wait for."""
    assert reads(two_hosts(), 0, 0, 0, 0) == [SLOW, 2 * SLOW, 3 * FAST, 4 * FAST]


@with_rows((1000, 1000), (1500, 500), (500, 1000), (1899, 101), (1900, 100), (4000, 100))
def test_a_transfer_without_room_holds_the_link_that_it_came_over(buffer_bytes: int, entered: int) -> None:
    """The second read comes to the slow link at 100. It enters when all but buffer - 1000 bytes of the first one, which
    begins at 0, have left; until then it stands in the card's link, and passes that in 100 ns from then on."""
    blocked = entered + FAST
    third = max(blocked, 2 * FAST)
    topology = two_hosts(f", buffer_bytes: {buffer_bytes}")
    assert reads(topology, 0, 0, 0, 0) == [SLOW, 2 * SLOW, third + FAST, third + 2 * FAST]


def test_only_what_comes_over_the_same_link_waits() -> None:
    assert reads(two_hosts(", buffer_bytes: 1000"), 0, 0, 1, 1) == [SLOW, 2 * SLOW, FAST, 2 * FAST]


def test_blocking_goes_back_over_links_whose_buffers_end() -> None:
    """The card's link has a buffer of one transfer as well: the third stands in the card's reads until 1100 + 0."""
    topology = two_hosts(", buffer_bytes: 1000")
    down = next(link for link in topology.links if link.name == "down")
    links = tuple(link for link in topology.links if link is not down)
    both = topology.model_copy(update={"links": (*links, down.model_copy(update={"buffer_bytes": 1000}))})
    blocked = SLOW + FAST  # when the second has left the card's link
    assert reads(both, 0, 0, 0, 0) == [SLOW, 2 * SLOW, blocked + FAST, blocked + 2 * FAST]


def with_buffers(topology: Topology, buffer_bytes: int | None) -> Topology:
    """The same machine with its fabrics written out and such a buffer before each link."""
    switches, links = topology.expanded
    made: list[Link] = [link.model_copy(update={"buffer_bytes": buffer_bytes}) for link in links]
    return topology.model_copy(update={"switches": tuple(switches), "links": tuple(made), "fabrics": ()})


@pytest.mark.parametrize(
    "name",
    [
        "titan2-6xcz120",
        "infiniband-3xh100",
        "two-clusters",
        *(pytest.param(name, marks=pytest.mark.deep) for name in sorted(shipped_configs()) if name not in HAS_NO_WAY),
    ],
)
def test_a_buffer_that_is_never_full_changes_no_nanosecond(name: str) -> None:
    topology = Topology.load(name)
    ranks = min(topology.place_count, 12)
    for collective in ("all_gather", "all_reduce", "broadcast"):
        (case,) = Sweep((collective,), [64 << 10]).cases(ranks)
        machine, plan, _ = spoken(topology, case, None, topology.pool_space)
        found = []
        for buffer_bytes in (None, 1 << 40):
            its = with_buffers(machine, buffer_bytes)
            model = CostModel.of(its, ranks)
            calls = [VirtualCall(plan, cards=model_cards(model, plan, topology.pool_space))]
            run = simulate(model, calls)
            found.append((run.end_ns[0].tobytes(), run.exposed_wait_ns.tobytes(), run.instructions))
        assert found[0] == found[1]


@pytest.mark.parametrize(("value", "words"), [("0", "greater than 0"), ("2TiB", "less than or equal to")])
def test_a_buffer_that_cannot_be_is_refused(value: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        two_hosts(f", buffer_bytes: {value}")
    assert "links[0].buffer_bytes" in str(caught.value) and words in str(caught.value)
