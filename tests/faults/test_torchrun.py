"""cxlemu torchrun: training scripts compared, disturbed and restarted; calls that went wrong, made again."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from cxlemu.cli import main
from cxlemu.errors import ArgumentError
from cxlemu.memory.adversary import DEFAULT_RATES
from cxlemu.plan import DTYPES
from cxlemu.pool import segments
from faults.cli.torchrun_run import _tell as tell
from faults.torch.launch import Round
from faults.torch.saved import FORMAT, SavedCall, load, replay
from tests.helpers.tiers import PATIENT_S

ROOT = Path(__file__).parents[2]
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


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": 2}, "is not of a call"),
        ({"collective": "os.system"}, "there is no call os.system"),
        ({"dtype": "object"}, "of object"),
        ({"ranks": 10**9}, "ranks are not 1 to 64"),
        ({"ranks": 3}, "input-2.npy is missing"),
    ],
)
def test_a_damaged_call_is_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=said):
        load(kept(tmp_path / "call", "all_reduce", "sum", change))


def test_a_pickle_is_not_read(tmp_path: Path) -> None:
    folder = kept(tmp_path / "call", "all_reduce", "sum", {})
    np.save(folder / "input-1.npy", np.array([print], object), allow_pickle=True)
    with pytest.raises(ArgumentError, match="damaged"):
        load(folder)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name the training script"),
        (["nothing.py"], "nothing.py is no file"),
        (["--leave-out", "INVALIDATE", __file__], "RANK:INSTRUCTION"),
        (["--leave-out", "1:SLEEP", __file__], "no instruction"),
        (["--leave-out", "2:INVALIDATE", __file__], "numbered 0 to 1"),
        (["--backend", "tape", __file__], "a backend is one of"),
        (["--pace", "six-cards", "-c", "laptop", __file__], "leave out --config"),
        (["--pace", "six-cards", "--compare", "gloo", __file__], "--pace does not go with --compare"),
    ],
)
def test_what_cannot_be_run_is_said(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if importlib.util.find_spec("torch") is None and __file__ in arguments:
        pytest.skip("torch is not installed")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["torchrun", *arguments])
    assert done.exit_code == 2 and said in done.output, done.output
    assert list(tmp_path.iterdir()) == []


def torchrun(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "cxlemu", "torchrun", "--card-bytes", "8M", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=2 * PATIENT_S)


TRAIN = str(ROOT / "examples/train_ddp.py")


@needs_torch
@pytest.mark.deep
def test_the_invalidate_that_is_taken_out_is_named_in_the_first_step(tmp_path: Path) -> None:
    done = torchrun("--compare", "gloo", "--leave-out", "1:INVALIDATE", TRAIN, "3", cwd=tmp_path)
    assert done.returncode == 1
    assert "step 0" not in done.stdout
    (wrong,) = (line for line in done.stderr.splitlines() if line.startswith("wrong: "))
    assert "of group 0, all_reduce sum of" in wrong and "differs from Gloo: rank 0, element" in wrong
    assert "the prover: rank 1 reads line" in wrong and "did not invalidate it" in wrong
    table = done.stdout[done.stdout.index(" rank  round  what") :].splitlines()
    assert max(map(len, table)) <= 80 and sum("DistBackendError: what differs, see above" in row for row in table) == 2
    (again,) = (line for line in done.stderr.splitlines() if line.startswith("again, alone: "))
    found = subprocess.run(
        [sys.executable, "-m", *again.removeprefix("again, alone: ").split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 1 and "wrong again" in found.stdout


@needs_torch
@pytest.mark.deep
def test_nothing_differs_where_nothing_is_taken_out(tmp_path: Path) -> None:
    done = torchrun("-n", "3", "--adversary", "7", "--compare", "gloo", "--digests", "1", TRAIN, "2", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"(?m)^# compared with Gloo: [1-9][0-9]* calls of 1 group, 0 wrong$", done.stdout)
    assert list(tmp_path.iterdir()) == []


@needs_torch
@pytest.mark.deep
def test_a_killed_rank_is_in_the_table_and_training_begins_again(tmp_path: Path) -> None:
    faults = str(ROOT / "examples/training_faults.yaml")
    done = torchrun("--faults", faults, "--max-restarts", "1", "--json", "report.json", TRAIN, "2", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert [each["codes"]["1"] for each in report["rounds"]] == [-9, 0]
    assert any(event["kind"] == "fault" for event in report["events"])
    assert "fault: kill at rank 1, call 5" in done.stdout and "step 1: loss" in done.stdout
    assert [str(s) for s in segments.find() if "torch" in s.pool] == []


@needs_torch
def test_ranks_find_what_lies_beside_the_script_and_no_checkout_where_they_run(tmp_path: Path) -> None:
    checkout, scripts = tmp_path / "checkout", tmp_path / "scripts"
    (checkout / "cxlemu").mkdir(parents=True)
    (checkout / "cxlemu" / "__init__.py").write_text("raise ImportError('not compiled')\n")
    scripts.mkdir()
    (scripts / "beside.py").write_text("WORD = 'beside'\n")
    (scripts / "train.py").write_text("import json, beside\nprint('it is', beside.WORD)\n")
    done = torchrun("-n", "1", str(scripts / "train.py"), cwd=checkout)
    assert done.returncode == 0 and "it is beside" in done.stdout, done.stdout + done.stderr


MESSAGES = str(ROOT / "tests/faults/torch_messages.py")


@needs_torch
@pytest.mark.deep
@pytest.mark.parametrize("memory", [("--adversary", "7"), ("--backend", "shm")], ids=["emulated", "shm"])
def test_messages_are_compared_in_any_order(memory: tuple[str, str], tmp_path: Path) -> None:
    done = torchrun("--compare", "gloo", *memory, MESSAGES, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "step 5 [507.0, 508.0]" in done.stdout and "not compared" not in done.stdout
    assert list(tmp_path.iterdir()) == []


@needs_torch
@pytest.mark.deep
def test_a_message_that_is_stale_is_named(tmp_path: Path) -> None:
    done = torchrun("--compare", "gloo", "--leave-out", "1:INVALIDATE", MESSAGES, cwd=tmp_path)
    assert done.returncode == 1
    (wrong,) = (line for line in done.stderr.splitlines() if line.startswith("wrong: "))
    assert "of group 0, from rank 0, tag " in wrong and "differs from Gloo: rank 1, element" in wrong
    assert "again, alone" not in done.stderr  # no call is kept


@needs_torch
@pytest.mark.deep
def test_steps_on_a_modelled_fabric_are_told_beside_the_virtual_engine(tmp_path: Path) -> None:
    done = torchrun("--pace", "six-cards", "--json", "report.json", TRAIN, "3", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
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


def test_what_ranks_said_is_no_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = "RuntimeError: [/a/pair.cc:1] Read error, rank 0 waits in [send to rank 1]"
    event = {"kind": "error", "rank": 0, "at": 1.0, "text": said}
    assert not tell([event], [Round({0: 2.0}, {0: 1})], tmp_path)
    assert "".join(said.split()) in "".join(capsys.readouterr().out.split())
