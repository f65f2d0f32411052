"""`cxlemu run` in every launch: threads and processes of its own, and under mpirun, torchrun and srun."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.tiers import PATIENT_S

RUN = [sys.executable, "-m", "cxlemu", "run", "-c", "laptop", "-b", "1K", "-e", "1K", "--iters", "2"]
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe"]
FORGETS = """
from collectives.builder import Builder
from collectives.builder.recipes import algorithm

@algorithm("broadcast")
def forgets(b: Builder) -> None:
    for chunks in b.rounds(b.nbytes, writers=[b.root], spread="cards"):
        for chunk in chunks:
            if b.is_root:
                b.publish(chunk, b.input(chunk.offset))
"""


def environment(**variables: str) -> dict[str, str]:
    """This one, without a launcher's variables."""
    launchers = ("OMPI_", "PMIX_", "PMI_", "SLURM_", "TORCHELASTIC_", "MASTER_")
    ours = {k: v for k, v in os.environ.items() if not k.startswith(launchers) and k not in ("RANK", "WORLD_SIZE")}
    return ours | variables


def start(command: list[str], **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, env=environment(**variables), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run_ranks(ranks: list[dict[str, str]], *arguments: str) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr of every rank, started side by side as a launcher would."""
    command = [*RUN, "--launch", "env", "--deadline-s", str(PATIENT_S), *arguments]
    processes = [start(command, **variables) for variables in ranks]
    outputs = [process.communicate(timeout=PATIENT_S) for process in processes]
    return [(process.returncode, *output) for process, output in zip(processes, outputs, strict=True)]


def torchrun(rank: int, ranks: int) -> dict[str, str]:
    job = {"TORCHELASTIC_RESTART_COUNT": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(os.getpid())}
    return {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), **job}


def srun(rank: int, ranks: int) -> dict[str, str]:
    job = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "1"}
    return {"SLURM_PROCID": str(rank), "SLURM_NTASKS": str(ranks), **job}


def read(file: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(file.read_text())
    return document


@pytest.mark.deep(rows=lambda how: how == "processes")
@pytest.mark.parametrize("how", ["threads", "processes"])
def test_ranks_of_our_own(how: str, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    process = start([*RUN, "broadcast", "-n", "3", "--launch", how, "--json", str(file)])
    _, errors = process.communicate(timeout=PATIENT_S)
    assert (process.returncode, errors) == (0, "")
    assert (read(file)["launch"], read(file)["ranks"], read(file)["wrong"]) == (how, 3, 0)


@pytest.mark.deep
@pytest.mark.parametrize("launcher", [torchrun, srun])
def test_ranks_of_a_launchers_environment(launcher: Any, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    first, *others = run_ranks([launcher(rank, 3) for rank in range(3)], "all_reduce", "gather", "--json", str(file))
    assert "# 2 results, 0 wrong, " in first[1]
    assert f"launch: {launcher.__name__}" in first[1]
    assert others == [(0, "", "")] * 2
    assert (first[0], first[2]) == (0, "")
    assert (read(file)["launch"], read(file)["ranks"], len(read(file)["rows"])) == (launcher.__name__, 3, 2)


@pytest.mark.deep
def test_a_rank_with_wrong_elements_exits_with_1_and_so_does_rank_0_that_tells_it(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(FORGETS)
    file = tmp_path / "run.json"
    arguments = ["--algorithm", f"{tmp_path / 'wrong.py'}:forgets", "--json", str(file)]
    first, second = run_ranks([torchrun(rank, 2) for rank in range(2)], *arguments)
    assert (first[0], second[0]) == (1, 1)
    assert "#   first wrong: rank 1, call 0, element 0: " in first[1]
    assert second[1] == ""
    assert read(file)["wrong"] == 256 * 3  # all elements of rank 1, in every call, warm-up too


def test_ranks_must_be_as_many_as_were_launched() -> None:
    (code, out, errors), *_ = run_ranks([torchrun(0, 2)], "-n", "3")
    assert (code, out) == (2, "")
    assert errors == "cxlemu: --ranks is 3, but torchrun started 2: leave it out\n"


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no mpirun on this machine")
def test_under_mpirun(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    process = start([*MPIRUN, "-np", "3", *RUN, "--launch", "env", "reduce", "barrier", "--json", str(file)])
    out, errors = process.communicate(timeout=PATIENT_S)
    assert process.returncode == 0, errors
    assert out.count("# 2 results, 0 wrong, ") == 1  # rank 0 alone prints
    assert "\x1b" not in out
    assert (read(file)["launch"], read(file)["ranks"]) == ("Open MPI", 3)


@pytest.mark.deep
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no mpirun on this machine")
def test_mpirun_fails_when_a_result_is_wrong_and_the_json_is_whole(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(FORGETS)
    file = tmp_path / "run.json"
    arguments = ["--launch", "env", "--algorithm", f"{tmp_path / 'wrong.py'}:forgets", "--json", str(file)]
    process = start([*MPIRUN, "-np", "2", *RUN, *arguments])
    process.communicate(timeout=PATIENT_S)
    assert process.returncode == 1
    assert read(file)["wrong"] > 0
