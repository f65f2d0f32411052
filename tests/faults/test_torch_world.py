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

def tensor(x):
    return torch.full((2,), x)

def test_a_tensor(torch_world):
    with pytest.raises(ArgumentError, match="tensor: arguments pass through JSON: Object of type Tensor is not"):
        torch_world().run(tensor, torch.ones(1))
    torch_world(backend="shm", card_bytes="8M").run(tensor, 1)

def test_a_local_function(torch_world):
    with pytest.raises(ArgumentError, match="functions of a module"):
        torch_world().run(lambda: 1)
    for seed in ("seded", True):
        with pytest.raises(ArgumentError, match=f'an adversary is "seeded", a seed or None, not .*{seed}'):
            torch_world(adversary=seed)
"""


def test_the_example_passes(pytester: pytest.Pytester) -> None:
    shutil.copy(EXAMPLE, pytester.path)
    pytester.runpytest_subprocess(EXAMPLE.name).assert_outcomes(passed=2)


def test_what_goes_wrong_fails_the_test_with_the_report(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_wrong=WRONG)
    result = pytester.runpytest_subprocess("test_wrong.py")
    result.assert_outcomes(passed=2, failed=4)
    said = result.stdout.str()
    assert "raises: cxlemu torchrun ended with 1" in said and "KeyError: 'mine'" in said
    assert "sums: cxlemu torchrun ended with 3" in said and "fault 1 never happened" in said
    assert "nothing was compared" in said
    assert "tensor: results pass through JSON: Object of type Tensor is not JSON serializable" in " ".join(said.split())
    assert "again: pytest --cxl-seed" in said and "'test_wrong.py::test_raises'" in said
