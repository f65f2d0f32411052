"""Kineto's traces of the backend cxl as Chakra nodes: what waits for what, what is computing, what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from cxlemu.chakra import kineto
from cxlemu.chakra.files import write
from cxlemu.chakra.workload import load
from cxlemu.errors import PlanFileError
from cxlemu.topology import Topology
from studies.traces import replay
from tests.helpers.tables import with_rows

WORLD = {"Process Group Name": "0", "Process Group Description": "default_pg", "Process Group Ranks": "[0, 1]"}


def op(ts: float, dur: float, tid: int = 1) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": ts, "dur": dur, "tid": tid}


def call(name: str, number: int, ts: float, dur: float, **about: Any) -> dict[str, Any]:
    its = {"In msg bytes": 64, "Call": number, "Async": dur < 1, "Rank": 0, **WORLD, **about}
    return {"ph": "X", "cat": "user_annotation", "name": f"cxl:{name}", "ts": ts, "dur": dur, "tid": 1, "args": its}


def wait(number: int, ts: float, dur: float) -> dict[str, Any]:
    return {"ph": "X", "name": "cxl:wait", "ts": ts, "dur": dur, "tid": 1, "args": {"Call": number}}


def step(ts: float) -> dict[str, Any]:
    return {"ph": "X", "name": "Optimizer.step#SGD.step", "ts": ts, "dur": 5.0, "tid": 1}


def nodes(folder: Path, *events: Any) -> list[tuple[str, tuple[int, ...], int]]:
    (folder / "t.json").write_text(json.dumps({"traceEvents": [*events, {"ph": "M"}, 7]}))
    return [(node.name, node.deps, node.duration_us) for node in kineto.read(folder / "t.json", 0).nodes]


def test_a_synchronous_call_comes_between_what_was_computed_before_and_after(tmp_path: Path) -> None:
    """Operators that overlap count once, and those within the call, which are on its thread, are part of it."""
    its = [op(0, 10), op(5, 10, tid=2), op(20, 5), call("all_reduce", 0, 30, 50), op(40, 9), op(60, 7, tid=2)]
    assert nodes(tmp_path, *its, op(90, 8)) == [("computing", (), 20), ("all_reduce", (0,), 0), ("computing", (1,), 8)]


def test_what_was_computed_before_the_clocks_zero_counts(tmp_path: Path) -> None:
    assert nodes(tmp_path, op(-20, 10), call("all_reduce", 0, -5, 1))[0] == ("computing", (), 10)


def test_who_waits_for_an_asynchronous_call(tmp_path: Path) -> None:
    """What is computed after a wait for it, or after a step of an optimizer; the next call of its group."""
    its = [op(0, 10), call("all_reduce", 4, 11, 0.1), op(12, 10), call("all_gather", 5, 23, 0.1), op(24, 3)]
    its += [wait(4, 30, 20), op(51, 6), step(60), op(61, 2)]
    assert nodes(tmp_path, *its) == [
        ("computing", (), 10),
        ("all_reduce", (0,), 0),
        ("computing", (0,), 10),
        ("all_gather", (2, 1), 0),
        ("computing", (2,), 3),
        ("computing", (4, 1), 6),
        ("computing", (5, 3), 2),
    ]


def test_groups_messages_and_sizes_are_chakras(tmp_path: Path) -> None:
    sub = {"Process Group Name": "3", "Process Group Description": "undefined", "Process Group Ranks": "[1, 0]"}
    for rank, (verb, peer) in enumerate([("send", "Dst Rank"), ("recv", "Src Rank")]):
        its = [call("scatter", 0, 1, 2, Rank=rank, **sub), call("all_reduce_coalesced", 1, 5, 2, Rank=rank, **sub)]
        its += [call(verb, 2, 9, 0.1, Rank=rank, Tag=7, **{peer: 1 - rank}), call("barrier", 3, 20, 2, Rank=rank)]
        (tmp_path / f"{rank}.json").write_text(json.dumps({"traceEvents": its}))
    ranks = [kineto.read(tmp_path / f"{rank}.json", rank) for rank in range(2)]
    assert ranks[0].groups == {"3": [1, 0]}
    assert [node.attributes["comm_size"] for node in ranks[0].nodes] == [128, 64, 64, 64]
    write(tmp_path / "t", [rank.nodes for rank in ranks])
    found = replay(load(tmp_path / "t", ranks[0].groups), Topology.load("titan2-6xcz120"))
    assert [(c.what.name, c.what.nbytes, len(c.members)) for c in found.calls] == [
        ("scatter", 128, 2),
        ("all_reduce", 64, 2),
        ("send", 64, 2),
        ("barrier", 64, 2),
    ]


@with_rows(
    ("{", "is not JSON"),
    ("[" * 100_000, "is not JSON"),
    ({"events": []}, "has no traceEvents"),
    ({"traceEvents": [op(0, 1)]}, "profile with record_shapes=True"),
    ({"traceEvents": [{"ph": "X", "name": "cxl:all_reduce", "ts": 0}]}, "metadata of a call is damaged"),
    ({"traceEvents": [call("all_reduce", 0, "now", 1)]}, "metadata of a call is damaged"),  # type: ignore[arg-type]
    ({"traceEvents": [op(0, float("inf")), call("all_reduce", 0, 0, 1)]}, "begins at 0.0 us and takes inf us"),
    ({"traceEvents": [call("all_reduce", 0, float("nan"), 1)]}, "begins at nan us"),
    ({"traceEvents": [call("all_reduce", 0, 0, 1, **{"In msg bytes": -5})]}, "-5 bytes"),
    ({"traceEvents": [call("all_reduce", 0, 0, 1, **{"In msg bytes": 1e400})]}, "is damaged: OverflowError"),
    ({"traceEvents": [call("all_reduce", 0, 0, 1, **{"Process Group Ranks": "[3, 4]"})]}, r"ranks \[3, 4\]"),
    ({"traceEvents": [call("all_reduce", 0, 0, 1, **{"Process Group Ranks": '{"0": 1}'})]}, "the group has the ranks"),
    ({"traceEvents": [call("bcast", 0, 0, 1)]}, "Chakra has no collective 'bcast'"),
    ({"traceEvents": [call("recv", 0, 0, 1, **{"Src Rank": -1})]}, "a receive from any source"),
    ({"traceEvents": [call("all_reduce", 0, 0, 1, Rank=1)]}, "belongs to rank 1, not 0"),
)
def test_what_is_no_such_trace_is_said(document: Any, said: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    with pytest.raises(PlanFileError, match=said):
        kineto.read(path, 0)
