"""The backend cxl of torch.distributed, beside Gloo and in torch's own tests."""

import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cxlemu.pool import segments
from tests.helpers.commands import python
from tests.helpers.tiers import PATIENT_S
from tests.helpers.torch_ranks import torch_ranks

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed: pip install cxlemu[torch]"
)
HERE = "tests.collectives.torch"
SMALL = {"CXLEMU_CARD_BYTES": "8MiB"}
ADVERSARY = {**SMALL, "CXLEMU_SEED": "7"}
SHM = {**SMALL, "CXLEMU_BACKEND": "shm"}


def died(results: list[Any]) -> str:
    return "\n".join(result["died"] for result in results if isinstance(result, dict) and "died" in result)


def check_matrix(found: dict[str, Any], at_least: int) -> None:
    assert found["only gloo"] == []
    # Gloo adds bytes of bool tensors, and leaves twos in them.
    assert [row for row in found["differ"] if "torch.bool SUM" not in row] == []
    assert found["same"] > at_least


def test_gloos_bits_in_calls_and_in_training_and_what_does_not_fit_is_said() -> None:
    found = torch_ranks(f"{HERE}.together:together", ranks=2, **ADVERSARY)
    assert not died(found)
    for of_rank in found:
        check_matrix(of_rank["beside_gloo"], 280)
        assert of_rank["ddp_beside_gloo"] is True
        assert len(of_rank["lists"]) == 6 and all(of_rank["lists"].values()), of_rank["lists"]
        said = of_rank["mistakes"]
        assert "float8_e4m3fn[4] can be sent, but not reduced" in said["f8"]
        assert "float32[2] is on meta: send tensor.cpu()" in said["device"]
        assert "float32[3] is not 2 times float32[2]" in said["shape"]
        assert "in call 8 of group 0: all_reduce sum float32[" in said["mismatch"]
        assert "was revoked" in said["after"]
        assert said["expanded"] == [[2.0] * 3, [1.0] * 3, [2.0] * 3]
        assert "root 2 is not one of the ranks 0..1" in said["root"] and said["error"] == "COMM_ERROR"
        assert said["names"] == [] and "not resizable" in said["resized"] and said["made"] == [1.0, 1.0]
    gave_up, still = found[0]["timed"]
    assert "Timed out" in gave_up and "rank 1" in gave_up and still == "0:30:00"


@pytest.mark.deep
def test_every_row_has_gloos_bits() -> None:
    found = torch_ranks(f"{HERE}.matrix:beside_gloo", "all", ranks=2, **ADVERSARY)
    assert not died(found)
    for of_rank in found:
        check_matrix(of_rank, 2000)


@pytest.mark.deep
@pytest.mark.parametrize("memory", [ADVERSARY, SHM], ids=["emulated with adversary", "shm"])
@pytest.mark.parametrize("program", ["ddp_beside_gloo", "fsdp_beside_gloo float32", "fsdp_beside_gloo bfloat16"])
def test_training_has_gloos_bits(program: str, memory: dict[str, str]) -> None:
    name, *arguments = program.split()
    assert torch_ranks(f"{HERE}.training:{name}", *arguments, ranks=2, **memory) == [True, True]


@pytest.mark.deep
@pytest.mark.parametrize("memory", [ADVERSARY, SHM], ids=["emulated with adversary", "shm"])
@pytest.mark.parametrize(
    ("way", "ranks"),
    [*((way, 4) for way in ("ddp", "fsdp", "fsdp_bf16", "tp", "pp")), ("tp", 2), ("pp", 2)],  # others of 2: above
)
def test_four_steps_on_cxl_are_four_steps_on_gloo(way: str, ranks: int, memory: dict[str, str]) -> None:
    """Two ranks have Gloo's bits; four fold floats in another order than Gloo, unless nothing is folded."""
    found = torch_ranks(f"{HERE}.parallel:trains", way, ranks=ranks, **memory)
    assert not died(found)
    tolerance = 0.0 if ranks == 2 or way == "pp" else 2e-2 if way == "fsdp_bf16" else 2e-6
    assert max(found) <= tolerance


@pytest.mark.parametrize("memory", [SHM, pytest.param(ADVERSARY, marks=pytest.mark.deep)], ids=["shm", "emulated"])
def test_a_group_makes_tensors_in_the_pool_also_for_fsdp(memory: dict[str, str]) -> None:
    found = torch_ranks(f"{HERE}.parallel:out_of_the_pool", ranks=2, **memory)
    assert not died(found)
    for of_rank in found:
        assert of_rank["offers"] and of_rank["kinds"][1] == [7, "torch.bfloat16"]
        assert (of_rank["in the pool"], of_rank["after"], of_rank["sum"]) == (4, 0, True)
        assert "not of meta" in of_rank["no other"]
        (said,) = of_rank["said"]  # twice too large, and once said
        assert "a tensor is not in the pool: the heap has no room for" in said
        assert of_rank["fsdp"] and of_rank["taken"] > 8


def test_tensors_of_a_gpu_have_the_bits_of_those_of_the_cpu() -> None:
    """A fake device is in the place of a GPU; test_real_gpu.py asks one that is there."""
    found = torch_ranks(f"{HERE}.gpu:bits", ranks=2, **SHM)
    assert not died(found)
    for of_rank in found:
        assert of_rank["differ"] == [] and of_rank["same"] > 250 and of_rank["message"]
        assert "on the CPU and on a GPU" in of_rank["said"] and "under cxlemu torchrun" in of_rank["said"]


def test_calls_on_a_gpu_come_after_what_its_stream_has_and_before_what_comes_later() -> None:
    found = torch_ranks(f"{HERE}.gpu:order", ranks=2, **SHM)
    assert not died(found)
    assert found == [[[[3.0], 0], [[21.0], True, True], [[201.0], 3], [402.0]]] * 2


@pytest.mark.parametrize("memory", [SHM, pytest.param(ADVERSARY, marks=pytest.mark.deep)], ids=["shm", "emulated"])
def test_callbacks_of_futures_make_calls_in_the_same_place_on_every_rank(memory: dict[str, str]) -> None:
    found = torch_ranks(f"{HERE}.callbacks:callbacks", ranks=2, **memory)
    assert not died(found)
    for rank, of_rank in enumerate(found):
        assert of_rank.pop("replicas") is True
        assert of_rank.pop("message", 9.0) == 9.0
        for count in (4, 1 << 16):
            its = [of_rank.pop(f"{how} {count}") for how in ("asynchronous", "synchronous", "two deep")]
            assert its == [4.0, 8.0, 6.0], rank
        assert of_rank.pop("two groups") == 10.0
        assert of_rank == {f"order {late}": 16.0 for late in range(4)}


def test_a_callback_that_waits_for_itself_is_named() -> None:
    found = torch_ranks(f"{HERE}.callbacks:waits_for_itself", ranks=2, **SHM)
    assert not died(found)
    for said, raised in found:
        (line,) = said.splitlines()
        assert "a callback of the future of call 1 of group 0: all_reduce sum float32[65536] has not ended for" in line
        assert "must not wait for its own future" in line
        assert all("Timed out waiting: a callback of the future of call 1" in each for each in raised), raised


@pytest.mark.parametrize("memory", [SHM, pytest.param(ADVERSARY, marks=pytest.mark.deep)], ids=["shm", "emulated"])
def test_what_scripts_use_beside_collectives_works_or_is_refused_in_a_sentence(
    memory: dict[str, str], tmp_path: Path
) -> None:
    found = torch_ranks(f"{HERE}.features:features", str(tmp_path), ranks=2, **memory)
    assert not died(found)
    for rank, of_rank in enumerate(found):
        assert of_rank["async save"] and of_rank["hooks"] == [True, True] and of_rank["embedding"]
        assert of_rank["sparse"] == [True] * 4 and of_rank["mesh"][1] == 3.0 and of_rank["recorded"]
        assert not (said := of_rank["monitored"]) or "only implemented for GLOO" in said  # torch's rule up to 2.13
        assert of_rank["profiled"][0] == ["all_reduce", "all_gather", "recv" if rank else "send", "broadcast"]
        assert of_rank["profiled"][1] == ["all_gather", "float32", 3, 6, 2, "[0, 1]"]
        refused = of_rank["refused"]
        if refused and all(said.startswith("NotImplementedError: Could not run 'c10d::") for said in refused.values()):
            continue  # by torch itself, from 2.14 on
        assert len(refused) == 14 * 6 - 1
        assert {name: said for name, said in refused.items() if not said.startswith("ValueError: cxl ")} == {}
        assert "which is quantized: send tensor.int_repr()" in refused["isend quantized"]
        assert "not nested ones" in refused["all_reduce nested"]


def test_a_peer_that_is_stopped_is_reported_long_before_the_groups_timeout() -> None:
    found = torch_ranks(f"{HERE}.peers:stopped", ranks=2, CXLEMU_STOPPED_AFTER_S="1.5", **SHM)
    assert not died(found)
    assert "rank 1 gave no sign of life for 1.5 s: its process is stopped; rank 0 waits in [all_reduce" in found[0]
    assert "rank 0 declared this rank, 1, lost" in found[1]


@pytest.mark.parametrize("way", ["at once", pytest.param("asynchronous", marks=pytest.mark.deep)])
def test_a_call_after_one_in_which_ranks_differed_names_that_one(way: str) -> None:
    for rank, said in enumerate(torch_ranks(f"{HERE}.peers:roots", way, ranks=2, **SHM)):
        assert f"all_reduce sum float32[3], after broadcast from {rank}: " in said


def test_sparse_tensors_of_several_shapes_are_refused_by_every_rank() -> None:
    for rank, said in enumerate(torch_ranks(f"{HERE}.peers:shapes", ranks=2, **SHM)):
        assert f"on rank {rank}: rank 0 has a sparse tensor of [5], rank 1 one of [6]" in said


@pytest.mark.parametrize("hooked", ["", pytest.param("ddp", marks=pytest.mark.deep)])
def test_a_peer_that_ends_with_exit_code_0_is_an_error_of_the_others(hooked: str) -> None:
    """The group's timeout, 30 minutes, is not waited for; DDP makes a RuntimeError of the group's error."""
    said = torch_ranks(f"{HERE}.peers:ended", hooked, ranks=2, **SHM)[0]
    assert said.startswith("RuntimeError: " if hooked else "DistBackendError: ")
    assert "DistBackendError: cxl: rank 0 in call" in said and "rank 1 died: its process" in said


@pytest.mark.deep
@pytest.mark.parametrize("how", ["exits", "raises"])
def test_a_peer_that_ends_is_reported_long_before_its_process_has_ended(how: str, tmp_path: Path) -> None:
    told = tmp_path / "told"
    env = {**os.environ, **SHM, "OMP_NUM_THREADS": "1"}
    commands = [
        [sys.executable, "-m", f"{HERE}.leaves", f"file://{tmp_path}/meet", str(rank), how, str(told)]
        for rank in range(2)
    ]
    ranks = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for command in commands]
    try:
        said, _ = [rank.communicate(timeout=2 * PATIENT_S)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert "rank 1 left; rank 0 waits in [all_reduce" in said and told.exists()


@pytest.mark.deep
@pytest.mark.parametrize("ends", ["at rest", "in a call's callback", "in a message's callback"])
def test_a_script_that_leaves_all_to_its_end_ends_without_a_traceback(ends: str, tmp_path: Path) -> None:
    env = {**os.environ, **SHM, "OMP_NUM_THREADS": "1"}
    commands = [
        [sys.executable, "-m", f"{HERE}.peers", f"file://{tmp_path}/meet", str(rank), ends] for rank in range(2)
    ]
    ranks = [subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) for command in commands]
    try:
        said = [rank.communicate(timeout=PATIENT_S)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0] and said == ["", ""], said


def test_rank_0_whose_process_may_have_the_store_leaves_a_monitored_barrier_last() -> None:
    import torch.distributed as dist

    from collectives.torch.monitored import monitored_barrier

    store, asks = dist.HashStore(), threading.Event()

    class Slow:
        """Rank 1's store, which has its last answer when rank 0's barrier is nearly done."""

        check, set = store.check, store.set

        def wait(self, keys: list[str], timeout: timedelta) -> None:
            asks.set()
            time.sleep(0.3)
            store.wait(keys, timeout)
            answered.append(keys)

    answered: list[list[str]] = []
    within = timedelta(seconds=PATIENT_S)
    peer = threading.Thread(target=monitored_barrier, args=(Slow(), 1, 2, 1, within), kwargs={"every": False})
    peer.start()
    assert asks.wait(PATIENT_S)
    monitored_barrier(store, 0, 2, 1, within, every=False)
    assert answered == [["monitored/1/done"]]
    peer.join()


@pytest.mark.deep
@pytest.mark.parametrize("backend", ["cxl", "cpu:cxl,cuda:nccl"])
@pytest.mark.parametrize("detail", ["OFF", "DETAIL"])
def test_ranks_begin_by_a_url_and_are_spawned(backend: str, detail: str, tmp_path: Path) -> None:
    done = python(
        "-m",
        f"{HERE}.features",
        f"file://{tmp_path}/meet",
        backend,
        timeout_s=2 * PATIENT_S,
        env={**os.environ, **SHM, "TORCH_DISTRIBUTED_DEBUG": detail, "TORCH_FR_BUFFER_SIZE": "100"},
    )
    if "no GPUs found" in done.stderr:
        pytest.skip("this torch has NCCL, which asks for a GPU as it begins")
    assert done.returncode == 0, done.stderr
    assert "rank 0: 3" in done.stdout and "rank 1: 3" in done.stdout


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_a_usual_tensor_is_an_array_as_it_is_and_what_cannot_be_sent_is_said() -> None:
    import torch

    from collectives.torch import tensors as of

    x = torch.ones(2, 3)
    array = of.shared(x)
    assert (
        array is not None
        and array.base.data_ptr() == x.untyped_storage().data_ptr()
        and array.ctypes.data == x.data_ptr()
        and array.shape == (6,)
    )
    bf16 = of.shared(torch.ones(3, dtype=torch.bfloat16))
    assert bf16 is not None and bf16.dtype.name == "bfloat16" and bf16.tolist() == [1, 1, 1]
    sparse = [x.to_sparse(), x.to_sparse_csr(), x.to_mkldnn()]
    copied = [x.t(), torch._neg_view(x), x.to(torch.complex64).conj(), x[:0]]
    strange = [x.to("meta"), torch.empty(2, dtype=torch.bits8)]
    assert [of.shared(each) for each in (*sparse, *copied, *strange)] == [None] * 9
    of.check(*copied)
    for each, said in zip(
        (*sparse, *strange), ["is torch.sp"] * 2 + ["is torch._mk", "is on meta", "no bits8"], strict=True
    ):
        with pytest.raises(ValueError, match=said):
            of.check(each)


@pytest.mark.deep
@pytest.mark.parametrize("memory", ["shm", "emulated"])
def test_tensors_of_a_models_size_lie_in_the_pool_by_default(memory: str) -> None:
    found = torch_ranks(f"{HERE}.parallel:of_model_size", ranks=2, CXLEMU_BACKEND=memory, CXLEMU_HEAP_BYTES="256MiB")
    assert found == [{"begun": 0, "held": 200_000_000 // 4096 * 4096 + 4096, "right": True, "trimmed": 0}] * 2


@pytest.mark.deep
@pytest.mark.parametrize("memory", [ADVERSARY, SHM], ids=["emulated with adversary", "shm"])
def test_no_other_verb_of_gloos_is_refused_or_has_other_bits(memory: dict[str, str]) -> None:
    found = torch_ranks(f"{HERE}.verbs:verbs_beside_gloo", ranks=2, **memory)
    assert not died(found)
    for of_rank in found:
        assert len(of_rank) == 23
        upstream = "only gloo, cxl refused: sourceRank() may only be called on" in of_rank["any_source"]  # from 2.14 on
        others = {name: said for name, said in of_rank.items() if not (upstream and name == "any_source")}
        assert {name: said for name, said in others.items() if said != "same" and "only cxl" not in said} == {}
        assert sum(said == "same" for said in others.values()) == 20 - upstream


def test_a_message_is_moved_on_at_once_by_a_thread_that_lingers(monkeypatch: pytest.MonkeyPatch) -> None:
    from collectives.torch import messages

    class Lingers(threading.Condition):
        def wait_for(self, predicate: Any, timeout: float | None = None) -> Any:
            lingers.set()  # nobody can notify before wait_for lets the lock go
            return super().wait_for(predicate, timeout)

    class Message:
        """Done when it is moved on."""

        def __init__(self) -> None:
            self.done, self.moved = False, threading.Event()

        def poke(self) -> None:
            self.done = True
            self.moved.set()

    monkeypatch.setattr(messages, "LINGER_S", 4 * PATIENT_S)
    lingers, progress = threading.Event(), messages.Progress()
    progress._changed = Lingers()
    for _ in range(2):
        message: Any = Message()
        progress.watch(message)
        assert message.moved.wait(PATIENT_S)
        assert lingers.wait(PATIENT_S)
    threads = [thread for thread in threading.enumerate() if thread.name == "cxl messages"]
    assert len(threads) == 1 and threads[0].daemon
    monkeypatch.setattr(messages, "LINGER_S", 0)
    last: Any = Message()
    progress.watch(last)  # which lets it end
    threads[0].join(PATIENT_S)
    assert not threads[0].is_alive()


def test_a_group_that_is_left_moves_no_message_on() -> None:
    from collectives.torch import messages

    class Message:
        def __init__(self) -> None:
            self.done, self.tests, self.tested = False, 0, threading.Event()

        def poke(self) -> None:
            self.tests += 1
            self.tested.set()

    progress, message = messages.Progress(), Message()
    ends: Any = message
    progress.watch(ends)
    assert message.tested.wait(PATIENT_S)
    assert progress.end(PATIENT_S) == [message]
    tests = message.tests
    assert not [thread for thread in threading.enumerate() if thread.name == "cxl messages"]
    assert message.tests == tests and progress.end(PATIENT_S) == [message]


@pytest.mark.deep
@pytest.mark.parametrize("memory", [SMALL, SHM], ids=["emulated", "shm"])
def test_torchrun_restarts_after_a_rank_was_killed(memory: dict[str, str], tmp_path: Path) -> None:
    before = {str(segment) for segment in segments.find() if "torch" in segment.pool}
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    python(
        "-m",
        *command,
        "-m",
        f"{HERE}.parallel",
        tmp_path,
        timeout_s=2 * PATIENT_S,
        env={**os.environ, "OMP_NUM_THREADS": "1", **memory},
        code=0,
    )
    lives = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert sorted(lives) == ["life-1-rank-0", "life-1-rank-1"]  # none of the first life came to its end
    assert all(len(losses.split(",")) == 4 for losses in lives.values())
    assert {str(segment) for segment in segments.find() if "torch" in segment.pool} - before == set()


@pytest.mark.deep
def test_all_others_name_a_rank_that_is_killed_in_ddp() -> None:
    found = torch_ranks(f"{HERE}.training:killed", ranks=3, **SMALL)
    assert found[1] == {"died": "signal 9"}
    for rank in (0, 2):
        text, _ = found[rank]
        assert "rank 1" in text and "died" in text, text


@pytest.mark.deep
def test_groups_share_one_pool_and_are_made_and_called_in_other_orders() -> None:
    found = torch_ranks(f"{HERE}.groups:many", ranks=4, **ADVERSARY)
    assert not died(found)
    for rank, of_rank in enumerate(found):
        assert of_rank["fifty in a row"] and of_rank["room is back"]
        assert of_rank["other orders"] == [[1.0, 3.0, 6.0], [1.0, 3.0, 6.0], [3.0, 6.0], [6.0]][rank]
        assert (of_rank["pools"], of_rank["own"], of_rank["pools with other options"]) == (1, 6.0, 2)
        assert (of_rank["pools after it"], of_rank["pools of a mesh"], of_rank["pools at the end"]) == (1, 1, 0)
        assert of_rank["mesh"] == [2.0 * (rank % 2) + 2, 1.0 if rank < 2 else 5.0]


def test_a_world_made_anew_in_the_same_store_is_another_world() -> None:
    found = torch_ranks(f"{HERE}.groups:again", ranks=3, **SMALL)
    assert found == [[3, 2, 3, 3, 2], [3, 3, 3, 3], [3, 2, 3, 3, 3, 2]]


@pytest.mark.deep
def test_groups_that_a_full_pool_has_no_room_for_get_another_one() -> None:
    found = torch_ranks(f"{HERE}.groups:full", ranks=2, CXLEMU_CARD_BYTES="4MiB")
    assert not died(found)
    assert [(of_rank["sums"], of_rank["pools"]) for of_rank in found] == [([1.0], 2), ([1.0], 2)]
    (said,) = found[0]["said"]
    assert "gets a pool of its own: " in said and "needs 25600 bytes or more" in said and found[1]["said"] == []


def test_torch_finds_the_backend_and_cxlemu_imports_no_torch() -> None:
    import_all = "import sys, cxlemu, collectives, faults, collectives.communicator.communicator; "
    python("-c", import_all + "assert 'torch' not in sys.modules", code=0)


# The others are in the deep tier.
FEW = ["test_all_to_all_single_equal_split", "test_all_gather_object_default_pg"]


def suite(*arguments: str, ranks: int, into: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", f"{HERE}.suite", "--ranks", str(ranks), "--json", str(into), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=6 * PATIENT_S)
    assert into.exists(), done.stdout[-3000:] + done.stderr[-3000:]
    rows: list[dict[str, Any]] = json.loads(into.read_text())["rows"]
    assert [row for row in rows if row["outcome"] == "fail"] == []
    return rows


@pytest.mark.deep
def test_some_of_torchs_own_tests_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXLEMU_CARD_BYTES", "8MiB")
    assert {row["outcome"] for row in suite(*FEW, ranks=2, into=tmp_path / "rows.json")} == {"pass"}


SHARDS = 4


@pytest.mark.deep
@pytest.mark.parametrize("shard", range(SHARDS))
def test_torchs_own_tests_pass(shard: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some tests skip themselves: they are for other backends, or for other numbers of ranks."""
    monkeypatch.setenv("CXLEMU_CARD_BYTES", "8MiB")
    rows = suite("--shard", f"{shard}/{SHARDS}", ranks=4, into=tmp_path / "rows.json")
    assert sum(row["outcome"] == "pass" for row in rows) > len(rows) // 2
