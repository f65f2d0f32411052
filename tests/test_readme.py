"""The README is the front door: every command in it and in docs/ runs, every file shown is the file."""

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

# The two install commands, the deep tier and the virtual machines are run by .ci/run, in a fresh virtual environment.
IN_CI = re.findall(r"<!-- command: \w+ -->\s*```sh\n.+?```", README, re.DOTALL)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXT = "".join(page.read_text() for page in PAGES)
_EACH = re.findall(r"```sh\n(.+?)```", TEXT, re.DOTALL)
BLOCKS = list(dict.fromkeys(block for block in _EACH if "venv" not in block))
# Each takes seconds to start; that every command does what it should is for other tests of the fast tier.
IN_FAST_TIER = ("python examples/quickstart.py", "cxlemu plan list", "cxlemu pool list")
FILES = re.findall(r"<!-- file: (\S+) -->\s*```(?:python|yaml)\n(.*?)```", TEXT, re.DOTALL)
# In CI, where Open MPI runs as root on few cores, and perhaps without an agent to start remote ranks.
MPI_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_plm_rsh_agent": "/bin/true",
}


def test_the_readme_has_what_this_test_looks_for() -> None:
    assert len(IN_CI) == 4
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
    later = (
        "test_my_all_reduce.py",
        "algorithms/ring_all_gather.py",
        "fabric.yaml",
        "tenants.py",
        "two_tenants.py",
        "per_host.py",
    )
    assert [name for name, _ in FILES] == [f"examples/{name}" for name in (*shown, *later)]


@pytest.mark.deep(rows=lambda block: not block.startswith(IN_FAST_TIER))
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[-1][:60])
def test_commands_run(block: str, tmp_path: Path) -> None:
    if "mpirun" in block and shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed: apt-get install openmpi-bin")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    environment = os.environ | MPI_ENVIRONMENT | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for command in block.splitlines():
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize(("name", "text"), FILES, ids=[name for name, _ in FILES])
def test_files_shown_are_the_files(name: str, text: str) -> None:
    assert text == (ROOT / name).read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, heading in re.findall(r"\]\(([^)#\s]*)(?:#([^)]+))?\)", page.read_text()):
        if "://" in target:
            continue
        other = page.parent / target if target else page
        assert other.exists(), target
        assert not heading or heading in _headings(other.read_text()), heading


def _headings(text: str) -> set[str]:
    """As GitHub makes anchors of them."""
    titles = re.findall(r"(?m)^#+ (.+)$", text)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_published_figures_are_those_of_the_page_about_them() -> None:
    """The tables there are compared with what the commands print: see test_reproduce.py and test_scalepool.py."""
    page = (ROOT / "docs" / "published.md").read_text()
    rows = re.findall(r"(?m)^\| (\w[\w-]*) \| ([\d.]+) \| ([\d.]+) \|", page)
    all_of = {name: (published, ours) for name, published, ours in rows}
    table = re.search(r"\| speedups of .*?\n\n", README, re.DOTALL)
    assert table
    seen = 0
    for line in table[0].strip().splitlines()[2:]:
        what, published, ours = (cell.strip() for cell in line.strip("|").split("|")[:3])
        names = [name for name in re.findall(r"[\w-]+", what) if name in all_of]
        if names:
            assert [all_of[name] for name in names] == list(zip(published.split(", "), ours.split(", "), strict=True))
        else:
            assert f" | {published} | {ours} | " in page, what
        seen += len(names)
    assert seen == len(all_of)
