"""Instructions, not times, guard speed: what callgrind counts of some calls and commands, beside the counts of a file.

A change that needs more of them says why in the commit that changes the file.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from cxlemu import _measure
from tests.helpers.counted import NOTHING

COUNTS = Path(__file__).parents[1] / "instructions.yaml"
MORE, LESS = 1.03, 0.90  # times the file's count: callgrind's own differ by up to 0.5 %


def environment() -> str:
    """What the counts depend on beside our source."""
    gcc = subprocess.run(["gcc", "-dumpversion"], capture_output=True, text=True, check=True).stdout.strip()
    numpy = ".".join(np.__version__.split(".")[:2])  # another build of one version of Python takes a tenth less
    return f"{platform.machine()}, Python {platform.python_version()}, NumPy {numpy}, gcc {gcc}"


def counted(folder: Path) -> dict[str, int]:
    """Count each row of `tests.helpers.counted`, without what the counting adds."""
    command = ["valgrind", "--tool=callgrind", "--collect-atstart=no", f"--callgrind-out-file={folder}/counts"]
    command += [sys.executable, "-m", "tests.helpers.counted"]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        command, cwd=root, env=os.environ | {"PYTHONHASHSEED": "0"}, capture_output=True, text=True, timeout=850
    )
    assert done.returncode == 0, done.stderr[-3000:]
    totals: dict[str, tuple[int, int]] = {}
    for file in folder.glob("counts.*"):
        text = file.read_text()
        if named := re.search(r"^desc: Trigger: Client Request: (.*):(\d+)$", text, re.MULTILINE):
            total = re.search(r"^totals: (\d+)", text, re.MULTILINE)
            totals[named[1]] = int(total[1]), int(named[2])
    nothing, times = totals.pop(NOTHING)
    return {name: round((total - nothing * calls / times) / calls) for name, (total, calls) in totals.items()}


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_no_call_takes_more_instructions_than_the_file_says(tmp_path: Path) -> None:
    if shutil.which("valgrind") is None or not _measure.HAS_CALLGRIND:
        pytest.skip("there is no valgrind, or cxlemu was built without its headers")
    said = yaml.safe_load(COUNTS.read_text())
    if (here := environment()) != said["environment"]:
        pytest.skip(f"counted on {said['environment']}, and this is {here}")
    now = counted(tmp_path)
    wrong = {
        name: f"{now.get(name)} instead of {before}"
        for name, before in said["instructions"].items()
        if not LESS * before <= now.get(name, 0) <= MORE * before
    }
    assert now.keys() == said["instructions"].keys() and not wrong, f"{json.dumps(wrong)}; all: {json.dumps(now)}"
