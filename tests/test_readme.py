"""The README is the front door: every command in it and in docs/ runs, every file shown is the file."""

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml

from cxlemu.cli import main
from cxlemu.program import include_dir
from tests.test_vocabulary import VERBS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()

# The two install commands, the deep tier and the virtual machines are run by .ci/run, in a fresh virtual environment.
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXT = "".join(page.read_text() for page in PAGES)
IN_CI = re.findall(r"<!-- command: (\w+) -->\s*```sh\n.+?```", TEXT, re.DOTALL)
_EACH = [(page, block) for page in PAGES for block in re.findall(r"```sh\n(.+?)```", page.read_text(), re.DOTALL)]
BLOCKS = list({block: (page.name, block) for page, block in _EACH if "venv" not in block}.values())
# Each takes seconds to start; that every command does what it should is for other tests of the fast tier.
IN_FAST_TIER = {"python.md": "python examples/quickstart.py", "troubleshooting.md": "cxlemu pool list"}
TAKES_LONG = ("cxlemu reproduce cccl --json cccl.json",)
LAST_SHOWN = {command: shown for shown in BLOCKS for command in shown[1].splitlines()}
FILES = re.findall(r"<!-- file: (\S+) -->\s*```(?:python|yaml)\n(.*?)```", TEXT, re.DOTALL)
# In CI, where Open MPI runs as root on few cores, and perhaps without an agent to start remote ranks.
MPI_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_plm_rsh_agent": "/bin/true",
}


def test_the_readme_has_what_this_test_looks_for() -> None:
    assert sorted(IN_CI) == ["dax_vm", "deep", "run", "test"]
    assert len(BLOCKS) >= 30
    shown = (
        "campaign.yaml",
        "device_arrays.py",
        "fabric.yaml",
        "fused.py",
        "handover.yaml",
        "messages.py",
        "my_all_reduce.py",
        "protocols/early_ready.py",
        "quickstart.py",
        "survive.py",
        "test_my_all_reduce.py",
        "test_my_training.py",
        "topology.yaml",
        "train_ddp.py",
        "under_a_launcher.py",
        "zero_copy.py",
    )
    assert sorted(name for name, _ in FILES) == [f"examples/{name}" for name in shown]
    assert 100 <= README.count("\n") <= 150


@pytest.mark.deep(rows=lambda page, block: not block.startswith(IN_FAST_TIER.get(page, ())))
@pytest.mark.parametrize(
    ("page", "block"), BLOCKS, ids=[f"{page}: {block.splitlines()[-1][:60]}" for page, block in BLOCKS]
)
def test_commands_run(page: str, block: str, tmp_path: Path) -> None:
    if "mpirun" in block and shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed: apt-get install openmpi-bin")
    if "torchrun" in block and not Path(sys.executable).with_name("torchrun").exists():
        pytest.skip("torch is not installed: pip install cxlemu[torch]")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    environment = os.environ | MPI_ENVIRONMENT | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")  # what is measured beside other tests is not for later runs
    environment.setdefault("MPLCONFIGDIR", str(Path.home() / ".cache" / "matplotlib"))  # which finds all fonts once
    for command in block.splitlines():
        if command in TAKES_LONG and LAST_SHOWN[command] != (page, block):
            continue  # where it is shown last
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
        )
        expected = re.search(r"  # .*exit code (\d)$", command)
        assert done.returncode == int(expected[1] if expected else 0), f"{command}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_shown_can_be_run(page: Path) -> None:
    """Commands stand in blocks that the test above runs; Python that is no file is at least Python."""
    blocks = re.findall(r"(?m)^```(\w*)\n(.*?)^```", page.read_text(), re.DOTALL)
    for language, text in blocks:
        assert language in ("", "sh", "python", "yaml", "mermaid", "c")
        assert language != "" or not re.search(r"(?m)^(\$ )?(cxlemu|python) ", text), text
        if language == "python":
            ast.parse(text)
        if language == "yaml":
            yaml.safe_load(text)
        if language == "c" and (compiler := shutil.which("cc")):
            command = [compiler, "-Wall", "-Werror", "-fsyntax-only", f"-I{include_dir()}", "-xc", "-"]
            subprocess.run(command, input=text, text=True, check=True)
    assert not re.search(r"(?m)^ {4}(cxlemu|python) ", page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_flags_in_sentences_exist(page: Path) -> None:
    for span in re.findall(r"`(cxlemu [^`]+)`", page.read_text()):
        command, words = main, shlex.split(span)[1:]
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            found = command.get_command(click.Context(command), words[0])
            if found is None:
                break  # simulate and reproduce take collectives
            command, words = found, words[1:]
        assert command is not main or words[0].startswith("-"), span
        known = {option for parameter in command.params for option in parameter.opts} | {"-h", "--help", "-V"}
        assert {word for word in words if re.fullmatch(r"--[a-z-]+|-[a-z]", word)} <= known, span


# Options of other programs, and of scripts of ours that are no commands of cxlemu.
OF_OTHERS = (
    r"(pytest|pip|python3? |torchrun|docker|mpirun|scripts/)",
    r"--(allow-run-as-root|oversubscribe|no-python|shm-size|cxl-seed|cxl|install|native|seconds)",
)
OPTIONS = {
    option for verb in [*VERBS.values(), main] for its in verb.params for option in its.opts + its.secondary_opts
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_named_in_sentences_exist(page: Path) -> None:
    text = re.sub(r"(?ms)^```.*?^```", "", page.read_text())
    spans = [span for span in re.findall(r"`([^`]+)`", text) if not any(re.match(each, span) for each in OF_OTHERS)]
    named = {option for span in spans for option in re.findall(r"(?:^|\s)(--[a-z][a-z-]*)", span)}
    assert named <= OPTIONS | {"--help"}, page.name


def test_an_option_that_there_is_not_would_be_noticed() -> None:
    assert "--budgettates" not in OPTIONS and {"--budget-states", "--no-check", "--debug"} <= OPTIONS


EXEC = "cxlemu cc -O2 -g {} examples/programs/{}.c -o {}; cxlemu exec --pool /dev/shm/{}"
QUEUE = EXEC.format("-DBUG", "queue", "queue", "queue -- ./queue send : ./queue receive")
PLAIN = QUEUE.replace("cxlemu cc -O2 -g -DBUG", f"cc -O2 -I{include_dir()}")
TABLE = EXEC.format("{}", "hash_table", "table", "table {} -- ./table 0 : ./table 1")
OBJECTS = "objects --every -- ./histories fill queue :: ./histories 0 queue : ./histories 1 queue"
TORCHRUN = "cxlemu torchrun -n 2 --compare gloo --leave-out 1:INVALIDATE examples/train_ddp.py 1"
# A page, how its sample begins, the command that prints it, and a pattern of what differs from run to run.
SAMPLES = [
    ("README.md", "32 results, 0 wrong", "cxlemu run", "~"),
    ("README.md", "[54.0, ", "python examples/quickstart.py", "~"),
    ("README.md", "1. not-flushed", QUEUE, "~"),
    ("README.md", "wrong: call 4", TORCHRUN, r"\d\.\d+(e-\d+)?"),
    ("docs/accelerator.md", "[24000.0, ", "python examples/device_arrays.py", "~"),
    ("docs/findings.md", "1. fence-too-late", TABLE.format("-DBUG", ""), r"found \d+ times"),
    ("docs/messages.md", "[36004.0, ", "python examples/messages.py", "~"),
    ("docs/preload.md", "# queue: not", PLAIN, r"[\d,]+ steps"),
    ("docs/programs.md", "ok: every", TABLE.format("-DKEYS=1", "--every"), "~"),
    ("docs/programs.md", "1. not-linear", EXEC.format("-DBUG", "histories", "histories", OBJECTS), r"\d+ to \d+"),
    ("docs/tenants.md", "AccessError: tenant red", "python examples/two_tenants.py", r"pool [\w-]+,"),
]


@pytest.mark.deep(rows=lambda page: page != "README.md")
@pytest.mark.parametrize(("page", "begins", "command", "differs"), SAMPLES, ids=[" ".join(row[:2]) for row in SAMPLES])
def test_samples_of_output_are_what_is_printed(
    page: str, begins: str, command: str, differs: str, tmp_path: Path
) -> None:
    """But for what differs, for line breaks, and for what the sample leaves out, which is "..." there."""
    if "torchrun" in command and not Path(sys.executable).with_name("torchrun").exists():
        pytest.skip("torch is not installed: pip install cxlemu[torch]")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
    )
    text = (ROOT / page).read_text()
    sample = re.split(r"`|\n\n", text[text.index(begins) :])[0]
    shown, printed = (re.sub(differs, "~", " ".join(each.split())) for each in (sample, done.stdout + done.stderr))
    assert re.search(".*".join(re.escape(part.strip()) for part in shown.split("...")), printed), printed


@pytest.mark.parametrize(("name", "text"), FILES, ids=[name for name, _ in FILES])
def test_files_shown_are_the_files(name: str, text: str) -> None:
    assert text == (ROOT / name).read_text()


@pytest.mark.parametrize(
    "page", [*PAGES, *sorted((ROOT / "docs/reference/files").glob("*.md"))], ids=lambda page: page.stem
)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    for picture in re.findall(r'src="([^"]+)"', text):
        assert (page.parent / picture).exists(), picture
    for target, heading in re.findall(r"\]\(([^)#\s]*)(?:#([^)]+))?\)", text):
        if "://" in target:
            continue
        other = page.parent / target if target else page
        assert other.exists(), target
        assert not heading or heading in _headings(other.read_text()), heading


def _headings(text: str) -> set[str]:
    """As GitHub makes anchors of them."""
    titles = re.findall(r"(?m)^#+ (.+)$", text)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize(
    "page", [*PAGES, *sorted((ROOT / "docs/reference/files").glob("*.md"))], ids=lambda page: page.stem
)
def test_pages_are_short_and_so_are_their_lines(page: Path) -> None:
    """Rows of tables and commands are as long as they must be; a table is whole, which a blank line would end."""
    text = page.read_text()
    assert text.count("\n") <= 200
    prose = re.sub(r"(?ms)^```.*?^```", "", text)
    assert [line for line in prose.splitlines() if len(line) > 140 and line[0] != "|"] == []
    for table in re.findall(r"(?m)(?:^\|.*\n)+", prose):
        assert re.match(r".*\n\|[-|]+\n", table), table


def test_troubleshooting_quotes_messages_that_there_are() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    table = re.search(r"\| the message has .*?\n\n", page, re.DOTALL)
    assert table
    quoted = [text for line in table[0].splitlines()[2:] for text in re.findall("`(.+?)`", line.rpartition(" | ")[0])]
    of_others = {"An attempt has been made to start a new process", "attempt to run as root", "not enough slots"}
    packages = ("cxlemu", "collectives")
    said = "".join(file.read_text() for package in packages for file in sorted((ROOT / package).rglob("*.py")))
    said = re.sub(r'"\s+f?"', "", said)  # strings that go on in the next line
    assert len(quoted) > 12
    assert [text for text in quoted if text not in said] == [text for text in quoted if text in of_others]


def test_the_index_lists_all_pages_and_pages_show_all_pictures() -> None:
    index = re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs" / "index.md").read_text())
    assert sorted({*index, "index.md"}) == sorted(page.name for page in PAGES[1:])
    shown = re.findall(r"images/([\w-]+\.(?:svg|png))", TEXT)
    assert set(shown) == {picture.name for picture in (ROOT / "docs" / "images").iterdir()}


def test_published_figures_at_the_top_are_those_of_the_tables_below() -> None:
    """The tables there are compared with what the commands print: see test_reproduce.py and test_scalepool.py."""
    page = (ROOT / "docs" / "published.md").read_text()
    rows = re.findall(r"(?m)^\| (\w[\w-]*) \| ([\d.]+) \| ([\d.]+) \|", page)
    all_of = {name: (published, ours) for name, published, ours in rows}
    table = re.search(r"\| speedups of .*?\n\n", page, re.DOTALL)
    assert table
    seen = 0
    for line in table[0].strip().splitlines()[2:]:
        what, published, ours = (cell.strip() for cell in line.strip("|").split("|")[:3])
        names = [name for name in re.findall(r"[\w-]+", what) if name in all_of]
        if names:
            assert [all_of[name] for name in names] == list(zip(published.split(", "), ours.split(", "), strict=True))
        else:
            assert f" | {published} | {ours} | " in page.replace(table[0], ""), what
        seen += len(names)
    assert seen == len(all_of)


def test_the_count_of_misses_is_that_of_published_systems() -> None:
    """Each count there is compared with what its command prints: CCCL's, ScalePool's, FLUX's."""
    page, limits = (" ".join((ROOT / "docs" / f"{name}.md").read_text().split()) for name in ("published", "limits"))
    counts = [(int(of), int(near)) for near, of in re.findall(r"(\d+) of (\d+) predicted figures are within 15%", page)]
    predicted, missed = sum(of for of, _ in counts), sum(of - near for of, near in counts)
    assert len(counts) == 3
    assert f"of {predicted} predictions for whole systems {missed} miss by more than 15%" in limits
