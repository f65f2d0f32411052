"""What was asked for and not done is said, with exit code 3, or 2 where it could be known before: a row for each way.

tests/nothing_done.md has the list of all, also of those that other files test.
"""

import re
import shlex
from pathlib import Path

import click
import pytest

from cxlemu.cli import main
from tests.helpers.commands import cxlemu

ROOT = Path(__file__).parents[1]
OWN = f"{ROOT}/examples/my_all_reduce.py:my_all_reduce"
LITMUS = ROOT / "tests/faults/litmus/OWNSTALE.yaml"

FILES = {
    "empty.yaml": "",
    "none.yaml": "faults: []",
    "still.yaml": "adversary: {evict: 0, prefetch: 0, land: 0}",
    "still_too.yaml": "adversary: {evict: 0, prefetch: 0, land: 0}\n"
    "faults: [{kind: stall, rank: 1, when: {instruction: 0}, seconds: 0.01}]",
    "late.yaml": "faults:\n  - {kind: crash, rank: 1, when: {call: 500, instruction: 0}}",
    "beyond.yaml": "faults:\n  - {kind: crash, rank: 1, when: {instruction: 9999}}",
    "untouched.yaml": "faults:\n"
    "  - {kind: poison, rank: 1, when: {instruction: 0}, card: 1, line: 12000}\n"
    "  - {kind: stall, rank: 0, when: {instruction: 0}, seconds: 0.01}",
    "stranger.yaml": "faults:\n  - {kind: kill, rank: 5, when: {instruction: 0}}",
    "nothing.py": "",
    "idle.py": "from collectives import algorithm\n\n\n@algorithm('barrier')\ndef idle(b):\n    pass\n"
    "\n\n@algorithm('broadcast')\ndef empty(b):\n    pass\n",
}
RUN = "run all_reduce -n 2 -e 64 --launch threads"
CAMPAIGN = "faults campaign broadcast -n 2 --variant naive -j 1"

ROWS = [
    # faults that never happen
    (f"{RUN} --faults late.yaml", 3, "fault 1 never happened: rank 1 made 6 calls"),
    (f"{RUN} --faults beyond.yaml", 3, "fault 1 never happened: rank 1 has 5 instructions in that call"),
    (f"{RUN} -c laptop --faults untouched.yaml", 3, "fault 1 changed nothing: no access met it afterwards"),
    (
        "run all_reduce -n 2 -b 0 -e 0 --launch threads --adversary 7",
        3,
        "the adversary moved no line: so little work draws no move from seed 7",
    ),
    (f"{RUN} --faults none.yaml", 2, "none.yaml has neither faults nor an adversary"),
    (f"{RUN} --faults still.yaml", 2, "still.yaml has neither faults nor an adversary with a rate above 0"),
    (f"{RUN} --faults still_too.yaml", 0, "worst case (nothing leaves a cache by itself)"),
    ("faults sweep barrier -n 2 --kinds flip_payload -j 1", 3, "no call has a place for flip_payload"),
    (f"{CAMPAIGN} --kinds nature --faults beyond.yaml", 3, "no fault happened in any case"),
    (f"{CAMPAIGN} --kinds nature --faults stranger.yaml", 2, "stranger.yaml: a fault is on rank 5, but cases have 2"),
    (f"{CAMPAIGN} --launch lockstep --kinds nature,crash", 2, "no case takes the fault crash"),
    ("bench -n 1-2 -e 8", 2, "invalid rank count '1-2': must be 2 to 64"),
    ("faults campaign barrier -n 1 --kinds crash", 2, "invalid rank count '1': must be 2 to 64"),
    ("faults campaign all_gather -n 2 -b 0", 2, "all_gather naive of 0 B does nothing, so nothing can fail"),
    (f"{CAMPAIGN} --faults none.yaml", 2, "none.yaml has neither faults nor an adversary"),
    (f"faults campaign -n 2 -j 1 --algorithm {OWN}", 0, "only caches move lines, no fault happens: faults need"),
    (f"faults campaign all_gather -n 2 --algorithm {OWN}", 2, "algorithms of your own replace collectives"),
    (f"faults campaign -n 2 --variant naive --algorithm {OWN}", 2, "algorithms of your own replace variants"),
    (f"{CAMPAIGN} --launch lockstep --kinds nature --integrity crc32c", 2, "no case takes checksums"),
    (f"{CAMPAIGN} --kinds nature --engine reference", 2, "engines are for ranks as threads and processes"),
    ("simulate all_reduce -n 2 -b 64K -e 64K --fail link:card-x8@9000000", 3, "nothing failed before the end"),
    ("simulate training --fail link:host-x16@100000000000", 3, "nothing failed before the end of the step"),
    (
        "simulate training -c racks-2x72 -n 3 --fail switch:cxl-spine0@670000",
        3,
        "the step takes no longer: it needs none of",
    ),
    (f"simulate --algorithm {OWN} -n 3 -b 1K -e 1K --against laptop", 0, "is simulated on six-cards alone, others"),
    # an algorithm that is not called
    (f"run --algorithm {OWN} -n 1", 2, "a call of one rank is a copy, and"),
    (f"simulate --algorithm {OWN} -n 1", 2, "is not called: give 2 ranks or more"),
    (f"prove --algorithm {OWN} -n 1 -b 64", 3, "a call of one rank is a copy, and my_all_reduce is not called"),
    # budgets, counts and sizes of nothing
    ("run all_gather -n 2 -b 0 -e 0 --launch threads", 3, "nothing was judged: no result has an element"),
    (
        "run barrier -c twelve-hosts --launch threads",
        0,
        "note: 4 ranks by default, and twelve-hosts has hosts for 12: give -n 12",
    ),
    ("run barrier -n 2 --launch threads", 0, "1 result, 0 wrong"),
    ("simulate all_gather -n 2 -b 0 -e 0 --check", 3, "nothing was judged: no result has an element"),
    (
        "simulate --algorithm idle.py:empty -b 1K",
        3,
        "nothing was judged: the plan of empty for 1 KiB has no instruction",
    ),
    ("explore all_gather -b 0", 3, "unknown: nothing was judged: no rank takes a step in the pool"),
    ("explore all_gather -n 1", 3, "unknown: nothing was judged: no rank takes a step in the pool"),
    ("prove barrier -n 1", 3, "nothing was judged: no plan has an instruction"),
    ("prove barrier -n 1,2", 0, "2 ok, 0 violation, 0 unknown"),
    ("prove all_gather -n 2 -b 0", 3, "nothing was judged: no plan has an instruction"),
    ("prove --algorithm idle.py:idle -n 2", 1, "0 ok, 1 violation"),
    ("faults sweep all_gather -n 2 -b 0", 2, "-b 0: no call has an instruction, so no fault has a place"),
    (f"{CAMPAIGN} --budget 0s", 3, "the budget ended first"),
    (f"litmus {LITMUS} --budget-states 1", 3, "unknown"),
    ("explore all_reduce -n 2 -b 64 --variant line --budget-states 1", 3, "the budget of 1 states is spent"),
    ("prove all_reduce --budget 0s", 2, "is not a time above 0"),
    (f"{RUN} --iters 0", 2, "is not in the range"),
    ("faults sweep barrier --sample 0", 2, "is not in the range"),
    ("faults campaign barrier --seeds 0", 2, "is not in the range"),
    ("run all_reduce -n 2 -b 64 -e 8", 2, "--minbytes 64 is more than --maxbytes 8"),
    ("exec --pool /p=1M --seeds 0 --no-worst-case -- true", 2, "there is nothing to run"),
    # names that nothing has
    (f"{RUN} --variant nothing", 2, "has no variant 'nothing'"),
    ("faults sweep all_gather -b 10T", 2, "-b 10T exceeds the limit of 64 MiB for a block"),
    ("faults campaign all_gather -b 10T", 2, "size 10T exceeds the limit of 64 MiB"),
    ("plan show all_gather -n 2 -b 10T", 2, "a block of 5T exceeds the limit of 1 TiB"),
    ("prove nothing", 2, "unknown collective 'nothing'"),
    ("mutate barrier --case nothing", 2, "there is no case 'nothing'"),
    ("mutate all_reduce --variant line --integrity crc32c", 2, "no chosen variant has anything to mutate"),
    ("mutate barrier --mutant 0.0.99:delete", 2, "has no mutant 0.0.99:delete"),
    (f"{CAMPAIGN} --kinds nothing", 2, "unknown fault 'nothing'"),
    (f"litmus {LITMUS} --witness 'A.r9 == 4'", 2, "there is no A.r9"),
    ("simulate all_reduce -n 2 --fail link:nothing@1", 2, "has no link nothing"),
    ("simulate all_reduce -n 2 --space nothing", 2, "has no space 'nothing'"),
    ("simulate memory --policy nothing", 2, "unknown value 'nothing': choose from static"),
    ("topology show six-cards --facts --json -", 2, "six-cards has no fabrics of many switches"),
    ("run --deadline-s nan", 2, "'nan' is not a number"),
    ("run --deadline-s inf", 2, "is not in the range"),
    ("run --pace --time-scale nan", 2, "'nan' is not a number"),
    ("fused --time-scale nan", 2, "'nan' is not a number"),
    ("faults sweep --deadline-s nan", 2, "'nan' is not a number"),
    ("simulate training --skew nan", 2, "'nan' is not a number"),
    ("simulate serving --place nothing", 2, "unknown value 'nothing': choose from accelerator"),
    ("simulate serving --hosts 2 --requests 1 --place pool", 3, "Nothing was reused"),
    ("simulate serving --hosts 2 --requests 5 --crash 0@999", 3, "--crash 0@999 never happened"),
    ("bench -n 2 --peers nothing", 2, "is not one of openmpi"),
    ("pool clean nothing", 2, "there is no pool nothing"),
    ("pool show nothing", 2, "there is no pool nothing"),
    # files and folders of nothing
    ("litmus empty.yaml", 2, "a litmus test is a mapping"),
    ("simulate training --accelerator empty.yaml", 2, "an accelerator is a mapping"),
    ("litmus folder", 2, "holds no .yaml file"),
    ("faults campaign -c empty.yaml", 2, "a campaign is a mapping"),
    ("topology check empty.yaml", 2, "a topology is a mapping"),
    ("topology cost six-cards", 2, "has no bill"),
    ("plan check empty.yaml", 2, "not a plan file"),
    ("run --protocol nothing.py:f", 2, "nothing.py has no 'f'"),
    ("simulate trace folder", 2, "does not exist"),
    ("replay cxl1.", 2, "cut off or damaged"),
    # two outputs of one name
    (
        "simulate barrier -n 2 --json x --trace folder/../x",
        2,
        "--json x and --trace folder/../x are one file: give each",
    ),
    ("simulate barrier -n 2 --json - --trace -", 2, "--json - and --trace - are one file"),
    (f"{CAMPAIGN} --json x --junit x", 2, "--json x and --junit x are one file"),
    (f"{CAMPAIGN} --html x --junit x", 2, "--junit x and --html x are one file"),
    (f"{CAMPAIGN} --resume -", 2, "--resume -: a file is needed"),
    ("exec --pool /p=1M --every --resume - -- true", 2, "--resume -: a file is needed"),
    ("fused gemm_all_reduce --tuned -", 2, "--tuned -: a file is needed"),
    ("plan save barrier -n 2 -O -", 2, "--output -: a file is needed"),
    (f"{CAMPAIGN} --json x --resume x", 2, "--json x and --resume x are one file"),
    ("exec --pool /p=1M --sarif x --html x -- true", 2, "--sarif x and --html x are one file"),
    ("exec --pool /p=1M --every --resume x --html x -- true", 2, "--html x and --resume x are one file"),
    ("plan save barrier -n 2 -O x.plan --json x.plan", 2, "--json x.plan and --output x.plan are one file"),
    ("topology show laptop --json x.svg --svg x.svg", 2, "--json x.svg and --svg x.svg are one file"),
    ("simulate barrier -n 2 --json /dev/null --trace /dev/null", 0, "engine virtual"),
    # options that would change nothing
    ("run all_reduce -n 2 --root 1", 2, "--root does nothing here"),
    ("run barrier -n 2 -d f16", 2, "--datatype does nothing here"),
    ("run barrier -n 2 --in-place", 2, "--in-place does nothing here"),
    ("run barrier -n 2 --integrity crc32c", 2, "--integrity does nothing here"),
    ("run barrier -n 2 --region-bytes 10T", 0, "at most three eighths of the pool"),
    ("simulate training -n 4 --inside nvl72", 2, "--inside does nothing here"),
    ("simulate all_reduce -n 2 -c racks-2x72 -b 64K -e 64K --fail switch:cxl-spine0@5", 3, "no row takes longer"),
    ("prove barrier -o max", 2, "--op does nothing here"),
    ("prove all_gather -o sum,max", 2, "--op does nothing here, because no collective of all_gather reduces"),
    ("prove all_gather_gemm -n 2 -b 64", 2, "--minbytes does nothing here: products are proved on small matrices"),
    ("prove gemm_all_reduce -n 2 -c laptop", 2, "--config does nothing here: products are proved on small matrices"),
    ("simulate all_gather -n 4 --split 2", 2, "cxlemu: --split is for all_reduce without a variant, not for"),
    ("explore all_gather -n 2 --replay ''", 2, "--replay '' names no execution"),
    ("topology show laptop --svg x.png", 2, "--svg x.png: the picture is SVG: give a file that ends in .svg"),
    ("replay cxl1.x --svg x.png", 2, "--svg x.png: the picture is SVG: give a file that ends in .svg"),
    ("prove barrier -b 64", 2, "--minbytes does nothing here, because no collective of barrier moves data"),
    ("prove --algorithm idle.py:idle -b 64", 2, "--minbytes does nothing here"),
    ("run barrier -n 2 -f 4", 2, "--stepfactor does nothing here"),
    ("simulate barrier -n 2 -i 4", 2, "--stepbytes does nothing here"),
    ("explore barrier -b 64", 2, "--minbytes does nothing here"),
    ("explore all_gather -r 1", 2, "--root does nothing here, because no collective of all_gather has a root"),
    ("explore idle.py:idle -r 1", 2, "--root does nothing here"),
    ("plan show barrier -r 1", 2, "--root does nothing here"),
    ("plan show barrier -d f16", 2, "--datatype does nothing here"),
    ("plan save all_gather -r 1 -O all_gather.plan", 2, "--root does nothing here"),
    ("plan traffic barrier -b 64 -O barrier", 2, "--minbytes does nothing here"),
    ("faults sweep barrier -n 2 -b 64", 2, "--minbytes does nothing here"),
    ("faults campaign barrier -b 64 -b 128", 2, "--minbytes does nothing here"),
    ("simulate all_reduce -n 2 -r 1", 2, "--root does nothing here"),
    ("simulate all_reduce -n 2 --against laptop --against laptop", 2, "--against laptop is given twice"),
    ("torchrun -n 1 --leave-out 0:FENCE --leave-out 0:FENCE nothing.py", 2, "--leave-out 0:FENCE is given twice"),
    ("simulate all_reduce -n 2 --against six-cards", 2, "--against six-cards is the topology that is simulated"),
    ("simulate all_reduce -n 2 -b 64K --variant line --against six-cards", 0, "six-cards: "),
    ("simulate training --against titan2-6xcz120", 2, "--against titan2-6xcz120 is the topology that is simulated"),
    ("simulate memory --policy all,static", 2, "all has every name: leave the others out"),
    ("simulate memory -c laptop -b 1M --policy lru", 2, "--policy does nothing here, because there is one memory"),
    ("simulate memory pointer-chase -c laptop -b 1M -e 3M -f 2", 0, "the last size is 2 MiB: the next step would"),
    ("pool format --device k --create-size 16M --lend 1M --max-ranks 8", 2, "--max-ranks does nothing here"),
    ("simulate memory --policy lru,lru", 2, "--policy lru is given twice"),
    ("fused all_gather_gemm --budget 5s", 2, "--budget does nothing here"),
    ("fused all_gather_gemm --share 0.3", 2, "--share is for --pace"),
    ("fused all_gather_gemm --pace --share 0.3 --time-scale 2", 2, "--share sets the time scale"),
    ("fused all_gather_gemm --style medium --comm-rows 8", 2, "--comm-rows does nothing here"),
    (f"{RUN} --seeds 2", 2, "go with --protocol"),
    (f"{RUN} --time-scale 2", 2, "--time-scale is for --pace"),
    (f"{RUN} --backend shm --adversary 3", 2, "the backend 'shm' does not have"),
    ("explore all_reduce -n 2 -b 64 --runs 5", 2, "--runs: only --strategy pct and random have it"),
    ("explore all_gather --strategy pct:1 --engine reference", 2, "--engine: only --strategy exhaustive has it"),
    ("explore all_gather --strategy random --budget-bytes 1M", 2, "--budget-bytes: only --strategy exhaustive has"),
    ("explore all_gather --replay s0 --strategy random", 2, "--strategy does nothing here, because --replay names"),
    (f"{RUN} --variant line --integrity crc32c", 2, "the line variant carries its payload where a checksum would be"),
    ("torchrun --replay folder -n 4", 2, "--ranks does nothing here, because --replay makes the kept call"),
    ("pool format --device none.yaml --create-size 1M --yes", 2, "--create-size does nothing here: none.yaml is there"),
    ("simulate all_reduce -n 2 --split 2", 2, "several groups of 2: no number of ranks fits"),
    (f"litmus {LITMUS} --rounds 10", 2, "--rounds goes with --backend"),
    ("exec --pool /p=1M -- true", 3, "nothing was judged: no program touched the pool"),
    ("exec --pool /p=1M --coherent 4M+4K -- true", 2, "--coherent 4M+4K: it ends after the pool"),
    ("exec --pool /p=1M --seeds 7 --seed 3 -- true", 2, "--seed and --seeds exclude each other"),
    ("exec --pool /p=1M --replay cxl1.x --seeds 7 -- true", 2, "--replay makes the token's run"),
    ("exec --pool /p=1M --seed 3 --keep-going -- true", 2, "--keep-going does nothing here"),
    ("exec --pool /p=1M --steps 18446744073709551632 -- true", 2, "is not in the range"),
    ("exec --pool /p=1M -- ''", 2, "a command is missing"),
    ("exec --pool /p=1M --shrink 5s --no-shrink -- true", 2, "--shrink and --no-shrink exclude each other"),
    ("exec --pool /p=1M --hosts 3 --crash 2@5 -- true", 2, "no command runs on host 2"),
    ("exec --pool /p=1M --hosts 1 -- true : true", 3, "nothing between hosts would be judged: --hosts 1 puts all"),
    ("exec --pool /p=1M --hosts 1 -- @0 true : @0 true", 3, "nothing was judged: no program touched the pool"),
    ("exec --pool /p=1M --poison 1073741824@5 -- true", 2, "--poison: /p has 2 MiB, so there is no byte 1073741824"),
    ("exec --pool /p=1M --error-exitcode 0 -- true", 2, "0 is not in the range 1<=x<=255"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("command", "code", "said"), ROWS, ids=[row[0].replace(str(ROOT), "") for row in ROWS])
def test_what_was_not_done_is_said(command: str, code: int, said: str, folder: Path) -> None:
    done = cxlemu(*shlex.split(command))
    output = re.sub(r"\s+(# )?", " ", done.output)
    assert (done.exit_code, said in output) == (code, True), done.output
    assert {path.name for path in folder.iterdir()} == {*FILES, "folder"}


def test_the_list_names_every_command_and_only_tests_that_are_there() -> None:
    section = (ROOT / "tests/nothing_done.md").read_text()
    named = {name.split()[0] for name in re.findall(r"`([a-z+]+[ a-z]*)`", section)}
    assert named >= set(main.list_commands(click.Context(main)))
    files = set(re.findall(r"`(test_\w+\.py)`", section))
    assert files and files <= {path.name for path in (ROOT / "tests").rglob("test_*.py")}
