"""The fixture ``torch_world``, by tests that use it."""

import importlib.util
import shutil
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]
EXAMPLE = Path(__file__).parents[2] / "examples/test_my_training.py"
WRONG = """
import pytest, torch, torch.distributed as dist
from cxlemu.errors import ArgumentError

def raises(x):
    if dist.get_rank():
        raise KeyError("mine")

def sums(x):
    y = torch.full((3,), x + dist.get_rank())
    dist.all_reduce(y)
    return y.tolist()

def test_raises(torch_world):
    torch_world(backend="shm", card_bytes="8M").run(raises, 1)

def test_never(torch_world):
    kill = {"kind": "kill", "rank": 1, "group": "0", "when": {"call": 500, "instruction": 0}}
    torch_world(backend="shm", card_bytes="8M", faults=[kill]).run(sums, 1.0)

def test_nothing_compared(torch_world):
    torch_world(ranks=1, compare=True, card_bytes="8M").run(sums, 1.0)

def test_three(torch_world):
    assert torch_world(ranks=3, card_bytes="8M").run(sums, 1.0).results == [[6.0] * 3] * 3

def test_a_local_function(torch_world):
    with pytest.raises(ArgumentError, match="functions of a module"):
        torch_world().run(lambda: 1)
"""


def test_the_example_passes(pytester: pytest.Pytester) -> None:
    shutil.copy(EXAMPLE, pytester.path)
    pytester.runpytest_subprocess(EXAMPLE.name).assert_outcomes(passed=2)


def test_what_goes_wrong_fails_the_test_with_the_report(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_wrong=WRONG)
    result = pytester.runpytest_subprocess("test_wrong.py")
    result.assert_outcomes(passed=2, failed=3)
    said = result.stdout.str()
    assert "raises: cxlemu torchrun ended with 1" in said and "KeyError: 'mine'" in said
    assert "sums: cxlemu torchrun ended with 3" in said and "fault 1 never happened" in said
    assert "nothing was compared" in said
    assert "again: pytest --cxl-seed" in said and "'test_wrong.py::test_raises'" in said
