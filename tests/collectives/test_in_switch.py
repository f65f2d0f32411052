"""Calls whose vectors a switch adds up: what each link carries, for whom, and what the command says."""

import json
from pathlib import Path

import pytest

from collectives.sweep.virtual.in_switch import folding, in_switch_ns
from cxlemu.plan import Call
from cxlemu.topology import Topology
from cxlemu.topology.shipped import shipped_configs
from tests.helpers.commands import cxlemu

BYTES = 1 << 20


def call(collective: str = "all_reduce", dtype: str = "f32", redop: str = "sum", ranks: int = 8) -> Call:
    return Call(collective, "", ranks, BYTES, dtype, redop)


def machine(**changes: object) -> Topology:
    """Eight GPUs behind a switch; 250 GB/s of payload, of which it folds at 200."""
    topology = Topology.load("nvlink-8xh800")
    (switch,), (link,) = topology.switches, topology.links
    folds = switch.folds.model_copy(update={"share_of_rate": 0.8, "latency_ns": 1000})
    link = link.model_copy(update={"gbytes_per_s": 500.0, "flit_bytes": 128, "flit_payload_bytes": 64})
    return topology.model_copy(
        update={"switches": (switch.model_copy(update={"folds": folds} | changes),), "links": (link,)}
    )


def test_a_link_carries_a_vector_and_each_ranks_share_of_the_sum() -> None:
    assert in_switch_ns(machine(), call(), BYTES) == 1000 + BYTES * 9 / 8 / 200
    assert in_switch_ns(machine(), call(ranks=2), BYTES) == 1000 + BYTES * 3 / 2 / 200
    assert in_switch_ns(machine(), call("reduce_scatter"), BYTES) == 1000 + BYTES / 200


@pytest.mark.parametrize(
    "other",
    [call("all_gather"), call("all_to_all"), call(redop="prod"), call(redop="max"), call(dtype="u8"), call(ranks=1)],
)
def test_a_switch_folds_what_nccl_lets_it_fold(other: Call) -> None:
    assert in_switch_ns(machine(), other, BYTES) is None
    assert in_switch_ns(machine(), call(dtype="bf16", redop="max"), BYTES) is not None


def test_a_switch_folds_only_where_it_says_so_and_joins_all_ranks() -> None:
    assert in_switch_ns(machine(folds=None), call(), BYTES) is None
    folds = {name for name in shipped_configs() if folding(Topology.load(name)) is not None}
    assert folds == {"nvlink-8xh800", "nvl72"}  # A100 and A800 have none
    alone = Topology.load("clusters-64x64")  # a switch in each cluster
    assert alone.host_count > 1 and any(switch.per_host for switch in alone.switches)
    (folded,) = machine().switches
    switches = tuple(its.model_copy(update={"folds": folded.folds}) if its.per_host else its for its in alone.switches)
    assert folding(alone.model_copy(update={"switches": switches})) is None


def test_the_command_says_what_the_switch_would_take(tmp_path: Path) -> None:
    file = tmp_path / "it.json"
    arguments = ["simulate", "all_reduce", "all_gather", "-c", "nvlink-8xh800", "-b", "64M", "--json", str(file)]
    done = cxlemu(*arguments, code=0)
    reduced, gathered = json.loads(file.read_text())["rows"]
    ratio = reduced["in_switch_us"] / reduced["time_us"]
    assert gathered["in_switch_us"] is None and 0.5 < ratio < 1
    said = f"#   folded in the switch: {reduced['in_switch_us']:.1f} us, {ratio:.2f} times as long"
    assert done.output.count("folded in the switch") == 1 and said in done.output
