"""A plan that has ranks wait for what nobody rings is called a deadlock wherever it runs; a slow peer is a deadline."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from collectives.algorithms.catalog import build, load_algorithm, recipe, variants
from collectives.communicator.calls import watch
from collectives.communicator.communicator import Communicator
from collectives.contracts import COLLECTIVES
from collectives.layouts import world_layout
from cxlemu.choices import ENGINES
from cxlemu.engines import deadlocks
from cxlemu.engines.deadlocks import deadlock_of
from cxlemu.errors import DeadlineError, DeadlockError, RankFailures
from cxlemu.plan import Call
from cxlemu.topology import Topology
from cxlemu.world import RankContext, launch
from tests.helpers.commands import cxlemu

SILENT = """
from collectives.builder import Builder
from collectives.builder.recipes import algorithm

@algorithm("all_reduce")
def silent(b: Builder) -> None:
    for chunks in b.rounds(b.nbytes, blocks=2, spread="cards"):
        for chunk in chunks:
            if b.rank == 0:
                b.fold(b.output(chunk.offset), chunk, b.input(chunk.offset), block=0)
            else:
                b.publish(chunk, b.input(chunk.offset), block=0)
                b.retrieve(b.output(chunk.offset), chunk, 0, block=1)
"""
SAYS = (
    "deadlock in [all_reduce silent 64 B f32 sum], whatever the order: rank 1 waits for rank 0 to ring published[0][4] "
    "(retrieve:0 WAIT); rank 2 waits for rank 0 to ring published[0][4] (retrieve:0 WAIT)"
)


@pytest.fixture
def silent(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(SILENT)
    return f"{path}:silent"


def test_a_plan_that_would_take_long_is_not_looked_into(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call = Call("all_reduce", "silent", 3, 64, "f32", "sum")
    plan = build(load_algorithm(silent), world_layout(Topology.load("laptop"), 3), call)
    assert deadlock_of(plan) is not None
    monkeypatch.setattr(deadlocks, "INSTRUCTIONS_MAX", 1)
    assert deadlock_of(plan) is None


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_says_the_same_of_a_deadlock(engine: str, silent: str) -> None:
    with pytest.raises(RankFailures) as failed:
        how = partial(_all_reduce, engine=engine, silent=silent)
        launch(how, ranks=3, topology="laptop", how="threads", deadline_s=0.3)
    told = [error for rank, error in failed.value.failures.items() if rank]
    assert [type(error) for error in told] == [DeadlockError] * 2
    assert {str(error) for error in told} == {SAYS}


def test_a_deadlock_is_told_before_the_deadline(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "PLAN_S", 0.0)
    with pytest.raises(RankFailures) as failed:
        launch(partial(_all_reduce, engine="native", silent=silent), ranks=3, topology="laptop", how="threads")
    told = [error for rank, error in failed.value.failures.items() if rank]
    assert {str(error) for error in told} == {SAYS}
    assert any(type(error.__cause__) is DeadlockError for error in told)  # neither a deadline nor a lost peer


def _all_reduce(context: RankContext, engine: str, silent: str) -> None:
    with Communicator.world(context, engine=engine) as comm:
        comm.all_reduce(np.ones(16, np.float32), out=np.empty(16, np.float32), variant=load_algorithm(silent))


def test_the_virtual_engine_says_so_too(silent: str) -> None:
    arguments = ["simulate", "--algorithm", silent, "-n", "3", "-b", "64", "-e", "64"]
    assert SAYS in cxlemu(*arguments, code=1).output


@pytest.mark.parametrize("engine", ENGINES)
def test_a_peer_that_does_not_come_is_no_deadlock_of_the_plan(engine: str) -> None:
    """What is known is that a deadline passed: who was waited for, at which instruction and doorbell."""
    with pytest.raises(RankFailures) as failed:
        launch(partial(_alone, engine=engine), ranks=2, topology="laptop", how="threads", deadline_s=0.3)
    error = failed.value.failures[0]
    assert isinstance(error, DeadlineError) and not isinstance(error, DeadlockError)
    assert "for rank 1 to ring published[1][0] with epoch" in str(error)


def _alone(context: RankContext, engine: str) -> None:
    comm = Communicator.world(context, engine=engine)
    if comm.rank == 0:
        comm.barrier()
    else:
        context.session.barrier(5.0)  # alive, and elsewhere


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_no_shipped_plan_deadlocks(collective: str) -> None:
    layout = world_layout(Topology.load("laptop"), 3, region_bytes=4096)
    its = COLLECTIVES[collective]
    for variant in set(variants(collective)) - {"zero_copy"}:
        call = Call(collective, variant, 3, 4096 * its.moves_data, "u8", "sum" if its.reduces else "none")
        assert deadlock_of(build(recipe(collective, variant), layout, call)) is None
