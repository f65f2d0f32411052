"""Programs that several files here run."""

from pathlib import Path

import pytest

from tests.helpers.pool_programs import build


@pytest.fixture(scope="session")
def litmus() -> Path:
    return build("litmus.c")
