"""The recipes of docs/calls.md: a collective is a row, a page and a verb, and then it runs, is proved and simulated."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from collectives import Builder, Communicator, algorithm
from collectives.algorithms import catalog
from collectives.checking.symbolic import verify
from collectives.communicator.verbs.verbs import Verbs
from collectives.contracts import COLLECTIVES, Collective, Piece
from collectives.layouts import layout_for
from collectives.sweep.sweep import Case
from collectives.sweep.virtual.simulated import simulate_case
from cxlemu import RankContext, Topology, launch
from cxlemu.errors import ArgumentError
from cxlemu.plan import Call
from faults.prove import prove
from faults.verdict import Verdict

# --- the contract: the block of the rank before becomes this rank's ------------------------------------------------


def turned(call: Call, rank: int) -> Iterator[Piece]:
    yield Piece(0, call.nbytes, (((rank - 1) % call.ranks, 0),))


ROTATE = Collective("rotate", "one", "one", pieces=turned)


# --- the verb ------------------------------------------------------------------------------------------------------


def rotate(self: Verbs, x: Any, out: Any = None, *, variant: str = "auto", async_op: bool = False) -> Any:
    """``x`` of the rank before replaces ``x``, or goes to ``out`` of the same shape."""
    return self._calls("rotate", x, x if out is None else out, "none", 0, variant, async_op)


@pytest.fixture
def rotating(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COLLECTIVES, "rotate", ROTATE)
    monkeypatch.setattr(catalog, "_RECIPES", dict(catalog._RECIPES))
    monkeypatch.setattr(Verbs, "rotate", rotate, raising=False)

    @algorithm("rotate", variants=("naive", "aggregate", "all", "line"))
    def page(b: Builder) -> None:
        for chunks in b.rounds(b.nbytes, spread="ranges"):
            sent = [b.publish(chunk, b.input(chunk.offset), overwritten=True) for chunk in chunks]
            for chunk, event in zip(chunks, sent, strict=True):
                b.retrieve(b.output(chunk.offset), chunk, (b.rank - 1) % b.ranks, after=event)

    catalog.add(page)
    with pytest.raises(ArgumentError, match="rotate has a variant naive already"):
        catalog.add(page)


def main(context: RankContext) -> list[list[float]]:
    with Communicator.world(context) as comm:
        found = []
        for length in (5, 20_000):  # in lines, and in chunks: as `auto` takes them
            x = np.full(length, comm.rank, np.float32)
            assert comm.rotate(x) is x  # type: ignore[attr-defined]
            operation = comm.persistent.rotate(x)  # type: ignore[attr-defined]
            found.append(sorted(set(x.tolist())))
            operation()
            found.append(sorted(set(x.tolist())))
        return found


def test_a_new_collective_runs_as_the_others_do(rotating: None) -> None:
    for rank, found in enumerate(launch(main, ranks=3, topology="six-cards", how="threads")):
        assert found == [[(rank - 1) % 3], [(rank - 2) % 3]] * 2


@pytest.mark.parametrize("variant", ["naive", "aggregate", "all", "line"])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_new_collective_is_proved(rotating: None, variant: str, in_place: bool) -> None:
    layout = layout_for(3, 2, 1 << 22, 4096, region_bytes=1 << 16)
    plan = catalog.build(
        catalog.recipe("rotate", variant), layout, Call("rotate", variant, 3, 1000, "f32", in_place=in_place)
    )
    verify(plan)
    assert prove(plan).verdict is Verdict.OK


def test_a_contract_that_says_otherwise_is_not_kept(rotating: None, monkeypatch: pytest.MonkeyPatch) -> None:
    still = Collective("rotate", "one", "one", pieces=lambda call, rank: iter([Piece(0, call.nbytes, ((rank, 0),))]))
    monkeypatch.setitem(COLLECTIVES, "rotate", still)
    layout = layout_for(3, 2, 1 << 22, 4096, region_bytes=1 << 16)
    plan = catalog.build(catalog.recipe("rotate", "all"), layout, Call("rotate", "all", 3, 1000, "f32"))
    assert prove(plan).verdict is Verdict.VIOLATION


def test_a_new_collective_is_simulated(rotating: None) -> None:
    case = Case(Call("rotate", "auto", 3, 1 << 16, "f32"), False)
    row, run = simulate_case(Topology.load("titan2-6xcz120"), case, check=True)
    assert (row.collective, row.wrong, row.variant) == ("rotate", 0, "all-1") and run.time_ns > 0
