"""Libraries that train, on two ranks over the pool and over Gloo; each is skipped where it is not installed."""

import importlib
import importlib.util
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed: pip install cxlemu[torch]"
)
NAMES = ["accelerate", "transformers", "lightning", "fabric", "torchtitan", "torchft", "deepspeed-2", "deepspeed-3"]


@pytest.mark.deep
@pytest.mark.parametrize("name", NAMES)
def test_a_librarys_losses_are_gloos(name: str) -> None:
    libraries: Any = importlib.import_module("tests.collectives.torch.libraries")  # which imports torch
    assert [*libraries.LIBRARIES] == NAMES
    if not libraries.installed(name):
        pytest.skip(f"{libraries.LIBRARIES[name][0]} is not installed")
    losses, apart = libraries.beside_gloo(name)
    assert apart == 0 and len(set(losses[0])) == libraries.STEPS
