"""The README is the front door: every command in it runs, every file in it is the file."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()

# The two install commands and the virtual machines are run by .ci/run, in a fresh virtual environment.
IN_CI = re.findall(r"<!-- command: \w+ -->\s*```sh\n.+?```", README, re.DOTALL)
BLOCKS = [block for block in re.findall(r"```sh\n(.+?)```", README, re.DOTALL) if "venv" not in block]
FILES = re.findall(r"<!-- file: (\S+) -->\s*```(?:python|yaml)\n(.*?)```", README, re.DOTALL)
# In CI, where Open MPI runs as root on few cores, and perhaps without an agent to start remote ranks.
MPI_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_plm_rsh_agent": "/bin/true",
}


def test_the_readme_has_what_this_test_looks_for() -> None:
    assert len(IN_CI) == 3
    assert len(BLOCKS) >= 6
    shown = (
        "quickstart.py",
        "survive.py",
        "zero_copy.py",
        "fused.py",
        "my_all_reduce.py",
        "handover.yaml",
        "protocols/early_ready.py",
    )
    later = ("test_my_all_reduce.py", "fabric.yaml", "tenants.py")
    assert [name for name, _ in FILES] == [f"examples/{name}" for name in (*shown, *later)]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[-1][:60])
def test_commands_run(block: str, tmp_path: Path) -> None:
    if "mpirun" in block and shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed: apt-get install openmpi-bin")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    environment = os.environ | MPI_ENVIRONMENT | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for command in block.splitlines():
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize(("name", "text"), FILES, ids=[name for name, _ in FILES])
def test_files_shown_are_the_files(name: str, text: str) -> None:
    assert text == (ROOT / name).read_text()


def test_links_lead_somewhere() -> None:
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in target]
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []
