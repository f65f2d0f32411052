"""Every command's help has examples, which are commands that there are, with flags and values that they take."""

import re
import shlex
import shutil
import sys
from itertools import pairwise
from pathlib import Path

import click
import pytest

from cxlemu.cli import main
from cxlemu.topology.shipped import shipped_configs
from tests.helpers.commands import cxlemu
from tests.test_vocabulary import VERBS

ROOT = Path(__file__).parents[1]
WIDTH = 80


COMMANDS = {f"cxlemu {verb}": command for verb, command in VERBS.items()}


def examples(command: click.Command) -> list[str]:
    """The lines of a help's examples."""
    _, _, behind = (command.help or "").partition("Examples:\n")
    block = behind.replace("\b", "").split("\n\n")[0]
    return [line.strip() for line in block.splitlines() if line.strip()]


def parsed(line: str) -> None:
    """Let click take a command's flags and arguments, and nothing more."""
    words = shlex.split(line, comments=True)
    if "CC=cxlemu-cc" in words:
        return  # how a build system is told: in one word, as of two many a configure script takes neither
    words = words[words.index("cxlemu") + 1 :]
    for flag, value in pairwise(words):
        if flag in ("-c", "--config", "--against"):
            assert value.endswith(".yaml") or value in shipped_configs(), f"{line}: there is no topology {value}"
    command: click.Command = main
    context = click.Context(main, info_name="cxlemu")
    while isinstance(command, click.Group) and words and (below := command.get_command(context, words[0])):
        command, name, parent = below, words.pop(0), context
        context = click.Context(command, info_name=name, parent=parent)
    assert command is not main, f"{line}: there is no such command"
    with command.make_context(context.info_name, words, parent=context.parent):
        pass  # it is closed: --json - sends what is printed to standard error until then


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_of_a_help_are_commands(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # where files of examples/ are
    shown = examples(COMMANDS[name])
    its = name.partition(" --")[0]
    assert any(line.startswith(its) or f" {its} " in line for line in shown), "no example"
    for line in shown:
        parsed(line)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_help_fits_its_terminal(name: str) -> None:
    shown = click.Context(COMMANDS[name], info_name=name, terminal_width=WIDTH, max_content_width=WIDTH)
    assert not [line for line in shown.get_help().splitlines() if len(line) > WIDTH and "|" not in line]


def test_an_example_that_is_parsed_leaves_standard_output_alone() -> None:
    before = sys.stdout
    parsed("cxlemu run barrier --json -")
    assert sys.stdout is before


def test_an_example_that_is_none_is_noticed() -> None:
    for line in ("cxlemu rnu", "cxlemu run --no-such-flag", "cxlemu run -n x"):
        with pytest.raises((AssertionError, click.UsageError)):
            parsed(line)


# --- in the deep tier they run ----------------------------------------------------------------------------------------

LONG = "it takes long, and has tests of its own"
LEFT_OUT = {
    r"/dev/dax|card0": "devices that are not here",
    r"mpirun|make|cargo|torchrun": "other people's commands, and torch",
    r"\./|queue\.c|my_lock|my_trace|my-model|mine\.py|4711|cxl1\.|@token": "what the reader has",
    r"capacity|--pool shared|pool clean$": "pools of others",
    r"^cxlemu (bench|faults|reproduce|run|simulate memory)|--calibrate|--rounds|-n 36": LONG,
    r"^cxlemu (fused (?!.*virtual)|mutate( (?!--case)|$)|prove( all_gather| -n|$))": LONG,
}


def left_out(line: str) -> str | None:
    """Why an example is not run."""
    return next((why for what, why in LEFT_OUT.items() if re.search(what, line)), None)


RUN = sorted({line for command in COMMANDS.values() for line in examples(command) if left_out(line) is None})


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the reader of a help has it: the repository's files, a topology, a litmus test, and a small plan."""
    folder = tmp_path_factory.mktemp("reader")
    for name in ("examples", "configs", "tests"):
        (folder / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "configs/titan2-6xcz120.yaml", folder / "my-rack.yaml")
    shutil.copy(ROOT / "tests/faults/litmus/MP.yaml", folder / "mp.yaml")
    small = ["all_reduce", "-n", "2", "-b", "64", "--region-bytes", "4K", "-O", str(folder / "all_reduce.plan")]
    assert cxlemu("plan", "save", *small).exit_code == 0
    return folder


@pytest.mark.deep
@pytest.mark.parametrize("line", RUN)
def test_an_example_runs(line: str, reader: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in reader.iterdir():
        (tmp_path / each.name).symlink_to(each)
    monkeypatch.chdir(tmp_path)
    words = [part for word in shlex.split(line) for part in (sorted(map(str, Path().glob(word))) or [word])]
    if "-O" in words:
        (tmp_path / "all_reduce.plan").unlink()
    cxlemu(*words[1:], code=3 if ":broken" in line else 0)  # a schedule that stops early


def test_most_examples_run_and_the_others_have_a_reason() -> None:
    lines = {line for command in COMMANDS.values() for line in examples(command)}
    assert len(RUN) >= 50 and all(left_out(line) for line in lines - set(RUN))


def test_all_verbs_are_on_one_screen() -> None:
    shown = cxlemu("--help", terminal_width=WIDTH).output.splitlines()
    assert len(shown) <= 24 and max(map(len, shown)) <= WIDTH
    words = " ".join(line[15:] for line in shown)
    assert all(f"{name} " in words or f"{name}," in words for name in main.list_commands(click.Context(main)))


def test_the_unit_of_a_size_is_told() -> None:
    for verb in ("run", "prove", "simulate", "bench"):
        assert "1K is 1024 bytes" in " ".join(cxlemu(verb, "--help").output.split())
