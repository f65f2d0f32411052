"""``pytest -m dax_vm``: what ``python -m tests.dax_vm`` checks; skipped, with its reason, where guests cannot run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
SKIPPED = 77


@pytest.mark.dax_vm
@pytest.mark.parametrize("options", [[], ["--cxl"]], ids=["nvdimm", "cxl"])
def test_two_guests_that_share_nothing_but_cards(options: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.dax_vm", *options],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode == SKIPPED:
        pytest.skip(done.stdout.splitlines()[-1])
    print(done.stdout)
    assert done.returncode == 0
