"""Libraries that train, on two ranks over the pool and over Gloo; each is skipped where it is not installed."""

import importlib
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install cxlemu[torch]")
libraries: Any = importlib.import_module("tests.collectives.torch.libraries")


@pytest.mark.deep
@pytest.mark.parametrize("name", libraries.LIBRARIES)
def test_a_librarys_losses_are_gloos(name: str) -> None:
    if not libraries.installed(name):
        pytest.skip(f"{libraries.LIBRARIES[name][0]} is not installed")
    losses, apart = libraries.beside_gloo(name)
    assert apart == 0 and len(set(losses[0])) == libraries.STEPS
