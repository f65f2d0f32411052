"""SPIN, where it is installed, finds as many states and transitions as we do in the model that is written for it."""

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from studies.benchmarks import spin

pytestmark = pytest.mark.skipif(not (shutil.which("spin") and shutil.which("gcc")), reason="SPIN and gcc are needed")


@pytest.mark.deep
def test_spin_counts_the_same_states_and_transitions(tmp_path: Path) -> None:
    program = spin.message_passing(chunks=1)
    spin.compile_spin(program, tmp_path)
    ours, theirs = spin.ours(program), spin.spin(tmp_path)
    assert ours.states == theirs.states > 500
    assert ours.transitions == theirs.transitions - 1  # SPIN counts the arrival at the first state
