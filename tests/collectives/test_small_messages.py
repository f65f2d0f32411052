"""Small messages on NVLink: data and flag in one store (LL), and calls that a graph launches."""

from pathlib import Path
from typing import Any

import pytest

from collectives.algorithms.nccl.protocols import take
from collectives.sweep.sweep import Sweep
from collectives.sweep.virtual.simulated import simulate_case
from cxlemu.errors import ArgumentError
from cxlemu.plan import Call
from cxlemu.topology import Costs, Topology
from tests.helpers.commands import cxlemu

ROOT = Path(__file__).parents[2]
HERE = Topology.load("nvlink-8xh800")
ASKED = ("simulate", "all_reduce", "-b", "8", "-e", "8")
LAUNCH_NS, GRAPH_NS, HOP_NS, RING_NS = 5000, 1300, 600, 500


def with_costs(**costs: Any) -> Topology:
    return HERE.model_copy(update={"costs": HERE.costs.model_copy(update=costs)})


def line_ns(topology: Topology, ranks: int, *, check: bool = False) -> int:
    (case,) = Sweep(("all_reduce",), [8]).cases(ranks)
    row, run = simulate_case(topology, case, check=check)
    assert row.variant == "line" and not row.wrong
    return run.time_ns


@pytest.mark.parametrize("ranks", [2, 5, 8])
def test_data_and_flag_in_one_store_take_one_hop_to_all_peers(ranks: int) -> None:
    """Then nothing but the call's last doorbell, which says that the lines are free."""
    assert line_ns(HERE, ranks, check=ranks == 8) == LAUNCH_NS + HOP_NS + RING_NS
    assert line_ns(with_costs(doorbell_data_ns=700), ranks) == LAUNCH_NS + 700 + RING_NS


def test_without_that_a_rank_rings_and_looks_at_one_doorbell_after_the_other() -> None:
    way_ns = 100 + 100 + 100
    look_ns = 500 + 2 * way_ns + 400
    rung_ns = LAUNCH_NS + RING_NS
    for ranks in (2, 3):
        looks_ns = (ranks - 1) * look_ns + way_ns
        assert abs(line_ns(with_costs(doorbell_data_ns=None), ranks) - (rung_ns + looks_ns + RING_NS)) <= way_ns


def test_a_graph_launches_calls_in_its_own_time() -> None:
    assert line_ns(HERE.in_graph(), 8) == GRAPH_NS + HOP_NS + RING_NS
    assert " 2.4 " in cxlemu(*ASKED, "-c", "nvlink-8xh800", "--graph", code=0).output


def test_protocols_are_launched_in_a_graph_as_well() -> None:
    network = Topology.load("infiniband-3xh100")
    (space,) = network.spaces
    protocols = tuple(
        its.model_copy(update={"costs": its.costs.model_copy(update={"graph_call_ns": 7})}) for its in space.protocols
    )
    launched = network.model_copy(update={"spaces": (space.model_copy(update={"protocols": protocols}),)}).in_graph()
    assert {its.costs.call_ns for its in launched.spaces[0].protocols or ()} == {7}
    with pytest.raises(ArgumentError, match=r"give spaces\.inboxes\.protocols\.simple\.costs\.graph_call_ns"):
        network.in_graph()


def test_within_a_host_auto_takes_no_tree_of_nccls() -> None:
    """NCCL counts a tree's steps there as those of a chain, so that its ring is never slower."""
    taken = {}
    for machine in ("nvlink-8xh100-nccl", "infiniband-12xh100"):
        topology = Topology.load(machine)
        for asked in ("auto", "tree"):
            call = Call("all_reduce", asked, 8, 1024)
            taken[machine, asked] = take(topology, topology.spaces[0], call).recipe.name
    assert list(taken.values()) == ["ring", "tree", "tree", "tree"]


@pytest.mark.parametrize("machine", ["six-cards", "infiniband-3xh100"])
def test_a_graph_is_refused_where_its_launch_has_no_cost(machine: str) -> None:
    for arguments in (("-c", machine), ("-c", "nvlink-8xh800", "--against", machine)):
        done = cxlemu(*ASKED, *arguments, "--graph", code=2)
        assert f"{machine} has no cost for calls in a graph" in done.output


def test_costs_without_a_launch_need_none_in_a_graph() -> None:
    assert HERE.model_copy(update={"costs": Costs()}).in_graph().costs == Costs()


def test_a_graph_that_changes_nothing_is_refused(tmp_path: Path) -> None:
    plain = (ROOT / "configs/nvlink-8xh800.yaml").read_text().replace("like: kernels", "copy_ns: 1000")
    (tmp_path / "plain.yaml").write_text(plain)
    done = cxlemu(*ASKED, "-c", str(tmp_path / "plain.yaml"), "--graph", code=2)
    assert "--graph does nothing: no call costs a launch on nvlink-8xh800" in done.output
