"""Every command's output fits a terminal of 80 columns: no line is longer, and no word is cut."""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from cxlemu.cli import console
from tests.helpers import commands
from tests.helpers.pool_helpers import own_name, small_pool
from tests.test_vocabulary import VERBS

ROOT = Path(__file__).parents[1]
WIDTH = 80

# Command lines of every verb that prints tables or sentences; {root} is this checkout, {tmp} a directory with a plan,
# {pool} a pool that lives, {cards} two cards that are files, {token} a failure.
LINES: dict[str, list[str]] = {
    "run": [
        "all_reduce -n 2 -b 4K -e 64K --pace --time-scale 4 -v --launch threads",
        "--protocol {root}/examples/protocols/ring_queue.py:broken -n 2 --launch threads",
    ],
    "fused": ["all_gather_gemm -n 2 -s 256x256x256"],
    "fused --engine virtual": ["all_gather_gemm --engine virtual -c nvlink-8xa100"],
    "simulate": [
        "all_reduce broadcast -e 1M -v --against infiniband-3xh100",
        "all_reduce -b 64K -e 64K --variant every --check",
        "all_gather -c racks-2x72 -n 8 -b 64K --fail switch:cxl-spine0@5",
    ],
    "simulate memory": ["kv-cache -v -b 1T", "kv-cache --policy all -b 1T"],
    "simulate serving": [
        "--hosts 2 --requests 20 -v",
        "--workload documents --warm --place pool -c six-cards --rate 11 --requests 150 --sweep hosts=8-8",
    ],
    "simulate trace": ["{root}/examples/traces/fsdp -c titan2-6xcz120 -v", "{root}/examples/traces/fsdp"],
    "simulate training": ["-c titan2-6xcz120 --model llama3-8b --parallel fsdp --against infiniband-3xh100"],
    "plan list": [""],
    "plan show": ["all_gather -n 3"],
    "plan save": ["all_reduce -n 2 -O {tmp}/all_reduce.plan"],
    "plan check": ["{tmp}/all_reduce.plan"],
    "plan traffic": ["all_reduce -n 2 -O {tmp}/all_reduce"],
    "topology list": [""],
    "topology show": ["titan2-6xcz120", "clusters-cxl"],
    "topology check": ["{root}/configs/six-cards.yaml"],
    "topology cost": ["titan2-6xcz120 infiniband-3xh100"],
    "pool format": ["--device {tmp}/new0 --create-size 4M"],
    "pool list": [""],
    "pool show": ["{pool}", "{cards}"],
    "pool clean": ["{pool} --dry-run"],
    "pool capacity show": ["{cards}"],
    "doctor": [""],
    "litmus": ["{root}/tests/faults/litmus/ACK-early.yaml -v"],
    "explore": ["{root}/examples/protocols/ring_queue.py:broken", "all_gather -n 2 -b 128 --variant all"],
    "prove": [
        "all_reduce all_gather_gemm -n 2-3",
        "--algorithm {root}/examples/my_all_reduce.py:my_all_reduce -n 2-3 -b 1K",
        "{tmp}/all_reduce.plan",
    ],
    "mutate": ["barrier -n 2 -j 1"],
    "faults sweep": ["barrier --sample 5 -j 1"],
    "faults campaign": ["barrier --seeds 1 -j 1"],
    "replay": ["{token}"],
    "bench": ["all_reduce -n 2 -b 8 -e 64 --peers none --alternations 1 --source same"],
    "reproduce serving": [""],
    "reproduce validation": [""],
}
DEEP = {
    "run",
    "fused",
    "bench",
    "mutate",
    "faults sweep",
    "faults campaign",
    "reproduce serving",
    "reproduce validation",
    "prove",
}
DEEP_LINES = {"all_reduce -b 64K -e 64K --variant every --check", "kv-cache --policy all -b 1T"}
# What they print is a program's own, or a line; or their own tests, which run them whole, hold them to it.
OTHERS = {"cc", "c++", "exec", "torchrun", *(f"pool capacity {verb}" for verb in ("add", "force", "hold", "release"))}
OTHERS |= {f"reproduce {system}" for system in ("cccl", "flux", "scalepool")}

TO_COPY = ("cxlemu ", "again: ")  # a line with a command is left whole


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What stands for the names in braces."""
    tmp = tmp_path_factory.mktemp("columns")
    cxlemu("plan", "save", "all_reduce", "-n", "2", "-O", f"{tmp}/all_reduce.plan")
    cards = " ".join(f"--device {tmp}/card{number}" for number in range(2))
    cxlemu("pool", "format", *shlex.split(cards), "--create-size", "4M", "--lend", "64K")
    shown = cxlemu("mutate", "all_gather", "--case", "all_gather naive 2 ranks", "--mutant", "0.0.3:delete")
    [token] = [line.split()[-1] for line in shown.stdout.splitlines() if line.startswith("again: ")]
    with own_name() as name, small_pool(name):
        yield {"root": str(ROOT), "tmp": str(tmp), "cards": cards, "pool": name, "token": token}


cxlemu = partial(commands.cxlemu, columns=WIDTH)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(
            f"{verb.partition(' --')[0]} {line}".strip(),
            marks=[pytest.mark.deep] * (verb in DEEP or line in DEEP_LINES),
        )
        for verb, lines in LINES.items()
        for line in lines
    ],
)
def test_no_line_is_longer_and_no_word_is_cut(
    words: str, places: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "PIPE_CHARS", WIDTH)
    result = cxlemu(*shlex.split(words.format_map(places)))
    assert result.exit_code in (0, 1) and "Traceback" not in result.output, result.output
    lines = result.stdout.splitlines()
    long = [line for line in lines if len(line) > WIDTH and not any(command in line for command in TO_COPY)]
    assert lines and not long
    assert not [line for line in lines if "…" in line]


@pytest.mark.deep
def test_the_report_of_a_program_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "PIPE_CHARS", WIDTH)
    monkeypatch.chdir(tmp_path)  # reports name files as they lie from here
    for name in ("queue.c", "pool.h"):
        shutil.copy(ROOT / "examples" / "programs" / name, name)
    built = [sys.executable, "-m", "cxlemu", "cc", "-O2", "-g", "-DBUG", "queue.c", "-o", "queue"]
    if "there is no compiler" in subprocess.run(built, capture_output=True, text=True).stderr:
        pytest.skip("there is no compiler")
    result = cxlemu("exec", "--pool", "/dev/shm/queue", "--", "./queue", "send", ":", "./queue", "receive")
    lines = result.stdout.splitlines()
    assert result.exit_code == 1 and "not-flushed" in result.stdout
    assert not [line for line in lines if len(line) > WIDTH and not any(command in line for command in TO_COPY)]


def test_every_verb_is_walked_or_prints_no_table() -> None:
    assert LINES.keys() | OTHERS == VERBS.keys() and not LINES.keys() & OTHERS and LINES.keys() >= DEEP
