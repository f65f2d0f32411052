"""cxlemu torchrun: training scripts compared, disturbed and restarted; calls that went wrong, made again."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from collectives.communicator.communicator import Communicator
from cxlemu.engines import engine_for
from cxlemu.errors import ArgumentError
from cxlemu.memory import MemorySpec
from cxlemu.memory.rates import DEFAULT_RATES
from cxlemu.plan import DTYPES, Op
from cxlemu.pool import segments
from cxlemu.world import RankContext, launch
from faults.cli.torchrun import TorchrunFlags
from faults.cli.torchrun_rounds import place
from faults.cli.torchrun_run import _tell as tell
from faults.cli.torchrun_undone import undone
from faults.torch.launch import Round, run_ranks
from faults.torch.leaving_out import LeavingOut
from faults.torch.saved import FORMAT, SavedCall, load, replay
from faults.torch.script import TrainingScript
from faults.torch.settings import PARENT, VARIABLE, Settings
from tests.helpers.commands import cxlemu, python
from tests.helpers.tables import with_rows
from tests.helpers.tiers import PATIENT_S
from tests.helpers.torch_ranks import torch_ranks

ROOT = Path(__file__).parents[2]
SLOTS_MAX = 32  # of a ring here
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed: pip install cxlemu[torch]"
)


def kept(folder: Path, collective: str, op: str, changes: dict[str, Any]) -> Path:
    its = SavedCall(
        FORMAT, "it was wrong", collective, op, 0, "f32", 2, "laptop", "emulated", None, asdict(DEFAULT_RATES), 0, []
    )
    folder.mkdir()
    (folder / "call.json").write_text(json.dumps({**asdict(its), **changes}))
    for rank in range(2):
        array = (np.arange(1 << 12) + 100 * rank + 1).astype(DTYPES["f32"])  # too large for a doorbell's line
        np.save(folder / f"input-{rank}.npy", array.view(np.uint8))
    return folder


CALLS = ["all_reduce sum", "all_reduce avg", "reduce max", "reduce_scatter prod", "broadcast none", "all_gather none"]
CALLS += ["gather none", "scatter none", "all_to_all none"]


@pytest.mark.parametrize("call", CALLS)
def test_a_kept_call_is_right_alone_and_wrong_without_its_invalidates(call: str, tmp_path: Path) -> None:
    collective, op = call.split()
    assert replay(*load(kept(tmp_path / "right", collective, op, {}))) == []
    guilty = 0 if collective in ("reduce", "gather") else 1  # who reads
    left_out = [{"rank": guilty, "instruction": "INVALIDATE"}]
    found = replay(*load(kept(tmp_path / "wrong", collective, op, {"leave_out": left_out})))
    assert any(f"rank {guilty}, element" in sentence for sentence in found)


def test_a_replay_writes_json(tmp_path: Path) -> None:
    folder = kept(tmp_path / "right", "all_gather", "none", {})
    done = cxlemu("torchrun", "--replay", folder, "--json", "-", code=0)
    assert json.loads(done.stdout) == {"kept": "it was wrong", "wrong": []}


@with_rows(
    ({"format": 2}, "was not saved by cxlemu torchrun"),
    ({"collective": "os.system"}, "there is no call os.system"),
    ({"dtype": "object"}, "of object"),
    ({"ranks": 10**9}, "ranks are not 1 to 64"),
    ({"ranks": 3}, "input-2.npy cannot be read: No such file"),
)
def test_a_damaged_call_is_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=said):
        load(kept(tmp_path / "call", "all_reduce", "sum", change))


def test_a_pickle_is_not_read(tmp_path: Path) -> None:
    folder = kept(tmp_path / "call", "all_reduce", "sum", {})
    np.save(folder / "input-1.npy", np.array([print], object), allow_pickle=True)
    with pytest.raises(ArgumentError, match="damaged"):
        load(folder)


@with_rows(
    ([], "name the training script"),
    (["nothing.py"], "nothing.py is not a file"),
    (["--leave-out", "INVALIDATE", __file__], "RANK:INSTRUCTION"),
    (["--leave-out", "1:INVALDATE", __file__], "no instruction 'INVALDATE'; did you mean INVALIDATE?"),
    (["--leave-out", "2:INVALIDATE", __file__], "numbered 0 to 1"),
    (["--backend", "tape", __file__], "a backend is one of"),
    (["--pace", "six-cards", "-c", "laptop", __file__], "leave out --config"),
    (["--pace", "six-cards", "--compare", "gloo", __file__], "--pace does not go with --compare"),
    (["--card-bytes", "1", __file__], "card_bytes is 1 but should hold at least two granules of 65536 bytes"),
)
def test_what_cannot_be_run_is_said(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if importlib.util.find_spec("torch") is None and __file__ in arguments:
        pytest.skip("torch is not installed")
    monkeypatch.chdir(tmp_path)
    done = cxlemu("torchrun", *arguments, code=2)
    assert said in done.output, done.output
    assert list(tmp_path.iterdir()) == []


def torchrun(*arguments: str, cwd: Path, code: int) -> subprocess.CompletedProcess[str]:
    words = ("-P", "-m", "cxlemu", "torchrun", "--card-bytes", "8M", *arguments)
    env = {**os.environ, "TMPDIR": str(cwd)}  # where a call that differs is kept
    return python(*words, code=code, timeout_s=2 * PATIENT_S, cwd=cwd, env=env)


TRAIN = str(ROOT / "examples/train_ddp.py")


@needs_torch
@pytest.mark.deep
def test_the_invalidate_that_is_taken_out_is_named_in_the_first_step(tmp_path: Path) -> None:
    done = torchrun("--compare", "gloo", "--leave-out", "1:INVALIDATE", TRAIN, "3", cwd=tmp_path, code=1)
    assert "nothing was" not in done.stdout + done.stderr  # compared, or left out: ranks that failed had not said
    assert "step 0" not in done.stdout
    (wrong,) = (line for line in done.stderr.splitlines() if line.startswith("wrong: "))
    assert "of group 0, all_reduce sum of" in wrong and "differs from Gloo: rank 0, element" in wrong
    assert "the prover: rank 1 reads line" in wrong and "did not invalidate it" in wrong
    table = done.stdout[done.stdout.index(" rank  what") :].splitlines()
    told = re.compile(r"DistBackendError: see below \(train_ddp.py line \d+\)")
    assert max(map(len, table)) <= 80 and sum(bool(told.search(row)) for row in table) == 2
    assert "(call " not in wrong  # which would be the prover's own number
    (again,) = (line for line in done.stderr.splitlines() if line.startswith("again, alone: "))
    found = python("-m", *again.removeprefix("again, alone: ").split(), cwd=tmp_path, code=1)
    assert "wrong again, perhaps in other elements: " in found.stdout


@needs_torch
@pytest.mark.deep
def test_nothing_differs_where_nothing_is_taken_out(tmp_path: Path) -> None:
    done = torchrun(
        "-n", "3", "--adversary", "7", "--compare", "gloo", "--digests", "1", TRAIN, "2", cwd=tmp_path, code=0
    )
    assert re.search(r"(?m)^# compared with Gloo: [1-9][0-9]* calls of 1 group, 0 wrong$", done.stdout)
    assert "# replicas compared: after 2 steps, all equal\n" in done.stdout
    assert [each for each in tmp_path.iterdir() if "torchinductor" not in each.name] == []  # torch's own cache


@needs_torch
@pytest.mark.deep
def test_a_killed_rank_is_in_the_table_and_training_begins_again(tmp_path: Path) -> None:
    faults = str(ROOT / "examples/training_faults.yaml")
    done = torchrun(
        "--faults", faults, "--max-restarts", "1", "--json", "report.json", TRAIN, "2", cwd=tmp_path, code=0
    )
    report = json.loads((tmp_path / "report.json").read_text())
    assert [each["codes"]["1"] for each in report["rounds"]] == [-9, 0]
    assert any(event["kind"] == "fault" for event in report["events"])
    assert "fault: kill at rank 1, call 8" in done.stdout and "step 1: loss" in done.stdout
    assert "\nround 1: all ranks ended well, after 1 restart\n" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert [str(s) for s in segments.find() if "torch" in s.pool] == []


@needs_torch
@with_rows(
    ("kill", "call 4", 12),  # in the third of its plans
    ("kill", "call 9", 0),
    ("stall", "call 6", 0),
    ("kill", "message 2", 0),
    ("raise", "call 10", 0),
    ("exit", "call 3", 0),
    ("late", "call 5", 0),
)
def test_the_others_name_the_call_in_which_it_happened(what: str, place: str, instruction: int, tmp_path: Path) -> None:
    kind, number = place.split()
    fault: dict[str, Any] = {"kind": what, "rank": 1, "when": {kind: int(number), "instruction": instruction}}
    fault |= {"seconds": 5} if what == "stall" else {}
    if what in ("kill", "stall"):
        (tmp_path / "script.json").write_text(json.dumps({"faults": [fault]}))
    function = "tests.faults.torch_calls:disturbed"
    said = torch_ranks(function, str(tmp_path), what, number, ranks=2, CXLEMU_CARD_BYTES="8MiB")
    assert f"rank 0 in {place} of group 0: " in said[0]
    happened = [line for line in (tmp_path / "rank-1.jsonl").read_text().splitlines() if '"fault"' in line]
    assert len(happened) == (what in ("kill", "stall"))


@pytest.mark.deep
@needs_torch
def test_ranks_find_what_lies_beside_the_script_and_no_checkout_where_they_run(tmp_path: Path) -> None:
    checkout, scripts = tmp_path / "checkout", tmp_path / "scripts"
    (checkout / "cxlemu").mkdir(parents=True)
    (checkout / "cxlemu" / "__init__.py").write_text("raise ImportError('not compiled')\n")
    scripts.mkdir()
    (scripts / "beside.py").write_text("WORD = 'beside'\n")
    (scripts / "train.py").write_text("import json, beside\nprint('it is', beside.WORD)\n")
    done = torchrun("-n", "1", str(scripts / "train.py"), cwd=checkout, code=3)
    assert "it is beside" in done.stdout


MESSAGES = str(ROOT / "tests/faults/torch_messages.py")


@needs_torch
@pytest.mark.deep
@pytest.mark.parametrize("memory", [("--adversary", "7"), ("--backend", "shm")], ids=["emulated", "shm"])
def test_messages_are_compared_in_any_order(memory: tuple[str, str], tmp_path: Path) -> None:
    done = torchrun("--compare", "gloo", *memory, MESSAGES, cwd=tmp_path, code=0)
    assert "step 5 [507.0, 508.0]" in done.stdout and "not compared" not in done.stdout
    assert list(tmp_path.iterdir()) == []


@needs_torch
@pytest.mark.deep
@pytest.mark.parametrize("ends", ["", "raise SystemExit"])
def test_a_script_that_destroys_no_group_is_compared_to_its_end(ends: str, tmp_path: Path) -> None:
    """Rank 0 ends first, with a message under way that rank 1 has not looked at."""
    late = "\nimport time\nif rank:\n    time.sleep(1)\n    dist.recv(x, 0)\nelse:\n    dist.isend(x, 1)\n"
    script = Path(MESSAGES).read_text().replace("dist.destroy_process_group()", late + ends)
    (tmp_path / "script.py").write_text(script)
    done = torchrun("--compare", "gloo", "script.py", cwd=tmp_path, code=0)
    assert "0 calls and 31 messages of 1 group, 0 wrong" in done.stdout


@needs_torch
@pytest.mark.deep
def test_a_message_that_is_stale_is_named(tmp_path: Path) -> None:
    done = torchrun("--compare", "gloo", "--leave-out", "1:INVALIDATE", MESSAGES, cwd=tmp_path, code=1)
    (wrong,) = (line for line in done.stderr.splitlines() if line.startswith("wrong: "))
    assert "of group 0, from rank 0, tag " in wrong and "differs from Gloo: rank 1, element" in wrong
    assert "again, alone" not in done.stderr  # no call is kept


UNLIKE = """
import torch, torch.distributed as dist
dist.init_process_group("cxl")
rank, group = dist.get_rank(), dist.new_group([1, 2])
dist.barrier()
if rank == 2:
    dist.recv(torch.ones(4, dtype=torch.int32), 1, group)
elif rank:
    dist.send(torch.ones(4), 2, group)
if rank:
    dist.broadcast(torch.ones(4), src=rank, group=group)
"""


@needs_torch
@pytest.mark.deep
def test_two_roots_and_two_types_for_which_no_rank_waits_are_told(tmp_path: Path) -> None:
    (tmp_path / "unlike.py").write_text(UNLIKE)
    done = torchrun("-n", "3", "--compare", "gloo", "unlike.py", cwd=tmp_path, code=1)
    words = " ".join(done.stdout.split())
    assert words.count("is [broadcast root 0] on rank 0 but [broadcast root 1] on rank 1: all ranks must") == 2
    assert "from rank 0, tag 0, was sent as f32 and is received as i32: its bytes are not converted" in words


@needs_torch
def test_a_rank_of_a_smaller_group_has_its_number_in_the_world() -> None:
    from faults.torch.difference import Difference, ShadowedCall
    from faults.torch.messages import MessageDifference

    call = ShadowedCall("1", 3, "all_gather", "none", 0, "f32", 4, 2)
    for world_rank, named in ((1, "Gloo: rank 1, "), (5, "Gloo: rank 1 (5 in the world), ")):
        assert named in Difference(call, 1, world_rank, 0, 1, 8, "0.0", "1.0").sentence()
        fields = ("1", 3, 1, world_rank, 0, 7, "f32")
        assert named in MessageDifference(*fields, 0, 1, 4, "0.0", "1.0").sentence()


@needs_torch
@pytest.mark.deep
def test_steps_on_a_modelled_fabric_are_told_beside_the_virtual_engine(tmp_path: Path) -> None:
    done = torchrun("--pace", "six-cards", "--json", "report.json", TRAIN, "3", cwd=tmp_path, code=0)
    events = [e for e in json.loads((tmp_path / "report.json").read_text())["events"] if e["kind"] == "steps"]
    assert [(event["rank"], len(event["steps"])) for event in sorted(events, key=lambda e: e["rank"])] == [
        (0, 3),
        (1, 3),
    ]
    for event in events:
        for step in event["steps"]:
            assert step["calls"] > 0 and step["not_modelled"] == 0
            assert (
                step["virtual_us"] > 10 and step["paced_us"] > 0.2 * step["virtual_us"]
            )  # a late rank finds others' part done
    first, second = (event["steps"] for event in events)
    of_second = [step["virtual_us"] for step in second]
    assert [step["virtual_us"] for step in first] == pytest.approx(of_second, rel=1e-4)
    assert "virtual us" in done.stdout


@needs_torch
def test_calls_without_an_array_are_made_on_a_modelled_fabric_as_they_are() -> None:
    from faults.torch.steps import PacedSteps, TimedVerbs

    class Comm:
        def barrier(self, *, variant: str = "auto") -> str:
            return f"barrier {variant}"

        def send(self, array: Any, dest: int, tag: int = 0) -> str:
            return f"sent to {dest}"

    verbs = TimedVerbs(cast(Any, Comm()), cast(PacedSteps, None))
    assert verbs.barrier() == "barrier auto"
    assert verbs.send([1], 1) == "sent to 1"


def test_what_ranks_said_is_no_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = "RuntimeError: [/a/pair.cc:1] Read error, rank 0 waits in [send to rank 1]"
    event = {"kind": "error", "rank": 0, "at": 1.0, "text": said}
    assert not tell([event], [Round({0: 2.0}, {0: 1})], tmp_path)
    assert "".join(said.split()) in "".join(capsys.readouterr().out.split())


WAITED = "in call 12 of group 0: all_reduce sum float32[3]: {}; rank 0 waits in [all_reduce line] for rank 1 to ring p"


def error(rank: int, text: str, line: int) -> dict[str, Any]:
    where = [f'  File "/a/bug.py", line {line}, in <module>\n    step()\n']
    return {"kind": "error", "rank": rank, "at": 5.0 + rank, "text": text, "where": where}


@with_rows(
    ("rank 1 left", {1: 0}, "ended normally while others waited for it"),
    ("ranks 1, 2 left", {1: 0}, "ended normally while others waited for it"),
    ("rank 1 died: its process 13125 has ended", {1: 0}, "ended normally while others waited for it"),
    ("rank 1 died: its process 13125 has ended", {1: 7}, "exited with code 7"),
    ("rank 1 died: its process 13125 has ended", {1: -11}, "ended by signal 11"),
    ("rank 1 left", {1: 1}, "KeyError: 'no such sample: 17' (bug.py line 17)"),
    ("Timed out waiting: rank 0 waited 8 s for rank 1", {1: -15}, "stopped by cxlemu torchrun (bug.py line 18)"),
)
def test_the_rank_that_the_others_waited_for_is_named_last_and_once(
    others: str, codes: dict[int, int], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = [
        error(rank, f"torch.distributed.DistBackendError: cxl: rank {rank} {WAITED.format(others)}", 20)
        for rank in (0, 2)
    ]
    by_signal = {"kind": "stopped", "rank": 1, "at": 20.0, "where": error(1, "", 18)["where"]}
    its = [error(1, "KeyError: 'no such sample: 17'", 17)] * ("KeyError" in said) + [by_signal] * ("stopped" in said)
    ended = Round({0: 6.0, 1: 30.0, 2: 8.0}, {0: 1, 2: 1} | codes, [1] * ("stopped" in said))
    for debug in (False, True):
        assert not tell([*lost, *its], [ended], tmp_path, debug=debug)
        printed = capsys.readouterr().out
        table, _, cause = printed.rpartition("\ncause: ")
        assert cause == f"rank 1: {said}; ranks 0, 2 failed in calls with it\n"
        words = " ".join(table.split())
        assert words.startswith(f"rank what 1 {said} 0 DistBackendError: cxl: rank 0 in call 12 of group 0: "), words
        assert ("for rank 1 to ring" in words) is debug and "(bug.py line 20) 2 Dist" in words


def test_a_groups_error_is_whole_and_has_no_cause_where_all_ranks_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    differs = "call 13 of this communicator is [all_reduce sum 16B f32 ...] on rank 0 but [all_reduce sum 4B f32 line] "
    differs += "on rank 1, or an earlier call differed: all ranks must call the same collectives with the "
    differs += "same arguments"
    text = f"DistBackendError: cxl: rank 0 in call 13 of group 0: all_reduce sum float32[4]: {differs}"
    assert not tell([error(rank, text, 22) for rank in (0, 1)], [Round({0: 6.0, 1: 7.0}, {0: 1, 1: 1})], tmp_path)
    printed = capsys.readouterr().out
    assert " ".join(printed.split()).count("with the same arguments (bug.py line 22)") == 2
    assert "cause:" not in printed and "after" not in printed.splitlines()[0]


def test_gloo_that_lost_a_rank_is_not_the_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lost = error(1, "RuntimeError: [/a/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:40329", 20)
    timeout = error(0, "DistBackendError: cxl: rank 0 " + WAITED.format("Timed out waiting: rank 0 waited 8 s"), 20)
    assert not tell([lost, timeout], [Round({0: 6.0, 1: 7.0}, {0: 1, 1: 1})], tmp_path)
    assert "cause:" not in capsys.readouterr().out
    raised = error(2, "KeyError: 17", 17)
    assert not tell([lost, raised], [Round({1: 7.0, 2: 8.0}, {1: 1, 2: 1})], tmp_path)
    assert capsys.readouterr().out.endswith(
        "cause: rank 2: KeyError: 17 (bug.py line 17); rank 1 failed in calls with it\n"
    )


@with_rows((None, 3), (KeyboardInterrupt(), 130), (SystemExit(143), 143), (ArgumentError("no"), 2))
@pytest.mark.parametrize("call", [False, True])
def test_a_folder_stays_only_where_a_call_is_kept_in_it(
    ending: BaseException | None, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: bool
) -> None:
    def ranks(*_: object) -> list[Round]:
        (folder,) = tmp_path.glob("cxlemu-torchrun-*")
        if call:
            (folder / "call").mkdir()
        if ending is not None:
            raise ending
        return [Round(codes={0: 0})]

    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr("faults.cli.torchrun_run.run_ranks", ranks)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert cxlemu("torchrun", "-n", "1", "train.py").exit_code == code
    assert len(list(tmp_path.glob("cxlemu-torchrun-*"))) == call


def test_a_folder_that_takes_no_files_is_said_and_save_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    for folder, flags in (("gone", []), ("", ["--save", str(tmp_path / "file")])):
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / folder))
        done = cxlemu("torchrun", "-n", "1", *flags, tmp_path / "train.py", code=2)
        assert "--save" in done.output, done.output


def test_a_folder_that_is_used_again_has_no_reports_of_the_earlier_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "rank-1.jsonl").write_text('{"kind": "replicas", "rank": 1, "at": 1.0, "sentence": "old"}\n')
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr("faults.cli.torchrun_run.run_ranks", lambda *given: [Round(codes={0: 0, 1: 0})])
    done = cxlemu("torchrun", "--save", tmp_path, tmp_path / "train.py")
    assert "old" not in done.output and done.exit_code == 3, done.output  # nothing ran over the pool


RAISES = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank():
    torch.ones(2) @ torch.ones(3)
dist.all_reduce(torch.ones(4))
"""


@needs_torch
@pytest.mark.deep
@pytest.mark.parametrize("debug", [False, True])
def test_a_scripts_error_has_its_own_frames_and_a_groups_error_is_in_the_table(debug: bool, tmp_path: Path) -> None:
    (tmp_path / "raises.py").write_text(RAISES)
    verbs = ["--debug"] * debug + ["torchrun", "--card-bytes", "8M", "raises.py"]
    done = python("-P", "-m", "cxlemu", *verbs, timeout_s=2 * PATIENT_S, cwd=tmp_path)
    said = done.stdout + done.stderr
    assert done.returncode == 1 and "torch.ones(2) @ torch.ones(3)" in said and "(raises.py line 6)" in said
    assert ("faults/torch/rank.py" in said) is debug
    assert ("collectives/torch/" in said) is debug
    assert debug or len(said.splitlines()) <= 20


@needs_torch
def test_no_traceback_of_ours_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text("raise KeyError('mine')\n")
    done = torchrun("-n", "1", "small.py", cwd=tmp_path, code=1)
    traceback = done.stdout[done.stdout.index("Traceback") :].splitlines()
    assert traceback[1].strip().startswith('File "small.py", line 1') or "small.py" in traceback[1]
    assert "rank.py" not in done.stdout and "KeyError: 'mine'" in done.stdout


@pytest.mark.deep
@needs_torch
def test_a_rank_that_is_stopped_tells_its_line_and_a_librarys_is_not_the_scripts(tmp_path: Path) -> None:
    """The frame of a library that the script calls is passed over."""
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages/pauses.py").write_text(PAUSE)
    (tmp_path / "late.py").write_text(LATE_RANK)
    Settings(str(tmp_path)).write()
    env = {**os.environ, VARIABLE: str(tmp_path), "RANK": "0", PARENT: str(os.getpid())}
    words = [sys.executable, "-P", "-m", "faults.torch.rank", "late.py"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, cwd=tmp_path, env=env) as rank:
        try:
            assert rank.stdout is not None and rank.stdout.readline() == b"ready\n"
            rank.terminate()
            assert rank.wait(PATIENT_S) == -signal.SIGTERM
        finally:
            rank.kill()
    (told,) = map(json.loads, (tmp_path / "rank-0.jsonl").read_text().splitlines())
    assert told["kind"] == "stopped" and place(told) == " (late.py line 3)"


SUSPENDED = """
import os, pathlib, signal, sys, time
file = pathlib.Path("pid")
if os.environ["RANK"] == "1":
    file.with_suffix(".new").write_text(str(os.getpid()))
    file.with_suffix(".new").rename(file)
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(600)
while not file.exists() or ") T" not in pathlib.Path(f"/proc/{file.read_text()}/stat").read_text():
    time.sleep(0.01)
sys.exit(1)
"""


@pytest.mark.deep
@needs_torch
def test_a_rank_that_somebody_suspends_tells_its_line_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("faults.torch.launch.GRACE_S", 0.0)
    monkeypatch.chdir(tmp_path)
    Path("suspended.py").write_text(SUSPENDED)
    Settings(str(tmp_path)).write()
    env = {**os.environ, VARIABLE: str(tmp_path)}
    rounds = run_ranks("suspended.py", (), 2, 0, env, lambda rank, line: None)
    (told,) = map(json.loads, (tmp_path / "rank-1.jsonl").read_text().splitlines())
    tell([told], rounds, tmp_path)
    words = " ".join(capsys.readouterr().out.split())
    assert "1 suspended, as by SIGSTOP (suspended.py line " in words and "stopped by cxlemu" not in words


ENDLESS = """
import time, torch, torch.distributed as dist
dist.init_process_group("cxl")
for _ in range(3):
    dist.all_reduce(torch.ones(4))
print("ready", flush=True)
time.sleep(600)
"""


@needs_torch
@pytest.mark.deep
def test_a_run_that_is_ended_tells_what_was_compared(tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text(ENDLESS)
    words = [sys.executable, "-P", "-m", "cxlemu", "torchrun", "--compare", "gloo", "endless.py"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, cwd=tmp_path, text=True) as run:
        try:
            assert run.stdout is not None
            while (line := run.stdout.readline()) != "ready\n":
                assert line
            run.terminate()
            said = run.communicate(timeout=PATIENT_S)[0]
        finally:
            run.kill()
    assert run.returncode == 128 + signal.SIGTERM
    assert said.endswith("interrupted\n# compared with Gloo: 3 calls of 1 group, 0 wrong\n")


LOST = """
import os, signal, sys
import torch, torch.distributed as dist
from faults.torch.compare import GlooShadow
dist.init_process_group()
how, rank, x = sys.argv[1], dist.get_rank(), torch.ones(4)
for step in range(4):
    if step == 3 and rank:
        if how == "late":  # between the call itself and its comparison
            GlooShadow.gather = lambda self, array: os.kill(os.getpid(), signal.SIGKILL)
        if how == "type":
            x = x.double()
    if step == 3 and (how == "silent" or how == "exit" and rank):
        os._exit(0)
    dist.all_reduce(x)
"""
BY_RANK_1 = "; rank 1 ended without a word"


@needs_torch
@pytest.mark.deep
@with_rows(
    (
        "late",
        1,
        "3 calls of 1 group, 0 wrong" + BY_RANK_1,
        "call 4 of group 0: all_reduce sum float32[4]: rank 1 died",
    ),
    ("exit", 1, "3 calls of 1 group, 0 wrong" + BY_RANK_1, "rank 1 died"),
    ("type", 1, "3 calls of 1 group, 0 wrong", "or an earlier call differed"),
    ("silent", 3, "", "what was compared or left out is not known: ranks 0, 1 ended without a word"),
)
def test_ranks_that_fail_tell_what_was_compared_and_in_cxls_words(
    how: str, code: int, compared: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "lost.py").write_text(LOST)
    done = torchrun("-n", "2", "--compare", "gloo", "lost.py", how, cwd=tmp_path, code=code)
    assert said in " ".join((done.stdout + done.stderr).split()) and "gloo/transport" not in done.stdout
    assert "nothing was" not in done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("# compared")]
    assert lines == [f"# compared with Gloo: {compared}"] * bool(compared)


PAUSE = """
import time
def pause():
    print("ready", flush=True), time.sleep(600)
"""
LATE_RANK = """import sys
sys.path.append("site-packages")
import pauses; pauses.pause()
"""
SMALL = """
import sys
import torch, torch.distributed as dist
dist.init_process_group("cxl")
for step in range(int(sys.argv[1])):
    dist.all_reduce(torch.ones(100_000))
dist.destroy_process_group()
"""
LATE = """
faults:
  - {kind: crash, rank: 1, group: "0", when: {call: 500, instruction: 0}}
  - {kind: stall, rank: 0, group: "0", when: {call: 1, instruction: 0}, seconds: 0.01}
  - {kind: crash, rank: 1, group: "7", when: {call: 1, instruction: 0}}
  - {kind: stall, rank: 1, when: {message: 1, instruction: 0}, seconds: 0.01}
  - {kind: stall, rank: 1, when: {call: 2, instruction: 900}, seconds: 0.01}
"""


@needs_torch
@pytest.mark.deep(rows=lambda arguments, said: "--faults" not in arguments)
@with_rows(
    (
        ["--faults", "late.yaml"],
        [
            "fault 1 never happened: rank 1 made 2 calls [crash at rank 1, call 500, instruction 0]",
            "fault 3 never happened: the script made no group 7",
            "fault 4 never happened: rank 1 made 0 messages [stall at rank 1, message 1, instruction 0, seconds 0.01]",
            "instructions in that call [stall at rank 1, call 2, instruction 900, seconds 0.01]",
        ],
    ),
    (
        ["--compare", "gloo", "--leave-out", "1:INVALIDATE"],
        ["left out on rank 1, none of which could matter: no line was in its host's cache"],
    ),
    (["--leave-out", "0:COMPUTE"], ["nothing was left out: no call of rank 0 has COMPUTE"]),
    (["--digests", "1"], ["no replicas were compared"]),
    (["--pace", "six-cards"], ["--pace: no step of an optimizer made a call"]),
)
def test_what_did_not_happen_in_training_is_said(arguments: list[str], said: list[str], tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(SMALL)
    (tmp_path / "late.yaml").write_text(LATE)
    done = torchrun("-n", "2", *arguments, "small.py", "2", cwd=tmp_path, code=3)
    assert [line for line in done.stderr.splitlines() if any(its in line for its in said)] != []
    assert all(its in done.stderr for its in said), done.stderr


@needs_torch
@pytest.mark.deep
def test_a_comparison_of_nothing_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(SMALL)
    done = torchrun("-n", "2", "--compare", "gloo", "small.py", "0", cwd=tmp_path, code=3)
    assert "nothing was compared" in done.stderr


@needs_torch
@pytest.mark.parametrize("late", ["0", "1"])
def test_no_rank_goes_on_before_every_rank_is_connected_to_gloo(late: str) -> None:
    assert torch_ranks("tests.faults.torch_connects:connects", late, ranks=2) == [[True, True], [True, True]]


@with_rows((Op.INVALIDATE, 1, False), (Op.INVALIDATE, SLOTS_MAX + 1, True), (Op.FLUSH, 1, True), (Op.FENCE, 1, True))
def test_what_is_left_out_matters_where_it_would_do_something(op: Op, calls: int, mattered: bool) -> None:
    """An INVALIDATE of a slot that is read for the first time does nothing; once the ring came round, it does."""

    def main(context: RankContext) -> tuple[int, int]:
        inner = engine_for("native", context.backend, context.memory, context.pool.cards, context.pacer)
        engine = LeavingOut(inner, context, frozenset({op} if context.rank else ()))
        with Communicator.world(context, engine=engine) as comm:
            assert comm.layout.slots <= SLOTS_MAX
            for _ in range(calls):
                comm.all_reduce(np.ones(1 << 12, np.float32), "sum")
        return engine.left_out[op], engine.mattered[op]

    (count, matters), (other, others) = launch(main, ranks=2, topology="laptop", memory=MemorySpec(), how="threads")[
        ::-1
    ]
    assert count > 0 and (matters > 0) is mattered and other == others == 0


@with_rows(
    (None, [], "nothing ran over the pool: the script made no process group"),
    (None, [("error", {})], ""),  # as where the making of the group failed
    (None, [("group", {}), ("made", {"calls": 0})], "nothing ran over the pool: the script called no collective"),
    (None, [("group", {}), ("made", {"calls": 0}), ("made", {"calls": 1})], ""),
    (3, [("group", {}), ("nature", {"moved": 0})], "the adversary moved no line"),
    (3, [("group", {}), ("nature", {"moved": 0}), ("nature", {"moved": 2})], ""),
    (None, [("group", {}), ("nature", {"moved": 0})], ""),
    (3, [("group", {})], ""),  # a rank that was killed does not tell
)
def test_a_run_without_the_pool_or_without_nature_is_none(
    adversary: int | None, events: list[tuple[str, dict[str, int]]], said: str
) -> None:
    asked = TorchrunFlags(backend="emulated", adversary=adversary, compare=None, digests=0, pace=None)
    found = undone(asked, TrainingScript(), [{"kind": kind, "rank": 0, **what} for kind, what in events])
    assert [sentence[: len(said)] for sentence in found] == [said] * bool(said)


MEETS = "import torch.distributed as dist\ndist.init_process_group()\n"


def test_how_many_calls_make_an_invalidate_matter_is_said() -> None:
    asked = TorchrunFlags(backend="emulated", adversary=None, compare=None, digests=0, pace=None)
    script = TrainingScript.model_validate({"leave_out": [{"rank": 1, "instruction": "INVALIDATE"}]})
    left_out = {"kind": "left out", "rank": 1, "instruction": "INVALIDATE", "count": 9, "mattered": 0}
    (found,) = undone(asked, script, [left_out])
    assert found.endswith("slots are used again after 16 calls at most, so train for more")


IDLE = {"print('idle')": "made no process group", MEETS: "called no collective and sent nothing"}


@needs_torch
@pytest.mark.deep
@pytest.mark.parametrize("idle", IDLE)
def test_a_script_that_makes_no_group_or_no_call_runs_nothing(idle: str, tmp_path: Path) -> None:
    (tmp_path / "idle.py").write_text(idle)
    done = cxlemu("torchrun", "-n", "1", tmp_path / "idle.py", code=3)
    assert f"nothing ran over the pool: the script {IDLE[idle]}" in done.output


@needs_torch
@pytest.mark.deep
@pytest.mark.parametrize("compare", [[], ["--compare", "gloo"]])
def test_a_receive_that_nobody_waits_for_and_nobody_sends_is_a_warning(compare: list[str], tmp_path: Path) -> None:
    (tmp_path / "recv.py").write_text(
        MEETS + "dist.all_reduce(x := __import__('torch').ones(1))\ndist.get_rank() and dist.irecv(x, 0)"
    )
    done = cxlemu("torchrun", "-n", "2", *compare, tmp_path / "recv.py")
    assert "RuntimeWarning: cxl: rank 1 left group 0, and no message came for 1 recv" in done.output
    assert done.exit_code == 0 and "Traceback" not in done.output


@needs_torch
@pytest.mark.deep
def test_messages_run_over_the_pool(tmp_path: Path) -> None:
    send = "x = __import__('torch').ones(1)\n(dist.recv if dist.get_rank() else dist.send)(x, 1 - dist.get_rank())"
    (tmp_path / "sends.py").write_text(MEETS + send)
    cxlemu("torchrun", "-n", "2", tmp_path / "sends.py", code=0)
