"""Two levels of thousands of ranks: a line through few clusters against all of them, and machines that are cut down."""

import pytest

from cxlemu.errors import ArgumentError
from cxlemu.topology import Topology
from studies.training.clusters import Clustered, cut_down
from studies.training.fabrics import Modelled
from studies.training.symmetric import SIMULATED_RANKS, fabric_of
from tests.helpers.commands import cxlemu

ALL = Topology.load("clusters-64x64")
SMALL = ALL.model_copy(update={"hosts": ALL.hosts.model_copy(update={"ranks_per_host": 4})})
KB, MB = 1 << 10, 1 << 20


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize("slice_bytes", [64 * KB, MB])
def test_the_line_is_what_all_clusters_take(collective: str, slice_bytes: int) -> None:
    assert abs(Clustered(SMALL).error(collective, slice_bytes, 16)) < 0.01


def test_few_clusters_are_simulated_themselves() -> None:
    fabric = Clustered(SMALL)
    assert fabric.error("all_gather", MB, 4) == 0
    assert fabric.line(16) == ""
    assert fabric.line(32) == "a line through 8 and 16 ranks in 2 and 4 clusters"
    fabric.time_ns("all_gather", 32 * MB, 32)
    assert fabric.chosen == {"all_gather": "hierarchical"}


def test_what_clusters_have_in_common_is_cut_with_them() -> None:
    cut = cut_down(ALL, 4, sharing=8)
    assert (cut.hosts.count, cut.hosts.ranks_per_host) == (4, 8)
    assert [group.count for group in cut.cards] == [2, 1]  # an eighth of sixteen, and one for each rank
    assert [link.gbytes_per_s for link in cut.links] == [link.gbytes_per_s for link in ALL.links]
    with pytest.raises(ArgumentError, match="256 cards do not divide among 64 clusters"):
        cut_down(ALL, 2, sharing=32)
    with pytest.raises(ArgumentError, match="not made of hosts that are clusters"):
        cut_down(Topology.load("racks-2x72"), 2)


def test_groups_that_share_a_pool_have_less_of_it() -> None:
    alone, shared = (Clustered(SMALL, sharing).time_ns("all_gather", 64 * MB, 64) for sharing in (1, 2))
    assert shared > alone


def test_a_line_stands_only_for_what_is_too_large() -> None:
    assert isinstance(fabric_of(ALL, SIMULATED_RANKS), Modelled)
    assert isinstance(fabric_of(ALL, 4096), Clustered)


def test_four_thousand_accelerators_train_in_seconds() -> None:
    words = "--model llama3-405b --accelerator b200 --parallel fsdp,tp=8,sp,serial -n 4096 --batch 512 --recompute full"
    done = cxlemu("simulate", "training", *words.split(), "-c", "clusters-64x64", "--inside", "nvl72", code=0)
    assert "all_gather as hierarchical, reduce_scatter as hierarchical" in done.output
    assert "collectives of 512 ranks follow a line through 16 and 32 ranks in 2 and 4 clusters" in done.output
