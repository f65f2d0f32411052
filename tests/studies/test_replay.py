"""Traces replayed: what is read of them, when everything begins, and that nothing in a file does harm."""

import json
import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.defaults import AUTO
from collectives.sweep.sweep import Sweep
from collectives.sweep.virtual.plans import planned
from collectives.sweep.virtual.simulated import simulate_case
from cxlemu.chakra.files import Node, encode, write
from cxlemu.chakra.schema import COLLECTIVES, NodeType
from cxlemu.chakra.workload import ChakraCollective, ChakraWorkload, Computing, load
from cxlemu.cost import CostModel
from cxlemu.engines.virtual import VirtualCall, simulate
from cxlemu.errors import ArgumentError, PlanFileError
from cxlemu.topology import Accelerator, Topology
from studies.traces import Replay, replay
from tests.helpers.commands import cxlemu, with_json
from tests.helpers.fabric_helpers import fabric
from tests.helpers.tables import with_rows

TITAN = Topology.load("titan2-6xcz120")
ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20


def comp(number: int, us: int, *after: int, cpu: bool = False, **more: int) -> Node:
    return Node(number, f"comp {number}", NodeType.COMP, after, us, {"is_cpu_op": cpu, **more})


def coll(number: int, name: str, nbytes: int, *after: int, group: str = "") -> Node:
    about: dict[str, int | str | bool] = {"comm_type": COLLECTIVES[name], "comm_size": nbytes, "is_cpu_op": False}
    return Node(number, f"{name} {number}", NodeType.COMM_COLL, after, 0, about | ({"pg_name": group} if group else {}))


def send(number: int, nbytes: int, to: int, *after: int, tag: int = 0, **more: int) -> Node:
    about = {"comm_dst": to, "comm_size": nbytes, "comm_tag": tag, **more}
    return Node(number, f"send {number}", NodeType.COMM_SEND, after, 0, about)


def recv(number: int, nbytes: int, source: int, *after: int, tag: int = 0) -> Node:
    about: dict[str, int | str | bool] = {"comm_src": source, "comm_size": nbytes, "comm_tag": tag}
    return Node(number, f"recv {number}", NodeType.COMM_RECV, after, 0, about)


def memory(number: int, loads: bool, nbytes: int, *after: int) -> Node:
    kind = NodeType.MEM_LOAD if loads else NodeType.MEM_STORE
    return Node(number, f"memory {number}", kind, after, 0, {"tensor_size": nbytes, "is_cpu_op": False})


def loaded(folder: Path, *ranks: Sequence[Node], groups: Any = None) -> ChakraWorkload:
    write(folder / "t", ranks)
    return load(folder / "t", groups, "groups.json")


def replayed(folder: Path, *ranks: Sequence[Node], groups: Any = None, **more: Any) -> Replay:
    return replay(loaded(folder, *ranks, groups=groups), TITAN, **more)


def alone_ns(collective: str, size_bytes: int, ranks: int) -> int:
    (case,) = Sweep((collective,), [size_bytes], variant=AUTO, check=False).cases(ranks)
    return simulate_case(TITAN, case)[1].time_ns


def test_nodes_come_back_as_steps(tmp_path: Path) -> None:
    nodes = [comp(7, 30, 2, num_ops=5, tensor_size=6), coll(2, "all_gather", 64), Node(9, "m", NodeType.METADATA, (7,))]
    (steps,) = loaded(tmp_path, nodes).ranks
    assert [(step.id, step.after) for step in steps] == [(2, ()), (7, (0,)), (9, (1,))]
    assert steps[0].what == ChakraCollective("all_gather", 64, "")
    assert steps[1].what == Computing(30, 5, 6, False)
    assert steps[2].what is None


@with_rows(
    ("all_gather", MIB, 3 * MIB),  # sizes as nccl-tests has them
    ("reduce_scatter", 3 * MIB, 3 * MIB),
    ("all_to_all", 3 * MIB, 3 * MIB),
    ("all_reduce", MIB, MIB),
    ("broadcast", MIB, MIB),
    ("reduce", MIB, MIB),
    ("gather", MIB, 3 * MIB),
    ("scatter", 3 * MIB, 3 * MIB),
)
def test_a_collective_takes_what_simulate_says(name: str, brings: int, size: int, tmp_path: Path) -> None:
    found = replayed(tmp_path, *[[coll(0, name, brings)]] * 3)
    assert found.time_ns == alone_ns(name, size, 3)
    assert [found.exposed_ns(rank) for rank in range(3)] == [found.time_ns] * 3


def test_computing_hides_collectives_and_late_ranks_make_others_wait(tmp_path: Path) -> None:
    gather = alone_ns("all_gather", 2 * MIB, 2)
    early = [comp(0, 100), coll(1, "all_gather", MIB, 0), comp(2, 50, 0), comp(3, 10, 1)]
    late = [comp(0, 300), coll(1, "all_gather", MIB, 0)]
    found = replayed(tmp_path, early, late)
    (call,) = found.calls
    assert (call.ready_ns, call.begin_ns, call.end_ns) == (100_000, 300_000, 300_000 + gather)
    assert {(c.rank, c.place): c.begin_ns for c in found.computed} == {
        (0, 0): 0,
        (1, 0): 0,
        (0, 2): 100_000,  # while rank 0 waits for rank 1
        (0, 3): call.end_ns,
    }
    assert found.time_ns == call.end_ns + 10_000
    assert found.exposed_ns(0) == found.exposed_ns(1) == gather


def test_a_message_takes_what_simulate_says_and_waits_in_the_pool_for_a_late_receiver(tmp_path: Path) -> None:
    took = alone_ns("send", MIB, 2)
    early = replayed(tmp_path, [comp(0, 300), send(1, MIB, 1, 0)], [comp(0, 100), recv(1, MIB, 0, 0)])
    assert [(c.what.name, c.members, c.ready_ns, c.begin_ns, c.end_ns) for c in early.calls] == [
        ("send", (0, 1), 100_000, 300_000, 300_000 + took)
    ]
    assert early.exposed_ns(1) == early.communicating_ns(1) == took > early.communicating_ns(0)
    read_ns = replayed(tmp_path, [], [memory(0, True, MIB)]).time_ns
    assert 0 < read_ns < took
    late = replayed(tmp_path, [send(1, MIB, 1), comp(2, 7, 1)], [comp(0, 900), recv(1, MIB, 0, 0)])
    assert [(c.begin_ns, c.end_ns) for c in late.calls] == [(0, 900_000 + read_ns)]
    (after,) = (its for its in late.computed if its.rank == 0)
    assert after.begin_ns == late.communicating_ns(0) < took  # what follows the send waits for nobody
    assert late.communicating_ns(1) == read_ns


def test_messages_that_cross_do_not_wait_for_each_other(tmp_path: Path) -> None:
    took = alone_ns("send", MIB, 2)
    ranks = [[send(0, MIB, 1 - rank), recv(1, MIB, 1 - rank)] for rank in range(2)]
    found = replayed(tmp_path, *ranks)
    assert [(c.begin_ns, c.end_ns - c.begin_ns) for c in found.calls] == [(0, took), (0, took)]
    assert found.communicating_ns(0) == took  # both at once
    chained = replayed(tmp_path, *([send(0, MIB, 1 - rank), recv(1, MIB, 1 - rank, 0)] for rank in range(2)))
    assert [c.begin_ns for c in chained.calls] == [0, 0]  # a receive that follows a send, on both


def test_messages_of_one_tag_come_in_the_order_in_which_they_are_sent(tmp_path: Path) -> None:
    sends = [send(0, 4096, 1, tag=1), send(1, MIB, 1), send(2, 64, 1, tag=1)]
    recvs = [recv(10, MIB, 0), recv(11, 4096, 0, 10, tag=1), recv(12, 64, 0, tag=1)]
    found = replayed(tmp_path, sends, recvs)
    assert [(c.what.nbytes, c.places) for c in found.calls] == [(4096, (0, 1)), (MIB, (1, 0)), (64, (2, 2))]
    assert found.calls[0].end_ns > found.calls[1].end_ns  # its receiver asks for the other one first
    assert [c.begin_ns for c in found.calls] == sorted({c.begin_ns for c in found.calls})  # one after another


def test_a_message_goes_on_beside_a_collective(tmp_path: Path) -> None:
    found = replayed(
        tmp_path, [coll(0, "all_reduce", MIB), send(1, 64, 1)], [coll(0, "all_reduce", MIB), recv(1, 64, 0)]
    )
    assert [c.begin_ns for c in found.calls] == [0, 0]


@pytest.mark.parametrize("loads", [True, False])
def test_memory_is_the_pools_and_takes_what_its_slowest_part_takes(tmp_path: Path, loads: bool) -> None:
    """One rank alone: at least its copy engine's time, the idle latency, and nothing for no bytes."""
    times = [replayed(tmp_path, [memory(0, loads, nbytes)]).time_ns for nbytes in (0, 64, 64 * MIB, 128 * MIB)]
    assert times[0] == 0 and times[1] >= TITAN.load_latency_ns(0, 0) / 2
    assert times[3] - times[2] == pytest.approx(times[2] - times[1], rel=0.02)
    one = replayed(tmp_path, [memory(0, loads, MIB), memory(1, loads, MIB), comp(2, 5)])
    assert [(its.unit, its.place) for its in one.computed] == [("memory", 0), ("accelerator", 2), ("memory", 1)]
    assert one.accessing_ns(0) == one.time_ns == 2 * one.computed[0].end_ns and one.computing_ns(0) == 5000


def test_a_store_to_the_pool_has_arrived_when_it_is_over(tmp_path: Path) -> None:
    """Two links of 20 ns there, and two back, beside what 64 bytes take on them."""
    assert replay(loaded(tmp_path, [memory(0, False, 64)]), fabric(1, 1)).time_ns >= 80


def test_chakras_own_generator_counts_ids_over_all_ranks(tmp_path: Path) -> None:
    """And names a reduce_scatter with blocks of one size by another number."""
    block = {"comm_type": 8, "comm_size": 3 * MIB, "is_cpu_op": False}
    ranks = []
    for first in (5, 15, 25):
        all_of = Node(first, "rs", NodeType.COMM_COLL, (first + 2, first + 4), 0, block)
        ranks.append([all_of, memory(first + 2, True, 1024), comp(first + 4, 5)])
    (call,) = replayed(tmp_path, *ranks).calls
    assert call.what.name == "reduce_scatter" and call.ready_ns >= 5000
    assert call.end_ns - call.begin_ns == alone_ns("reduce_scatter", 3 * MIB, 3)


def test_what_is_computed_meanwhile_does_not_show(tmp_path: Path) -> None:
    gather = alone_ns("all_gather", 2 * MIB, 2)
    us = gather // 2000
    nodes = [coll(0, "all_gather", MIB), comp(1, us), comp(2, us // 2, cpu=True)]
    found = replayed(tmp_path, nodes, nodes)
    assert found.exposed_ns(0) == gather - 1000 * us  # processor and accelerator at the same time
    assert found.computing_ns(0) == 1000 * us + 1000 * (us // 2)


def test_a_rank_does_one_thing_at_a_time_in_the_order_in_which_it_may(tmp_path: Path) -> None:
    nodes = [comp(0, 10, cpu=True), comp(1, 7, 0), comp(2, 5), comp(3, 20)]
    found = replayed(tmp_path, nodes)
    assert [(c.place, c.begin_ns) for c in found.computed] == [(0, 0), (2, 0), (3, 5000), (1, 25_000)]


def test_groups_run_between_their_ranks(tmp_path: Path) -> None:
    groups = {"pair": [2, 0], "one": [1]}
    ranks = [[coll(0, "all_reduce", MIB, group="pair")], [coll(0, "all_reduce", MIB, group="one")]]
    found = replayed(tmp_path, *ranks, ranks[0], groups=groups)
    pair, one = sorted(found.calls, key=lambda call: call.members != (2, 0))
    assert pair.end_ns == alone_ns("all_reduce", MIB, 2)
    assert (one.members, one.end_ns) == ((1,), 0)


def test_groups_that_begin_together_share_the_fabric(tmp_path: Path) -> None:
    """Two pairs around one card: as two calls of one virtual run; alone, as soon as one of them begins later."""
    topology = fabric(4, 1, to_pool_gbytes_per_s=20, from_pool_gbytes_per_s=20)
    groups = {"a": [0, 1], "b": [2, 3]}
    a, b = ([coll(0, "all_gather", MIB, group=group)] for group in "ab")
    together = replay(loaded(tmp_path, a, a, b, b, groups=groups), topology)
    (case,) = Sweep(("all_gather",), [2 * MIB], variant=AUTO, check=False).cases(2)
    plan, _ = planned(topology, case)
    model = CostModel.of(topology, 4)
    both = simulate(model, [VirtualCall(plan, (0, 1)), VirtualCall(plan, (2, 3))])
    assert [call.end_ns for call in together.calls] == [int(ends.max()) for ends in both.end_ns]
    alone = simulate(model, [VirtualCall(plan, (0, 1))]).time_ns
    assert max(call.end_ns for call in together.calls) > 1.5 * alone
    later = [comp(1, 1), coll(2, "all_gather", MIB, 1, group="b")]
    apart = replay(loaded(tmp_path, a, a, later, later, groups=groups), topology)
    assert [call.end_ns - call.begin_ns for call in apart.calls] == [alone, alone]


def test_an_accelerator_takes_the_longer_of_computing_and_moving(tmp_path: Path) -> None:
    h100 = Accelerator.load("h100-sxm")
    flops, nbytes = 10**12, 1 << 30
    nodes = [comp(0, 5, num_ops=flops), comp(1, 5, 0, num_ops=1, tensor_size=nbytes), comp(2, 5, 1)]
    found = replayed(tmp_path, nodes, accelerator=h100)
    times = [c.end_ns - c.begin_ns for c in found.computed]
    computing = flops / (h100.peak_flop_per_s("bf16") * h100.gemm_efficiency) * 1e9
    assert times == [round(computing), round(nbytes / h100.memory_bytes_per_s * 1e9), 5000]
    assert replayed(tmp_path, nodes).time_ns == 15_000
    with pytest.raises(ArgumentError, match=r"node 0 of rank 0 has operations, but no time: give --accelerator"):
        replayed(tmp_path, [comp(0, 0, num_ops=3)])


@with_rows(
    ([[comp(0, 1, 1)]], "node 0 waits for node 1, which is missing"),
    ([[comp(0, 1, 1), comp(1, 1, 0)]], "node 0 of rank 0 never begins: each waits for the next of 0 -> 1 -> 0"),
    ([[Node(4, "s", NodeType.COMM_SEND)]], "comm_dst of node 4 is missing"),
    ([[send(4, 8, 1)]], "node 4 is a message between rank 0 and rank 1, but there are ranks 0 to 0"),
    ([[send(4, 8, 0)]], "node 4 is a message between rank 0 and itself"),
    ([[send(4, 8, 1)], []], "1 messages from rank 0 to rank 1 with tag 0 are sent, but 0 received"),
    ([[send(4, 8, 1, tag=3)], [recv(4, 8, 0)]], "with tag 3 are sent, but 0 received"),
    ([[send(4, 8, 1)], [recv(5, 9, 0)]], "8 bytes at node 4, which sends it, but 9 at node 5, which receives it"),
    ([[send(4, 8, 1, comm_src=1)], [recv(5, 8, 0)]], "comm_src of node 4 is 1, but this is the trace of rank 0"),
    ([[send(4, 8, 1, 5), recv(5, 8, 1)], [send(4, 8, 0, 5), recv(5, 8, 0)]], "nodes wait for each other: node 4"),
    ([[send(4, 1 << 50, 1)], [recv(4, 8, 0)]], "should be a number from 0"),
    ([[Node(4, "l", NodeType.MEM_LOAD)]], "tensor_size of node 4 is missing"),
    ([[Node(4, "s", 77)]], "node 4 is of type 77: only computing, collectives, messages and memory"),
    ([[Node(4, "c", NodeType.COMM_COLL, (), 0, {"comm_type": 99, "comm_size": 1})]], "comm_type 99"),
    ([[Node(4, "c", NodeType.COMM_COLL, (), 0, {"comm_type": 0})]], "comm_size of node 4 is missing"),
    ([[coll(0, "all_reduce", -1)]], "should be a number from 0"),
    ([[coll(0, "all_reduce", 1 << 50)]], "should be a number from 0"),
    ([[comp(0, 1 << 60)]], "too long"),
    ([[coll(0, "all_reduce", 8)], []], "ranks 0 and 1 call 1 and 0 collectives of all ranks"),
    ([[coll(0, "all_reduce", 8)], [coll(0, "all_reduce", 16)]], "node 0 of rank 1 is all_reduce of 16"),
    ([[coll(0, "all_reduce", 8, group="x")]], "called in group 'x', but no file of groups names it"),
    (
        [
            [coll(0, "all_reduce", 8), coll(1, "reduce", 8, group="g")],
            [coll(0, "reduce", 8, 1, group="g"), coll(1, "all_reduce", 8)],
        ],
        "no file of groups",
    ),
)
def test_what_cannot_be_is_one_sentence(ranks: list[list[Node]], says: str, tmp_path: Path) -> None:
    with pytest.raises(PlanFileError, match=says) as error:
        replayed(tmp_path, *ranks)
    assert "\n" not in str(error.value)


def test_collectives_that_wait_for_each_other_across_ranks_are_found(tmp_path: Path) -> None:
    groups = {"g": [0, 1]}
    one = [coll(0, "all_reduce", 8), coll(1, "reduce", 8, 0, group="g")]
    other = [coll(0, "all_reduce", 8, 1), coll(1, "reduce", 8, group="g")]
    with pytest.raises(PlanFileError, match=r"nodes wait for each other: node . of rank ., (all_reduce|reduce)"):
        replayed(tmp_path, one, other, groups=groups)


@with_rows(
    ([1], "groups are written as"),
    ({"g": [0, 5]}, "list of different ranks from 0 to 0"),
    ({"g": [0, 0]}, "different ranks"),
    ({"g": [True]}, "different ranks"),
    ({"g": []}, "different ranks"),
    ({"g": "0"}, "different ranks"),
)
def test_groups_that_make_no_sense_are_refused(groups: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(PlanFileError, match=says):
        loaded(tmp_path, [comp(0, 1)], groups=groups)


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_damage_is_a_sentence_or_another_trace(tmp_path_factory: pytest.TempPathFactory, at: int, value: int) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    nodes = [coll(0, "all_gather", 4096), comp(1, 3, 0), coll(2, "all_reduce", 64, 1)]
    raw = bytearray(encode(nodes))
    raw[at % len(raw)] = value
    (folder / "t.0.et").write_bytes(raw)
    (folder / "t.1.et").write_bytes(encode(nodes))
    try:
        replay(load(folder / "t"), TITAN)
    except (PlanFileError, ArgumentError) as error:
        assert "\n" not in str(error)


def test_the_shipped_traces_are_what_their_program_writes(tmp_path: Path) -> None:
    made = runpy.run_path(str(ROOT / "examples/fsdp_trace.py"))
    for path in write(tmp_path / "fsdp", [made["nodes"]()] * made["RANKS"]):
        assert path.read_bytes() == (ROOT / "examples/traces" / path.name).read_bytes()


def test_the_command_shows_every_collective_and_what_shows_of_them(tmp_path: Path) -> None:
    file, trace = tmp_path / "replayed.json", tmp_path / "trace.json"
    arguments = ["simulate", "trace", str(ROOT / "examples/traces/fsdp"), "-c", "titan2-6xcz120", "-v"]
    done = cxlemu(*arguments, "--json", file, "--trace", trace, code=0)
    gather, scatter = alone_ns("all_gather", 48 * MIB, 3), alone_ns("reduce_scatter", 48 * MIB, 3)
    document = json.loads(file.read_text())
    assert [call["end_ns"] - call["begin_ns"] for call in document["calls"]] == [gather, gather, scatter, scatter]
    # layer 1 is gathered behind layer 0, which is shorter; its gradients behind layer 0's, the last ones in the open
    shows = gather + (gather - 2_000_000) + scatter
    assert [rank["exposed_ns"] for rank in document["ranks"]] == [shows] * 3
    assert document["time_ns"] == 12_000_000 + shows
    assert f"All together {document['time_ns'] / 1e3:.1f} us." in done.output
    slices = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    assert len(slices) == 3 * (4 + 4)


def test_traces_that_are_not_there_are_refused(tmp_path: Path) -> None:
    done = cxlemu("simulate", "trace", tmp_path / "none", code=2)
    assert "none.0.et does not exist" in done.stderr
    for nameless, said in ((".", "names no trace: give the traces' common"), ("/", "names no trace"), ("", "no file")):
        assert said in cxlemu("simulate", "trace", nameless, code=2).stderr


def test_groups_that_no_node_names_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "t", [[coll(0, "all_reduce", MIB)]] * 2)
    (tmp_path / "groups.json").write_text('{"nobody": [0, 1]}')
    words = ["simulate", "trace", str(tmp_path / "t"), "--groups", str(tmp_path / "groups.json")]
    done = cxlemu(*words, code=2)
    assert "--groups does nothing here" in done.stderr
    assert "--accelerator does nothing here" in cxlemu(*words[:3], "--accelerator", "h100-sxm", code=2).stderr


@pytest.mark.parametrize(("gone", "says"), [(1, "2.et"), (0, "2.et"), (2, "")])
def test_a_rank_without_a_file_is_named(tmp_path: Path, gone: int, says: str) -> None:
    write(tmp_path / "t", [[coll(0, "all_reduce", MIB)]] * 3)
    (tmp_path / "other.9.et").touch()
    (tmp_path / f"t.{gone}.et").unlink()
    done = cxlemu("simulate", "trace", tmp_path / "t")
    if says:
        assert done.exit_code == 2 and f"t.{gone}.et does not exist, but {tmp_path}/t.{says} does" in done.stderr
    else:  # nothing tells this from a trace of two ranks
        assert done.exit_code == 0 and "of 2 ranks" in done.output


@with_rows([[]], [[coll(0, "all_reduce", MIB)]], [[coll(0, "all_reduce", 0), comp(1, 0)]] * 2, [[], []])
def test_a_trace_in_which_nothing_is_to_do_is_no_success(ranks: list[list[Node]], tmp_path: Path) -> None:
    write(tmp_path / "t", ranks)
    done, document = with_json("simulate", "trace", tmp_path / "t", code=3)
    assert "Nothing was replayed: no node of this trace computes" in done.output
    assert document["time_ns"] == 0


def test_a_hosts_call_of_a_collective_is_time_of_its_processor(tmp_path: Path) -> None:
    """As PyTorch's traces have it: c10d's call on the host, and then the kernel, which is the collective."""
    for kind in (NodeType.COMM_COLL, NodeType.COMM_SEND, NodeType.COMM_RECV):
        host = Node(1, "c10d::allreduce_(0)", kind, (), 151, {"is_cpu_op": True})
        found = replayed(tmp_path, *[[host, coll(2, "all_reduce", MIB, 1)]] * 2)
        assert [each.end_ns - each.begin_ns for each in found.computed] == [151_000] * 2
        assert len(found.calls) == 1 and found.calls[0].begin_ns == 151_000


def test_nodes_that_a_converter_dropped_are_not_waited_for_where_that_is_asked(tmp_path: Path) -> None:
    write(tmp_path / "trace", [[comp(1, 5, 9), comp(2, 5, 1)]])
    with pytest.raises(PlanFileError, match="node 1 waits for node 9, which is missing; --skip-missing replays"):
        load(tmp_path / "trace")
    workload = load(tmp_path / "trace", without_missing=True)
    assert [step.after for step in workload.ranks[0]] == [(), (0,)]


def test_data_deps_order_nodes_and_ctrl_deps_where_there_are_none_or_where_that_is_asked(tmp_path: Path) -> None:
    """In Chakra's own test trace an operator and its kernel name each other, and operators that were dropped."""
    operator = Node(3490, "aten::convolution_backward(0)", NodeType.COMP, (), 75, {}, (3499, 3))
    kernel = Node(3499, "winogradWgradData4x4", NodeType.COMP, (3490,), 68, {"is_cpu_op": False}, (3490,))
    write(tmp_path / "trace", [[operator, kernel]])
    assert [step.after for step in load(tmp_path / "trace").ranks[0]] == [(), (0,)]
    both = load(tmp_path / "trace", without_missing=True, ctrl_deps=True)
    assert [step.after for step in both.ranks[0]] == [(1,), (0,)]
    with pytest.raises(PlanFileError, match="node 3490 waits for node 3, which is missing"):
        load(tmp_path / "trace", ctrl_deps=True)
    done = cxlemu("simulate", "trace", tmp_path / "trace", code=0)
    assert "computes 143.0 us" in done.output
    asked = ["simulate", "trace", str(tmp_path / "trace"), "--ctrl-deps", "--skip-missing"]
    done = cxlemu(*asked, code=2)
    assert "3490" in done.output and "3499" in done.output
    write(tmp_path / "ordered", [[comp(1, 5), Node(2, "after", NodeType.COMP, (), 5, {}, (1,))]])
    assert [step.after for step in load(tmp_path / "ordered").ranks[0]] == [(), (0,)]
    for flag in ("--ctrl-deps", "--skip-missing"):
        assert f"{flag} does nothing here" in cxlemu("simulate", "trace", tmp_path / "ordered", flag, code=2).output


@pytest.mark.deep
def test_a_trace_as_long_as_chakras_own_replays(tmp_path: Path) -> None:
    """3,664 nodes: operators of the host one after another, each with its kernel, eight of which are collectives."""
    nodes = list[Node]()
    for k in range(1, 3664, 2):
        operator = Node(k, f"aten::operator {k}", NodeType.COMP, (k - 2,) * (k > 1), 3, {"is_cpu_op": True}, (k + 1,))
        nodes += [operator, coll(k + 1, "all_reduce", MIB, k) if k % 229 == 0 else comp(k + 1, 2, k)]
    found = replayed(tmp_path, nodes, nodes)
    assert len(found.calls) == 8 and len(found.computed) == 2 * (3664 - 8)
    assert sum(each.end_ns - each.begin_ns for each in found.computed) == 2 * (1832 * 3000 + (1832 - 8) * 2000)
