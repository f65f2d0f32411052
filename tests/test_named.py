"""An option that takes a list or a range names the entry that it does not do: a row for each such option of all verbs.

The options are found in what click declares. See tests/nothing_done.md.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from cxlemu.cli.params import Names, each_once
from cxlemu.cli.vocabulary import ConceptOption, RanksParam
from faults.cli.campaign import Words
from studies.cli.simulate_serving import HostsParam
from tests.helpers.commands import cxlemu
from tests.test_vocabulary import VERBS

ROOT = Path(__file__).parents[1]
RANGES = {"minbytes", "maxbytes", "stepfactor", "stepbytes"}  # words of the vocabulary
LISTS = (Names, Words, RanksParam, HostsParam)


def takes_several(its: click.Parameter, ranged: bool) -> bool:
    of_sizes = ranged and isinstance(its, ConceptOption) and its.word in RANGES
    several = its.multiple or its.nargs == -1 or its.callback is each_once  # type: ignore[attr-defined]
    return several or of_sizes or isinstance(its.type, LISTS)


def several() -> Iterator[str]:
    """``prove --variant``, ``litmus paths``: all options and arguments that take several values."""
    for verb, command in VERBS.items():
        ranged = any("--maxbytes" in its.opts for its in command.params)  # or there is one size
        for its in command.params:
            if takes_several(its, ranged):
                yield f"{verb} {max(its.opts, key=len)}"


# Options whose words are another program's.
FREE = {"cc arguments": "the compiler's", "c++ arguments": "the compiler's", "torchrun arguments": "the script's"}
POWERS = f"--algorithm {ROOT}/tests/helpers/wrong_algorithms.py:powers_of_two"
LITMUS = ROOT / "tests/faults/litmus/OWNSTALE.yaml"
RUN = "run all_reduce -n 2 -c laptop --launch threads"
PAIRS = "all_reduce --variant all -n 2 -b 64 -d i32,f32 -o sum,band"
SIZES = "simulate all_gather -n 2"
PRICED = "topology cost titan2-6xcz120"
SERVED = "simulate serving --hosts 2 --requests 5"

# option -> command, exit code, what it says of the entry that is not done
ROWS = {
    "topology check files": ("topology check six-cards nothing.yaml", 2, "nothing.yaml"),
    "topology cost configs": (f"{PRICED} six-cards", 2, "six-cards has no bill"),
    "pool format --device": ("pool format --yes --device nothing --device none", 2, "nothing"),
    "pool show --device": ("pool show --device nothing", 2, "nothing"),
    "pool capacity show --device": ("pool capacity show --device nothing", 2, "nothing"),
    "pool capacity add --device": ("pool capacity add red 1M --device nothing", 2, "nothing"),
    "pool capacity release --device": ("pool capacity release red --device nothing", 2, "nothing"),
    "pool capacity force --device": ("pool capacity force red --device nothing", 2, "nothing"),
    "doctor --device": ("doctor --calibrate a.yaml --device nothing", 2, "nothing"),
    "doctor --certificate": (
        "doctor --calibrate a.yaml --device nothing --certificate a.html --certificate b.txt",
        2,
        "b.txt",
    ),
    "run collectives": ("run all_reduce barrier -n 2 --variant zero_copy", 2, "barrier has no variant 'zero_copy'"),
    "run --ranks": ("run gather -n 2-4 --variant hierarchical", 2, "-n 2: hierarchical needs clusters"),
    "run --datatype": (f"{RUN} -b 64 -e 64 -d i32,f32 -o sum,band", 0, "left out: there is no band of f32"),
    "run --op": (f"{RUN} -b 64 -e 64 -d i32,f32 -o sum,band", 0, "left out: there is no band of f32"),
    "run --minbytes": (f"{RUN} -b 64 -e 8", 2, "--minbytes 64 is more than --maxbytes 8"),
    "run --maxbytes": (f"{RUN} -b 64 -e 100 -f 2", 0, "the next step would exceed --maxbytes 100 B"),
    "run --stepfactor": (f"{RUN} -b 64 -e 64 -f 2", 2, "--stepfactor does nothing here, because there is one size"),
    "run --stepbytes": (f"{RUN} -b 64 -e 64 -i 8", 2, "--stepbytes does nothing here, because there is one size"),
    "run --device": ("run --backend dax --device nothing", 2, "nothing"),
    "simulate collectives": ("simulate all_reduce barrier -n 2 --variant zero_copy", 2, "barrier has no variant"),
    "simulate --ranks": ("simulate gather -n 2-4 --variant hierarchical", 2, "not tried: -n 3, 4"),
    "simulate --datatype": ("simulate all_reduce -n 2 -b 64 -d i32,f32 -o sum,band", 0, "there is no band of f32"),
    "simulate --op": ("simulate all_reduce -n 2 -b 64 -d i32,f32 -o sum,band", 0, "there is no band of f32"),
    "simulate --minbytes": (f"{SIZES} -b 64 -e 8", 2, "--minbytes 64 is more than --maxbytes 8"),
    "simulate --maxbytes": (f"{SIZES} -b 64 -e 100 -f 2", 0, "the next step would exceed --maxbytes 100 B"),
    "simulate --stepfactor": (f"{SIZES} -b 64 -f 2", 2, "--stepfactor does nothing here, because there is one size"),
    "simulate --stepbytes": (f"{SIZES} -b 64 -i 8", 2, "--stepbytes does nothing here, because there is one size"),
    "simulate --against": (f"{SIZES} -b 64 --against laptop --against nothing", 2, "nothing"),
    "simulate --fail": (
        "simulate all_reduce -n 2 -c racks-2x72 -b 64K --fail switch:cxl-spine0@5 --fail switch:cxl-spine1@9000000",
        3,
        "nothing failed before the end of any row: switch:cxl-spine1@9000000",
    ),
    "simulate memory workloads": ("simulate memory pointer-chase nothing", 2, "'nothing' is neither a file nor"),
    "simulate memory --config": ("simulate memory -c tiers-rdma -c nothing", 2, "nothing"),
    "simulate memory --policy": ("simulate memory --policy static,nothing", 2, "unknown value 'nothing'"),
    "simulate memory --ranks": ("simulate memory -c tiers-rdma -n 999,1000", 2, "-n 999: "),
    "simulate memory --minbytes": ("simulate memory -b 1G -e 512M", 2, "-b 1G is more than -e 512M"),
    "simulate memory --maxbytes": ("simulate memory pointer-chase -e 9E", 2, "a working set of 9 EiB does not fit"),
    "simulate memory --stepfactor": ("simulate memory -b 1G -e 1G -f 2", 2, "--stepfactor does nothing here"),
    "simulate training --against": ("simulate training --against infiniband-3xh100 --against nothing", 2, "nothing"),
    "simulate training --fail": (
        "simulate training -c racks-2x72 -n 3 --fail switch:cxl-spine0@500000 --fail switch:cxl-spine1@90000000000",
        3,
        "nothing failed before the end of the step: switch cxl-spine1 at 90000000000 us",
    ),
    "simulate training --ranks": ("simulate training --parallel tp=4 -n 5,6", 2, "-n 5: "),
    "simulate serving --place": ("simulate serving -c six-cards --place pool,host", 2, "has no memory of hosts"),
    "simulate serving --crash": (f"{SERVED} --crash 0@0.01 --crash 1@999", 3, "--crash 1@999 never happened"),
    "simulate serving --lose-card": (f"{SERVED} --lose-card 0@999", 3, "--lose-card 0@999 never happened"),
    "simulate serving --cold-start": (f"{SERVED} --cold-start 1@999", 3, "--cold-start 1@999 never happened"),
    "simulate serving --sweep": (
        "simulate serving --requests 5 --place pool --sweep hosts=1-2",
        3,
        "pool: not saturated up to 2 hosts",
    ),
    "reproduce flux -m": ("reproduce flux -m 9", 2, "9"),
    "bench collectives": ("bench all_reduce nothing", 2, "'nothing' is not a collective that moves data"),
    "bench --ranks": ("bench -n 2,99", 2, "invalid rank count '99'"),
    "bench --minbytes": ("bench -b 9 -e 15", 2, "there is no size between 9 and 15"),
    "bench --maxbytes": ("bench -b 9 -e 15", 2, "there is no size between 9 and 15"),
    "bench --peers": ("bench --peers gloo,nothing", 2, "'nothing' is not one of openmpi"),
    "bench --peer-python": ("bench --peers none --peer-python gloo=python", 2, "gloo is not among the peers"),
    "fused --ranks": ("fused all_gather_gemm -n 3,4 -s 16x16x16", 2, "-n 3: "),
    "fused --engine virtual --ranks": ("fused all_gather_gemm --engine virtual -n 3,4 -s 16x16x16", 2, "-n 3: "),
    "explore --ranks": ("explore gather -n 3,4 --cluster 2", 2, "-n 3: --cluster: 3 ranks are not on hosts of 2 each"),
    "litmus paths": (f"litmus {LITMUS} nothing.yaml", 2, "nothing.yaml"),
    "litmus --device": (f"litmus {LITMUS} --backend dax --device nothing", 2, "nothing"),
    "prove collectives": (
        "prove all_gather all_reduce --variant two_shot -n 2 -b 64",
        3,
        "all_gather two_shot at n = 2: there",
    ),
    "prove --ranks": ("prove gather --variant hierarchical -n 3,4 -b 64", 3, "nothing was judged with n = 3"),
    "prove --variant": ("prove gather --variant hierarchical,naive -n 3 -b 64", 3, "judged with hierarchical"),
    "prove --datatype": (f"prove {PAIRS}", 0, "left out: there is no band of f32"),
    "prove --op": (f"prove {PAIRS}", 0, "left out: there is no band of f32"),
    "prove --minbytes": ("prove all_gather -b 64 -e 8", 2, "--minbytes 64 is more than --maxbytes 8"),
    "prove --maxbytes": ("prove all_gather -n 2 --variant all -b 64 -e 100", 0, "would exceed --maxbytes 100 B"),
    "prove --stepfactor": ("prove all_gather -b 64 -f 2", 2, "--stepfactor does nothing here"),
    "mutate collectives": ("mutate barrier nothing", 2, "unknown collective 'nothing'"),
    "mutate --ranks": ("mutate barrier gather --variant hierarchical,line -n 3 -j 1", 3, "hierarchical at n = 3"),
    "mutate --variant": ("mutate barrier gather --variant hierarchical,line -n 3 -j 1", 3, "with hierarchical"),
    "faults sweep collectives": ("faults sweep barrier all_gather -n 2 -b 0 -j 1 --kinds kill", 3, "with all_gather"),
    "faults sweep --ranks": ("faults sweep barrier -n 3,4 --cluster 2", 2, "-n 3 is not a multiple of --cluster 2"),
    "faults sweep --kinds": ("faults sweep barrier -n 2 --kinds kill,flip_payload -j 1", 3, "with flip_payload"),
    "faults campaign collectives": (
        "faults campaign barrier all_gather -n 2 --variant naive,all --kinds nature -j 1",
        3,
        "nothing was judged with barrier",
    ),
    "faults campaign --ranks": (f"faults campaign -n 2,3 {POWERS} --kinds nature -j 1", 3, "with n = 3"),
    "faults campaign --minbytes": ("faults campaign all_gather -b 64 -b 10T", 2, "-b 10T exceeds the limit"),
    "faults campaign --variant": (
        "faults campaign gather -n 2 --variant naive,two_shot --kinds nature -j 1",
        3,
        "nothing was judged with two_shot",
    ),
    "faults campaign --algorithm": (
        f"faults campaign -n 3 {POWERS} --algorithm {ROOT}/examples/my_all_reduce.py:my_all_reduce --kinds nature -j 1",
        3,
        "powers_of_two: it declines every call",
    ),
    "faults campaign --launch": (
        "faults campaign barrier -n 2 --launch lockstep,turns --kinds kill -j 1",
        3,
        "nothing was judged with lockstep",
    ),
    "faults campaign --engine": ("faults campaign barrier --launch threads --engine native,nothing", 2, "engines.1: "),
    "faults campaign --faults": (
        "faults campaign barrier -n 2,3 --kinds nature --faults third.yaml -j 1",
        0,
        "third.yaml at n = 2",
    ),
    "faults campaign --kinds": (
        "faults campaign barrier -n 2 --variant line --kinds nature,flip_payload -j 1",
        3,
        "nothing was judged with flip_payload",
    ),
    "exec --pool": ("exec --pool /p=1M --pool /q=nothing -- true", 2, "--pool /q=nothing: 'nothing' is neither"),
    "exec --coherent": ("exec --pool /p=4M --coherent 0+4K --coherent 4M+4K -- true", 2, "4M+4K: it ends after"),
    "exec words": ("exec --pool /p=1M -- true : ./nothing", 2, "nothing"),
    "torchrun --leave-out": (
        "torchrun --leave-out 0:FENCE --leave-out 1:NOTHING third.yaml",
        2,
        "1:NOTHING: there is no",
    ),
    "torchrun --device": ("torchrun --backend shm --device nothing third.yaml", 2, "devices and their pool are for"),
}


def test_every_option_that_takes_several_has_a_row() -> None:
    found = {*several()}
    assert found - {*ROWS, *FREE} == set()
    assert {*ROWS, *FREE} - found == set() and not {*ROWS} & {*FREE}


@pytest.mark.deep(rows=lambda option: option.startswith("faults campaign") and not option.endswith("--faults"))
@pytest.mark.parametrize("option", ROWS)
def test_an_entry_that_is_not_done_is_named(option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("third.yaml").write_text("faults:\n  - {kind: stall, rank: 2, when: {instruction: 0}, seconds: 0.01}\n")
    command, code, said = ROWS[option]
    if command.startswith("torchrun"):
        pytest.importorskip("torch")
    done = cxlemu(*shlex.split(command))
    assert (done.exit_code, said in re.sub(r"\s+(# )?", " ", done.output)) == (code, True), done.output
