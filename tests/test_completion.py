"""What a shell completes, asked as the shell asks."""

import os
import subprocess
import sys

import pytest

from tests.helpers.tables import with_rows


def completed(line: str) -> list[str]:
    words = line.split(" ")
    asked = {"_CXLEMU_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    command = [sys.executable, "-c", "from cxlemu.cli import main; main(prog_name='cxlemu')"]
    done = subprocess.run(command, env=os.environ | asked, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return [answer.partition(",")[2] for answer in done.stdout.split()]


@pytest.mark.deep(rows=lambda line: line.split()[1] not in ("ru", "run", "topology"))
@with_rows(
    ("cxlemu ru", ["run"]),
    ("cxlemu run all_g", ["all_gather", "all_gatherv"]),
    ("cxlemu run all_reduce -c titan", ["titan2-6xcz120"]),
    (
        "cxlemu run all_reduce --variant two",
        ["two_shot", "two_shot_apart", "two_shot_batched", "two_shot_crosswise", "two_shot_staged"],
    ),
    ("cxlemu run all_reduce -d f32,bf", ["f32,bf16"]),
    ("cxlemu run all_reduce -o pr", ["prod"]),
    ("cxlemu run all_reduce --backend em", ["emulated"]),
    ("cxlemu topology show lap", ["laptop"]),
    ("cxlemu simulate all_reduce --against racks-2x72-", ["racks-2x72-rdma"]),
    ("cxlemu prove broadc", ["broadcast"]),
    ("cxlemu explore broadc", ["broadcast"]),
    ("cxlemu plan show redu", ["reduce", "reduce_scatter", "reduce_scatterv"]),
)
def test_names_are_completed(line: str, expected: list[str]) -> None:
    assert completed(line) == expected


def test_where_no_name_fits_files_are_completed() -> None:
    assert completed("cxlemu run my_plan") == ["my_plan"]  # the shell goes on with files
