"""Numbers and names in environment variables: whatever a variable holds, one short sentence names it."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import collectives
from cxlemu import machine
from cxlemu.errors import InputError
from cxlemu.world.environment import LAUNCHERS, find_place
from tests.helpers.tiers import PATIENT_S

WRONG = {"5,000 digits": "1" * 5000, "letters": "x" * 5000, "negative": "-1", "Arabic": "\u0663", "grouped": "1_0"}


def of_process_groups(environment: Mapping[str, str]) -> Any:
    """The options of torch's process groups, also where torch is not installed."""
    file = Path(collectives.__file__).with_name("torch") / "options.py"
    spec = importlib.util.spec_from_file_location("options_without_torch", file)
    assert spec is not None and spec.loader is not None
    with pytest.MonkeyPatch.context() as patch:
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        return module.Options.from_environment(environment)


def past_caches(environment: Mapping[str, str]) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "environ", environment)
        machine.thresholds.cache_clear()
        return machine.thresholds()


READ: dict[str, tuple[Callable[[Mapping[str, str]], object], dict[str, str]]] = {
    machine.VARIABLE: (past_caches, {}),
    "CXLEMU_BACKEND": (of_process_groups, {}),
    "CXLEMU_SEED": (of_process_groups, {}),
    "CXLEMU_CARD_BYTES": (of_process_groups, {}),
    "CXLEMU_HEAP_BYTES": (of_process_groups, {}),
}
for its in LAUNCHERS:
    numbers = [variable for variable in (its.rank, its.size, its.local_size, its.machines) if variable]
    READ |= {variable: (find_place, dict.fromkeys(numbers, "1") | {its.rank: "0"}) for variable in numbers}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("variable", READ)
def test_what_a_variable_cannot_hold_is_one_short_sentence(variable: str, wrong: str) -> None:
    read, others = READ[variable]
    with pytest.raises(InputError, match=rf"^{re.escape(variable)} is ") as error:
        read(others | {variable: WRONG[wrong]})
    assert len(str(error.value)) < 200


def test_a_command_ends_with_that_sentence() -> None:
    command = [sys.executable, "-m", "cxlemu", "run", "all_reduce", "-n", "2", "-b", "1K", "-e", "1K"]
    environment = os.environ | {machine.VARIABLE: WRONG["5,000 digits"]}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENT_S)
    assert done.returncode == 2
    assert re.search(rf"^cxlemu: .*{machine.VARIABLE} is '1+ \.\.\., expected a whole number", done.stderr)
    assert "Traceback" not in done.stderr
