"""The benchmark beside Gloo takes its steps on both, and its table says which and how they compare."""

import importlib.util
import re
import subprocess
import sys

import pytest

from tests.helpers.tables import with_rows
from tests.helpers.tiers import PATIENT_S

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed: pip install cxlemu[torch]"
)
ROW = re.compile(r"(\S+)((?: +[\d,]+\.\d){2} +\d+\.\d\d){2}")


@pytest.mark.deep
@pytest.mark.parametrize("ways", [["bare"], []], ids=["one", "all"])
def test_every_way_is_a_row(ways: list[str]) -> None:
    command = [sys.executable, "-m", "studies.benchmarks.beside_gloo", *ways, "--pairs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=4 * PATIENT_S)
    assert done.returncode == 0, done.stderr
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["us:", "Gloo", "cxl", "ratio", "CPU:", "Gloo", "cxl", "ratio"]
    found = [ROW.fullmatch(row) for row in rows]
    names = [row[1] for row in found if row]
    assert names == (ways or ["ddp", "fsdp", "fsdp_bf16", "tp", "pp", "call", "bare", "ping_pong"])
    assert len(names) == len(rows)


def test_a_ratio_is_the_median_of_the_pairs_ratios() -> None:
    from studies.benchmarks.beside_gloo import Took, line

    gloo, cxl = [Took(1.0, 2.0), Took(2.0, 2.0), Took(10.0, 2.0)], [Took(3.0, 1.0), Took(1.0, 1.0), Took(2.0, 6.0)]
    row = line("call", gloo, cxl).replace(",", "").split()
    assert row == ["call", "2000000.0", "2000000.0", "0.50", "2000000.0", "1000000.0", "0.50"]


@with_rows(("no_way", "there is no 'no_way': ways are ddp,"), ("--ranks 1", "2 ranks and 1 pair are the least"))
def test_what_cannot_be_measured_is_said(
    arguments: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from studies.benchmarks.beside_gloo import main

    monkeypatch.setattr(sys, "argv", ["beside_gloo", *arguments.split()])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert said in capsys.readouterr().err
