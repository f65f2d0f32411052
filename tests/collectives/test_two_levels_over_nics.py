"""InfiniBand between hosts of several GPUs with an XLink: two levels where they can be had, and notes on what a
comparison leaves out."""

import json
from pathlib import Path

import pytest

from collectives.algorithms.hierarchical.levels import HIERARCHICAL
from collectives.sweep.sweep import Sweep
from collectives.sweep.virtual.notes import flat_notes, free_notes, placement_notes
from collectives.sweep.virtual.simulated import simulate_case
from cxlemu.cost import CostModel
from cxlemu.topology import Topology
from cxlemu.topology.clusters import apart, clusters_of, ranks_per_cluster
from cxlemu.topology.shipped import shipped_configs
from studies.training.fabrics import Modelled
from studies.training.symmetric import Symmetric, fabric_of
from tests.helpers.commands import cxlemu

TEXT = """
name: ndr-2x2
hosts: {count: 2, ranks_per_host: 2, memory: {latency_ns: 200, read_gbytes_per_s: 200, write_gbytes_per_s: 150}}
cards: {owner: ranks, capacity_bytes: 80GiB, latency_ns: 600, read_gbytes_per_s: 3350, write_gbytes_per_s: 3350,
        total_gbytes_per_s: 3350}
costs: {call_ns: 8400, copy_ns: 2000, doorbell_ring_ns: 1000, doorbell_observe_ns: 4000}
switches:
  - {name: ib, level: 1, port_latency_ns: 130}
  - {name: nvswitch, per_host: true, port_latency_ns: 100}
links:
  - {name: nic, ends: [ranks, ib], gbytes_per_s: 50, latency_ns: 300}
  - {name: nvlink, ends: [ranks, nvswitch], gbytes_per_s: 450, latency_ns: 20}
spaces:
  - {name: remote, kind: peer_memory, over: [ib], coherent: true}
  - {name: hbm, kind: xlink, over: [nvswitch], coherent: true, costs: {copy_ns: 1000}}
emulation: {card_bytes: 8MiB}
"""
NDR = Topology.parse(TEXT.encode(), "ndr-2x2.yaml")
PROTOCOL = "coherent: true, protocols: [{name: simple, costs: {call_ns: 8400, doorbell_observe_ns: 4000}}]}"
NCCL = TEXT.replace("ndr-2x2", "nccl-2x2").replace("over: [ib], coherent: true}", f"over: [ib], {PROTOCOL}")
BLOCK = 1 << 20


def simulated(*words: str) -> str:
    done = cxlemu("simulate", *words, terminal_width=200, code=0)
    return " ".join(done.output.split())


@pytest.fixture
def nccl(tmp_path: Path) -> str:
    (file := tmp_path / "nccl-2x2.yaml").write_text(NCCL)
    return str(file)


def test_memories_reached_over_nics_and_an_xlink_are_clusters() -> None:
    assert ranks_per_cluster(NDR, 4) == 1
    assert clusters_of(apart(NDR), 4) == (0, 0, 1, 1)
    assert ranks_per_cluster(apart(Topology.load("racks-2x72-rdma")), 144) == 72
    for name in ("titan2-6xcz120", "two-clusters", "infiniband-3xh100", "nvlink-8xh800"):
        assert apart(topology := Topology.load(name)) == topology


def test_memories_behind_the_same_links_have_routes_of_their_own() -> None:
    """The link of an owner counts from the first of its memories."""
    machine = apart(NDR)
    nics = tuple(space.model_copy(update={"over": ("ib",)}) for space in machine.spaces)
    routes, numbers = machine.model_copy(update={"spaces": nics}).fabric().table(range(2), range(8))
    assert [routes[at].group for at in numbers[1]] == [0, 0, 0, 0, 4, 4, 4, 4]


def test_on_two_levels_a_block_crosses_nics_once_and_is_passed_on_over_the_xlink() -> None:
    sweep = Sweep(("all_gather",), [4 * BLOCK], variant=HIERARCHICAL, check=False, cluster=2)
    (case,) = sweep.cases(4)
    row, run = simulate_case(NDR, case)
    moved = {use.resource.name: use.bytes for use in run.uses if use.resource.kind == "link"}
    assert row.variant == HIERARCHICAL
    for rank in range(4):  # the one rank at its position elsewhere; of its neighbour, its own block and that one
        assert [moved[f"nic rank{rank} {way}"] for way in ("out", "in")] == [BLOCK, BLOCK]
        assert [moved[f"nvlink rank{rank} {way}"] for way in ("out", "in")] == [2 * BLOCK, 2 * BLOCK]


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter"])
def test_results_on_two_levels_are_right(collective: str) -> None:
    (case,) = Sweep((collective,), [4096], variant=HIERARCHICAL, cluster=2).cases(4)
    row, _ = simulate_case(NDR, case, check=True)
    assert (row.wrong, row.variant) == (0, HIERARCHICAL)


def test_a_training_step_takes_the_fastest_plan_two_levels_included() -> None:
    call = ("all_gather", 64 * BLOCK, 4)
    levels, flat = (Modelled(NDR, tuned=True, two_levels=both) for both in (True, False))
    assert levels.time_ns(*call) < flat.time_ns(*call)
    fabric = fabric_of(NDR, 4)
    assert isinstance(fabric, Modelled)
    assert fabric.time_ns(*call) == levels.time_ns(*call)
    assert fabric.chosen == {"all_gather": HIERARCHICAL}
    # replicas of several tensor ranks are on different hosts, and a line stands for many
    assert isinstance(fabric_of(NDR, 4, sharing=2), Symmetric)


def test_nccl_s_flat_plans_beside_an_xlink_get_a_note(nccl: str, tmp_path: Path) -> None:
    said = simulated("all_gather", "-b", "1M", "-n", "4", "-c", "twelve-hosts", "--against", nccl, "--json",
                     str(tmp_path / "all.json"))  # fmt: skip
    note = "nccl-2x2: 2 ranks share an XLink, but its plans use one NIC's way each and no XLink between them"
    assert f"{note}: NCCL would be faster" in said.replace(" # ", " ")
    assert json.loads((tmp_path / "all.json").read_text())["notes"] == [f"{note}: NCCL would be faster"]
    assert list(flat_notes(Topology.load("infiniband-3xh100"), 3)) == []
    said = simulated("training", "--model", "llama3-8b", "--parallel", "fsdp", "-n", "4", "--batch", "4", "-c", nccl)
    assert f"Note: {note}: NCCL would be faster." in said


def test_tensor_ranks_get_a_note_on_what_others_send(tmp_path: Path) -> None:
    """Of four ranks on a host two hold the same weights with tp=2: these share an XLink that NCCL's plans leave out."""
    name = str(tmp_path / "nccl-2x4.yaml")
    Path(name).write_text(NCCL.replace("nccl-2x2", "nccl-2x4").replace("ranks_per_host: 2", "ranks_per_host: 4"))

    def notes(*words: str) -> list[str]:
        done = simulated("training", "-c", name, "-n", "8", "--batch", "8", "--parallel", *words, "--json", str(file))
        its: list[str] = json.loads(file.read_text()).get("notes", [])
        assert all(f"Note: {note}." in done for note in its)
        return its

    file = tmp_path / "step.json"
    inside = ("--inside", "nvlink-8xh800")
    (flat,), (shared, alone), (apart,) = notes("fsdp"), notes("fsdp,tp=2", *inside), notes("fsdp,tp=4", *inside)
    assert flat.startswith("nccl-2x4: 4 ranks share an XLink") and shared.startswith("nccl-2x4: 2 ranks share an XLink")
    assert alone.startswith("nccl-2x4: of 2 tensor ranks one talks over it, as if alone")
    assert apart.startswith("nccl-2x4: of 4 tensor ranks one talks over it, as if alone")


def test_what_a_file_leaves_out_is_nothing_and_said(tmp_path: Path) -> None:
    note, text = "titan2-6xcz120 has no costs: ", shipped_configs()["titan2-6xcz120"].read_text()
    bare = tmp_path / "bare.yaml"
    bare.write_text(text.replace("costs: {like: gpu}", ""))
    assert note in simulated("all_gather", "-c", str(bare), "-b", "64K")
    assert note not in simulated("all_gather", "-c", "titan2-6xcz120", "-b", "64K")
    assert list(free_notes(Topology.load("infiniband-3xh100"))) == []  # NCCL's protocols have costs of their own


def test_few_ranks_that_all_share_a_cluster_get_a_note() -> None:
    racks = Topology.load("racks-2x72")
    assert list(placement_notes(racks, 16)) == [
        "racks-2x72: 16 of 144 places, all in one XLink domain, yet they talk over tier2, not over the XLink"
    ]
    assert list(placement_notes(NDR, 2)) == [
        "ndr-2x2: 2 of 4 places, all on one host, yet they talk over remote, not over the XLink"
    ]
    assert list(placement_notes(racks, 144)) == list(placement_notes(racks, 80)) == list(placement_notes(NDR, 3)) == []
    assert list(placement_notes(Topology.load("twelve-hosts"), 3)) == []
    assert "all in one XLink domain" in simulated("all_gather", "-c", "racks-2x72", "-n", "4", "-b", "64K")


def test_every_variant_includes_the_one_that_auto_takes(nccl: str) -> None:
    auto = simulated("all_gather", "-c", nccl, "-b", "1M")
    every = simulated("all_gather", "-c", nccl, "-b", "1M", "--variant", "every")
    assert "ring # # 1 result" in auto
    assert "figures none states its origin (optional: source, fitted or assumed)" in auto
    assert " ring " in every
    assert "hierarchical" in every


def test_links_of_machines_without_a_pool_do_not_lead_to_one() -> None:
    names = [its.name for name in ("infiniband-3xh100", "nvlink-8xh800") for its in
             CostModel.of(Topology.load(name), 2).resources]  # fmt: skip
    assert not any("pool" in name for name in names)
    assert {"nic host0 out", "nic host0 in"} <= set(names)
    assert "host-x16 host0 to the pool" in [
        its.name for its in CostModel.of(Topology.load("titan2-6xcz120"), 2).resources
    ]


def test_the_condition_of_two_levels_is_the_real_one(tmp_path: Path) -> None:
    (file := tmp_path / "flat.yaml").write_text(TEXT.replace("over: [nvswitch]", "over: [ib]"))
    done = cxlemu("simulate", "all_gather", "-c", file, "--variant", HIERARCHICAL, code=2)
    assert "or as many domains of an XLink" in " ".join(done.output.split())
