"""`cxlemu bench`: what workers promise their coordinator, how rows are made of times, and a tiny run without peers."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectives import Communicator
from collectives.contracts import COLLECTIVES, buffers
from cxlemu import RankContext, _measure, launch
from cxlemu.accelerator.fake import FakeDevice
from cxlemu.errors import DeadlineError, RankDiedError, RunError
from cxlemu.memory import MemorySpec
from cxlemu.plan import Call
from studies.peers import bounds as limits
from studies.peers import compare, find, ratios, worker
from studies.peers.group import Group, PeerProcess, worker_arguments
from studies.peers.on_device import device_paths
from studies.peers.ours import OurPeer
from studies.peers.ratios import LIMIT, OURS, Lane, RatioRow, Samples, Timing
from studies.peers.worker import Repeated
from tests.helpers.commands import cxlemu, with_json
from tests.helpers.tables import with_rows
from tests.helpers.tiers import PATIENT_S
from tests.helpers.worlds import calls_of

DATA = [name for name, contract in COLLECTIVES.items() if contract.among_all]


# --- sizes and rows


def test_sizes_are_8_bytes_and_every_power_of_four() -> None:
    every = compare.default_sizes()
    assert every[:4] == [8, 16, 64, 256]
    assert every[-1] == 64 << 20
    assert len(every) == 13
    assert compare.default_sizes(1024, 4096) == [1024, 4096]


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_every_cell_has_whole_elements_and_no_cell_comes_twice(ranks: int) -> None:
    calls = compare.cells(DATA, compare.default_sizes(), ranks)
    assert all(call.nbytes > 0 and call.nbytes % 4 == 0 for call in calls)
    assert len({(call.collective, call.nbytes) for call in calls}) == len(calls)


def all_reduce(nbytes: int = 1024) -> Call:
    return Call("all_reduce", "auto", 2, nbytes, "f32", "sum")


def samples(**us: list[float]) -> dict[Lane, Samples]:
    """Times of lanes named ``implementation_path``, sources not rewritten."""
    return {
        Lane(*name.split("_")): Samples(10, {False: [Timing(time_us, 0.0) for time_us in taken]})
        for name, taken in us.items()
    }


def test_a_row_has_medians_and_ratios_to_the_best_peer_and_the_limit() -> None:
    taken = samples(
        cxlemu_call=[2.0, 9.0, 1.0], openmpi_call=[8.0], mpich_call=[4.0], limit_moves=[0.5], limit_line=[0.4]
    )
    row = ratios.row(all_reduce(), taken, False, {OURS: 0}, {"gloo": "has none"})
    assert (row.ours_us, row.handle_us) == (2.0, None)
    assert row.peers_us == {"openmpi": 8.0, "mpich": 4.0}
    assert (row.best_peer, row.ratio_to_best_peer) == ("mpich", 0.5)
    assert (row.limit_us, row.ratio_to_limit) == (0.5, 4.0)
    assert row.spread_us["cxlemu/call"] == (1.0, 9.0)
    assert row.absent == {"gloo": "has none"}


def test_below_some_size_the_limit_is_half_a_round_trip_of_a_line() -> None:
    taken = samples(cxlemu_call=[1.0], limit_moves=[0.01], limit_line=[0.4])
    row = ratios.row(all_reduce(8), taken, False, {}, {})
    assert row.limit_us == 0.2
    assert (row.best_peer, row.ratio_to_best_peer) == (None, None)


def test_the_least_time_of_rewriting_is_subtracted() -> None:
    taken = Samples(10, {True: [Timing(10.0, 3.0), Timing(12.0, 7.0), Timing(2.0, 4.0)]})
    assert taken.us(True) == [7.0, 9.0, ratios.LEAST_US]


def test_means_are_geometric_by_size_class_and_overall() -> None:
    def row(nbytes: int, ours_us: float) -> RatioRow:
        taken = samples(cxlemu_call=[ours_us], openmpi_call=[1.0], limit_moves=[1.0], limit_line=[1.0])
        return ratios.row(all_reduce(nbytes), taken, False, {}, {})

    means = ratios.means([row(8, 4.0), row(1024, 1.0), row(1 << 20, 0.5)])
    found = {mean.size_class: (mean.rows, mean.to_best_peer) for mean in means}
    assert found == {
        "<= 1 KiB": (2, pytest.approx(2.0)),
        ">= 1 MiB": (1, pytest.approx(0.5)),
        "all sizes": (3, pytest.approx(2.0 ** (1 / 3))),
    }


def cell(call_us: list[float], limit_us: float = 1.0) -> RatioRow:
    taken = samples(cxlemu_call=call_us, openmpi_call=[1.2], limit_moves=[limit_us], limit_line=[0.1])
    return ratios.row(all_reduce(), taken, False, {}, {})


def test_a_time_far_below_the_limit_is_impossible_and_counts_for_no_mean() -> None:
    assert cell([0.5]).impossible == ()
    assert cell([0.4]).impossible == ("cxlemu/call",)
    assert cell([ratios.LEAST_US], limit_us=ratios.LEAST_US).impossible == ("cxlemu/call",)
    found = ratios.means([cell([2.4]), cell([0.01])])
    assert {mean.rows for mean in found} == {1} and found[0].to_best_peer == pytest.approx(2.0)


def test_calls_on_a_device_are_beside_staging_and_nccl_and_no_peers_of_the_hosts() -> None:
    taken = samples(
        cxlemu_call=[2.0],
        cxlemu_device=[0.1],
        cxlemu_hand=[0.4],
        nccl_call=[0.2],
        mpich_call=[4.0],
        limit_moves=[2.0],
        limit_line=[0.4],
    )
    row = ratios.row(all_reduce(), taken, False, {}, {})
    assert (row.device_us, row.hand_us, row.nccl_us) == (0.1, 0.4, 0.2)
    assert row.peers_us == {"mpich": 4.0} and row.impossible == ()  # the limit is that of cores
    mean = ratios.means([row])[-1]
    assert (mean.device_to_hand, mean.device_to_nccl) == (pytest.approx(0.25), pytest.approx(0.5))
    absent = ratios.means([cell([2.0])])[-1]
    assert (absent.device_to_hand, absent.device_to_nccl) == (None, None)


@pytest.mark.parametrize(("impossible", "measured"), [(0, 1), (1, 2), (9, compare.MEASURED_MOST)])
def test_a_cell_is_measured_again_while_its_times_are_impossible(
    impossible: int, measured: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes = [Lane(OURS, "call"), Lane(LIMIT, "moves"), Lane(LIMIT, "line")]
    asked: list[str] = []

    def timing(group: str, path: str, iterations: int, rewritten: bool) -> Timing:
        asked.append(path)
        return Timing(1e-4 if path == "call" and asked.count("call") <= impossible else 1.0, 0.0)

    monkeypatch.setattr(compare, "_timing", timing)
    monkeypatch.setattr(compare, "_calibrated", lambda group, path: 10)
    monkeypatch.setattr(compare.Comparison, "_prepare", lambda self, call: (lanes, {}, {}))
    comparison = compare.Comparison(2, {OURS: OURS, LIMIT: LIMIT}, [])  # type: ignore[dict-item]
    [row] = comparison.measure(all_reduce(), alternations=1, modes=[False])
    assert row.measured == measured and bool(row.impossible) == (impossible == 9)
    assert asked.count("call") == measured


# --- the limits


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@with_rows(  # in blocks, of n ranks
    ("broadcast", lambda n: 0, lambda n: 1),
    ("scatter", lambda n: 1, lambda n: 1),
    ("all_gather", lambda n: n, lambda n: n),
    ("gather", lambda n: 1, lambda n: 1),
    ("all_to_all", lambda n: n, lambda n: n),
    ("reduce_scatter", lambda n: n, lambda n: n),
    ("all_reduce", lambda n: 2 - 1 / n, lambda n: 2 - 1 / n),
    ("reduce", lambda n: 2 - 1 / n, lambda n: 1),
)
def test_the_bytes_of_a_limit(collective: str, root_reads: Any, others_read: Any, ranks: int) -> None:
    block = 4 * 24
    op = "sum" if COLLECTIVES[collective].reduces else "none"
    call = Call(collective, "auto", ranks, block, "f32", op, 0, in_place=collective == "broadcast")
    for rank in range(ranks):
        moves = limits.moves(call, rank)
        expected = (others_read if rank else root_reads)(ranks) * block
        assert sum(move.nbytes * len(move.sources) for move in moves) == pytest.approx(expected)
        for move in moves:
            for source, offset in move.sources:
                assert offset + move.nbytes <= buffers(call, source)[0].nbytes


def test_shares_of_a_sum_are_whole_elements_also_where_there_are_fewer_than_ranks() -> None:
    call = Call("all_reduce", "auto", 4, 8, "f32", "sum")
    for rank in range(4):
        assert all(move.nbytes % 4 == 0 and move.nbytes > 0 for move in limits.moves(call, rank))


def test_moves_copy_and_sum_in_c() -> None:
    a, b, c = (np.arange(10_000, dtype=np.float32) * factor for factor in (1, 10, 100))
    copied, summed = np.zeros_like(a), np.zeros_like(a)
    _measure.move(((copied, (b,)), (summed, (a, b, c))), None, 2)
    assert np.array_equal(copied, b)
    assert np.array_equal(summed, a + b + c)
    with pytest.raises(ValueError, match="same size"):
        _measure.move(((copied, (b[:10],)),), None, 1)
    with pytest.raises(ValueError, match="1 to 64 sources"):
        _measure.move(((copied, ()),), None, 1)


# --- workers and their coordinator


class Alone:
    """An implementation of one rank, whose all_reduce is a copy; or, with ``wrong``, forgets an element."""

    rank = 0

    def __init__(self, *, wrong: bool = False) -> None:
        self._wrong = wrong

    def prepare(self, command: dict[str, Any]) -> dict[str, Repeated]:
        if command["collective"] != "all_reduce":
            raise NotImplementedError("there is only all_reduce")
        x, out = buffers = worker.allocate(command)
        assert x is not None and out is not None
        last = -1 if self._wrong else None
        return {"call": Repeated(lambda: np.copyto(out[:last], x[:last]), buffers)}

    def barrier(self) -> None:
        pass


PREPARE = {
    "do": "prepare",
    "collective": "all_reduce",
    "ranks": 1,
    "root": 0,
    "input_bytes": 64,
    "output_bytes": 64,
    "in_place": False,
    "pieces": [(0, 64, [(0, 0)])],
}


def served(tmp_path: Path, implementation: Alone, *commands: dict[str, Any]) -> list[dict[str, Any]]:
    """What a worker answers."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen(1)
        thread = threading.Thread(target=worker.serve, args=(implementation, str(tmp_path / "s"), "0.0"), daemon=True)
        thread.start()
        connection, _ = listener.accept()
        connection.settimeout(10)
        with connection, connection.makefile("rw") as stream:
            answers = [json.loads(stream.readline())]
            for command in commands:
                stream.write(json.dumps(command) + "\n")
                stream.flush()
                answers.append(json.loads(stream.readline()))
        thread.join(10)
        assert not thread.is_alive()  # the end of the stream is the end of the worker
    return answers


def test_a_worker_says_who_it_is_prepares_and_times(tmp_path: Path) -> None:
    timed = {"do": "time", "path": "call", "iterations": 3}
    hello, prepared, same, rewritten = served(
        tmp_path, Alone(), PREPARE, timed | {"rewritten": False}, timed | {"rewritten": True}
    )
    assert (hello["rank"], hello["version"]) == (0, "0.0")
    assert prepared == {"wrong": {"call": 0}}
    assert same["ns"] > 0 and same["rewrite_ns"] == 0
    assert rewritten["ns"] > 0 and rewritten["rewrite_ns"] > 0


def test_wrong_elements_are_counted_in_every_checked_call(tmp_path: Path) -> None:
    assert served(tmp_path, Alone(wrong=True), PREPARE)[1] == {"wrong": {"call": worker.CHECKED_CALLS}}


def test_what_an_implementation_does_not_have_is_said(tmp_path: Path) -> None:
    answers = served(tmp_path, Alone(), PREPARE | {"collective": "scatter"})
    assert answers[1] == {"absent": "there is only all_reduce"}


def test_a_broadcast_has_one_array() -> None:
    command = PREPARE | {"input_bytes": 0, "in_place": True}
    assert worker.allocate(command).x is None
    root = worker.allocate(PREPARE | {"in_place": True})
    assert root.x is root.out


def group_of(code: str, *, deadline_s: float = 30.0) -> Group:
    """A group whose one process runs ``code``, with the socket's path in sys.argv."""
    group = Group("peer", 1, deadline_s=deadline_s)
    with_path = f"import sys; sys.path.append({str(Path(__file__).parents[2])!r}); {code}"
    with group:
        group.start([PeerProcess((sys.executable, "-c", with_path, group.socket_path))])
    return group


def test_a_worker_that_does_not_start_is_reported_with_what_it_printed() -> None:
    with pytest.raises(RankDiedError, match=r"(?s)exit code 3.*no such library"):
        group_of("print('no such library', file=sys.stderr, flush=True); sys.exit(3)")


def test_a_pool_that_has_no_room_is_one_sentence(tmp_path: Path) -> None:
    laptop = (Path(__file__).parents[2] / "configs/laptop.yaml").read_text()
    (tmp_path / "huge.yaml").write_text(laptop.replace("1GiB", "64TiB").replace("8MiB", "64TiB"))
    done = cxlemu("bench", "broadcast", *TINY, "-c", tmp_path / "huge.yaml", code=2)
    assert done.stderr.startswith("cxlemu: /dev/shm has ") and done.stderr.count("\n") == 1


def test_a_worker_that_does_not_come_is_a_deadline() -> None:
    with pytest.raises(DeadlineError, match="0 of 1 ranks connected within"):
        group_of("import time; time.sleep(60)", deadline_s=0.5)


def test_a_worker_that_fails_is_quoted() -> None:
    code = worker_arguments(sys.executable, "limit")
    with Group("limit", 1, deadline_s=30.0) as group:
        descriptor = os.memfd_create("test")
        os.ftruncate(descriptor, 8 << 20)
        arguments = map(str, (group.socket_path, descriptor, 0, 1, 4 << 20, 30.0))
        group.start([PeerProcess((*code, *arguments), pass_fds=(descriptor,))])
        os.close(descriptor)
        with pytest.raises(RunError, match=r"(?s)limit: rank 0 failed.*KeyError"):
            group.ask({"do": "time", "path": "no such path", "iterations": 1, "rewritten": False})


# --- arrays in the pool


def in_pool(context: RankContext, collective: str, nbytes: int) -> tuple[str, int]:
    """Which variant a call with arrays in the pool takes, and how many elements of its result are wrong."""
    with Communicator.world(context, engine="native", heap_bytes=8 << 20) as comm:
        taken = calls_of(comm)
        command = compare._preparation(Call(collective, "auto", comm.size, nbytes, "f32"), comm.rank, limit=False)
        pool = OurPeer(comm).prepare(command)["pool"]
        return taken[-1].algorithm, worker.wrong_elements(pool.once, pool.buffers, comm.rank, command["pieces"])


@with_rows(
    ("gather", 64 << 10, "push"),
    ("gather", 4 << 10, "aggregate"),
    ("scatter", 64 << 10, "zero_copy"),
    ("all_gather", 64 << 10, "zero_copy"),
    ("all_gather", 1 << 20, "push"),
)
def test_arrays_in_the_pool_are_moved_with_one_copy(collective: str, nbytes: int, variant: str) -> None:
    program = partial(in_pool, collective=collective, nbytes=nbytes)
    assert launch(program, ranks=2, memory=MemorySpec("shm"), how="threads") == [(variant, 0)] * 2


# --- arrays of a device


def lazily(context: RankContext, names: list[str]) -> list[Any]:
    """Every collective on a device that does nothing before somebody waits: wrong elements, and whether it was idle."""
    device, found = FakeDevice(context.rank, eagerness=0), []
    with Communicator.world(context, engine="native") as comm:
        for name in names:
            op = "sum" if COLLECTIVES[name].reduces else "none"
            call = Call(name, "auto", comm.size, 4096, "f32", op, 0, in_place=COLLECTIVES[name].one_buffer)
            command = compare._preparation(call, comm.rank, limit=False)
            prepared = OurPeer(comm, device).prepare(command)
            for path in ("device", "hand"):
                each = prepared[path]
                wrong = worker.wrong_elements(each.once, each.buffers, comm.rank, command["pieces"])
                for run in (each.repeat, each.rewrite_and_repeat, each.rewrite):
                    run(2)
                    idle = all(not queue.todo for queue in device._queues)
                    found.append((name, path, wrong, idle))
    return found


def test_calls_on_a_device_are_right_and_a_time_ends_when_the_device_has_done_them() -> None:
    for found in launch(partial(lazily, names=DATA), ranks=3, topology="six-cards", how="threads"):
        assert len(found) == len(DATA) * 6
        assert [(wrong, idle) for _, _, wrong, idle in found] == [(0, True)] * len(found), found


def test_a_source_is_rewritten_on_the_device() -> None:
    device, host = FakeDevice(eagerness=0), worker.Buffers(np.zeros(4, np.float32), np.zeros(4, np.float32))
    seen: list[Any] = []
    bound: list[Any] = []

    def handle(buffers: Any) -> Any:
        bound.append(buffers)
        return lambda: seen.append(buffers.x.get() if buffers.x is bound[1].x else buffers.x.copy())

    paths = device_paths(host, device, handle)
    for path in ("hand", "device"):
        host.x[:] = 5  # type: ignore[index]
        paths[path].once()
        paths[path].rewrite_and_repeat(1)
        assert [each.tolist() for each in seen] == [[5] * 4, [1] * 4], path
        seen.clear()


@with_rows(
    ("fake", "2", "fake is not a GPU"),
    ("cuda", "torch without NCCL", "torch without NCCL"),
    ("cuda:0", "1", "it needs a GPU for each of 2 ranks, and there are 1"),
    ("cuda", "2", ""),
)
def test_nccl_is_there_where_each_rank_has_a_gpu_and_else_says_why_not(
    accelerator: str, says: str, reason: str, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{says}'\n")
    python.chmod(0o755)
    found = find.find_nccl(accelerator, 2, {"nccl": str(python)})
    if reason:
        assert isinstance(found, find.Absent) and found.reason.endswith(reason)
    else:
        assert found == find.Peer("nccl", str(python), None)


@pytest.mark.deep  # the deep tier has torch where it can be installed
def test_the_worker_of_nccl_is_right_with_gloo_in_its_place(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = """
from studies.peers import nccl
class Stand(nccl.NcclPeer):
    backend = "gloo"
nccl.NcclPeer = Stand
nccl.main(*sys.argv[1:])
"""
    with Group("nccl", 2, deadline_s=60.0) as group:
        path = f"import sys; sys.path.append({str(Path(__file__).parents[2])!r})\n"
        arguments = str(group.folder / "store"), "60"
        group.start(
            PeerProcess((sys.executable, "-c", path + code, group.socket_path, str(rank), "2", *arguments))
            for rank in range(2)
        )
        for call in compare.cells(["all_reduce", "broadcast", "all_gather"], [64], 2):
            commands = [compare._preparation(call, rank, limit=False) for rank in range(2)]
            for answer in group.ask({"do": "prepare"}, commands):
                assert answer == {"wrong": {"call": 0}}
            timed = {"do": "time", "path": "call", "iterations": 2, "rewritten": True}
            assert all(answer["ns"] > 0 for answer in group.ask(timed))


# --- peers


def test_without_anything_on_path_every_peer_is_absent_for_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    nowhere = dict.fromkeys(find.NAMES, "/nonexistent/python")
    found = {name: find.find(name, nowhere) for name in find.NAMES}
    reasons = {name: peer.reason for name, peer in found.items() if isinstance(peer, find.Absent)}
    assert reasons.keys() == set(find.NAMES)
    assert "no mpirun.openmpi or mpirun" in reasons["openmpi"]
    assert "MPICH on PATH" in reasons["mpich"]
    assert reasons["gloo"] == "/nonexistent/python: /nonexistent/python: No such file or directory"


def test_a_launcher_is_known_by_what_it_says(tmp_path: Path) -> None:
    for name, says in (("mpirun", "HYDRA build details:"), ("mpiexec", "mpiexec (OpenRTE) 4.1.4")):
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{says}'\n")
        (tmp_path / name).chmod(0o755)
    launcher = partial(find._launcher, beside=tmp_path)
    assert launcher(find.MPIS["openmpi"]) == str(tmp_path / "mpiexec")
    assert launcher(find.MPIS["mpich"]) == str(tmp_path / "mpirun")


@pytest.mark.parametrize("name", find.NAMES)
def test_only_mpi_is_told_to_copy_twice(name: str) -> None:
    peer = find.Peer(name, "python", "mpirun")
    environments = []

    class Started:
        ranks, socket_path, folder = 1, "socket", Path()

        def start(self, programs: Any) -> None:
            environments.append([program.environment for program in programs])

    for single_copy in (True, False):
        peer.start(Started(), single_copy=single_copy, deadline_s=1.0)  # type: ignore[arg-type]
    [allowed], [forbidden] = environments
    expected = dict(find.MPIS[name].two_copies) if name in find.MPIS else {}
    assert dict(forbidden) == {**allowed, **expected}
    assert not expected.keys() & allowed.keys()


# --- the command


bench = partial(cxlemu, "bench")


SIZES = [8]
TINY = ("--peers", "none", "--alternations", "1", "-b", "8", "-e", "8")


def in_a_checkout(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go where `import cxlemu` would find a checkout without what was compiled."""
    (folder / "cxlemu").mkdir()
    (folder / "cxlemu" / "__init__.py").write_text("raise ImportError('not compiled')\n")
    monkeypatch.chdir(folder)


@pytest.mark.parametrize("names", [("broadcast",), pytest.param(("all_reduce", "broadcast"), marks=pytest.mark.deep)])
def test_a_tiny_run_without_peers_has_all_rows_in_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    monkeypatch.setattr(compare, "BANDWIDTH_BYTES", 1 << 20)
    in_a_checkout(tmp_path, monkeypatch)
    done, document = with_json("bench", *names, *TINY, code=0)
    assert f"{2 * len(names)} rows, 0 wrong" in done.output
    assert document["wrong"] == 0
    assert document["machine"]["copy_gbytes_per_s"] > 0
    rows = document["rows"]
    cells = [(row["collective"], row["bytes"], row["rewritten"]) for row in rows]
    assert cells == [(c, n, r) for c in names for n in SIZES for r in (False, True)]
    for row in rows:
        assert row["ranks"] == 2
        assert row["peers_us"] == {}
        assert row["ratio_to_best_peer"] is None
        assert row["ours_us"] > 0 and row["limit_us"] > 0 and row["pool_us"] > 0
        assert row["ratio_to_limit"] == pytest.approx(row["ours_us"] / row["limit_us"])
        assert row["wrong"] == {OURS: 0, LIMIT: 0}


@pytest.mark.deep
def test_a_peer_that_is_named_and_not_here_is_not_ok(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "BANDWIDTH_BYTES", 1 << 20)
    monkeypatch.setattr(find, "find", lambda name, pythons: find.Absent(name, "no such thing"))
    done = bench("broadcast", "--source", "same", "--peers", "mpich", *TINY[2:])
    assert (done.exit_code, "left out: mpich: no such thing" in done.output) == (3, True), done.output


@pytest.mark.deep
def test_a_run_from_process_to_process_has_its_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "BANDWIDTH_BYTES", 1 << 20)
    asked = ("--source", "same", "--transport", "process", "--json", str(tmp_path / "b.json"))
    assert " process " in bench("all_gather", *TINY, *asked, "-n", "3", code=0).output
    document = json.loads((tmp_path / "b.json").read_text())
    (row,) = document["rows"]
    assert document["transport"] == "process" and row["process_us"] > 0 and row["wrong"] == {OURS: 0, LIMIT: 0}


@pytest.mark.deep
def test_a_run_with_a_fake_device_says_what_its_column_is_worth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "BANDWIDTH_BYTES", 1 << 20)
    asked = ("--source", "same", "--accelerator", "fake", "--json", str(tmp_path / "b.json"))
    done = bench("all_gather", *TINY, *asked, "--plot", str(tmp_path / "b.png"), code=0)
    assert "say nothing about a GPU" in done.output and "nccl     absent: fake is not a GPU" in done.output
    document = json.loads((tmp_path / "b.json").read_text())
    assert document["accelerator"] == "fake" and document["absent"] == {"nccl": "fake is not a GPU"}
    (row,) = document["rows"]
    assert row["device_us"] > 0 and row["hand_us"] > 0 and row["nccl_us"] is None


@pytest.mark.deep
def test_all_eight_collectives_on_three_ranks() -> None:
    done = bench(*TINY, "-n", "3", "--source", "same", code=0)
    assert f"{len(compare.cells(DATA, SIZES, 3))} rows, 0 wrong" in done.output


@with_rows(
    (["barrier"], "'barrier' is not a collective that moves data"),
    (["--peers", "nccl"], "'nccl' is not one of openmpi, mpich, gloo"),
    (["--peer-python", "openmpi"], "takes NAME=PATH"),
    (["--peers", ""], "'' is not one of openmpi, mpich, gloo"),
    (["--peers", "gloo", "--peer-python", "mpich=python"], "mpich is not among the peers"),
    (["--peers", "gloo", "--no-single-copy"], "no MPI is among the peers"),
    (["--deadline-s", "inf"], "not in the range"),
    (["--accelerator", "gpu"], "unknown device 'gpu'"),
    (["-b", "9", "-e", "15"], "no size between 9 and 15"),
    (["--json", "/nonexistent/b.json"], "--json /nonexistent/b.json cannot be written"),
    (["--plot", "/nonexistent/b.png"], "--plot /nonexistent/b.png cannot be written"),
    (["--plot", "b.gif"], "--plot b.gif: no picture ends in .gif; give one of .png, .svg, .pdf"),
)
def test_bad_input_is_refused(arguments: list[str], message: str) -> None:
    assert message in bench(*arguments, code=2).output


@pytest.mark.deep
def test_a_plot_is_of_the_kind_that_its_suffix_says_and_the_same_twice(tmp_path: Path) -> None:
    from studies.cli.bench_plot import draw
    from studies.cli.picture import KINDS, save

    taken = samples(
        cxlemu_call=[2.0],
        cxlemu_handle=[1.0],
        cxlemu_pool=[0.9],
        openmpi_call=[4.0],
        limit_moves=[0.5],
        limit_line=[0.4],
    )
    rows = [ratios.row(all_reduce(nbytes), taken, False, {}, {}) for nbytes in (8, 1024)]
    begins = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF", "jpg": b"\xff\xd8", "webp": b"RIFF"}
    assert begins.keys() == KINDS.keys()
    for kind, magic in {**begins, "": begins["png"]}.items():
        files = [tmp_path / name / f"b.{kind}".rstrip(".") for name in ("once", "again")]
        for file in files:
            file.parent.mkdir(exist_ok=True)
            save(draw(rows, title="test"), "--plot", file)
        once, again = (file.read_bytes() for file in files)
        assert once.startswith(magic) and once == again


def test_a_plot_has_no_impossible_time_and_all_others_within_its_axis() -> None:
    from studies.cli.bench_plot import draw

    taken = samples(cxlemu_call=[2.0], cxlemu_pool=[0.05], openmpi_call=[4.0], limit_moves=[0.1], limit_line=[0.1])
    rows = [ratios.row(all_reduce(8), taken, False, {}, {}), replace(cell([0.4]), bytes=1024)]
    panel = draw(rows, title="test").axes[0]
    drawn = {line.get_label(): list(line.get_ydata()) for line in panel.get_lines()}
    assert drawn.pop("this machine's limit") == [0.1, 1.0]
    assert {name: len(times) for name, times in drawn.items()} == dict.fromkeys(drawn, 1)
    assert panel.get_ylim()[0] < 0.05 and len(drawn) == 3
    assert len(draw(rows[1:], title="test").axes[0].get_lines()) == 1


@pytest.mark.deep
def test_ctrl_c_leaves_nothing_behind() -> None:
    arguments = [sys.executable, "-m", "cxlemu", "bench", "--peers", "none", "--source", "same"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONUNBUFFERED": "1"}
    running = subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for line in running.stdout:
        if line.startswith("# machine"):
            break
    family = descendants(running.pid)
    assert len(family) >= 5  # the parent of our ranks, and two ranks each of ours and the limit
    running.send_signal(signal.SIGINT)
    assert running.wait(PATIENT_S) == 130
    running.stdout.close()
    ends = time.monotonic() + PATIENT_S
    while time.monotonic() < ends and any(map(alive, family)):
        time.sleep(0.05)
    assert [pid for pid in family if alive(pid)] == []
    assert [path for path in Path("/dev/shm").iterdir() if any(f"-{pid}-" in path.name for pid in family)] == []


def descendants(pid: int) -> list[int]:
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        children += map(int, (task / "children").read_text().split())
    return [*children, *(each for child in children for each in descendants(child))]


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
