"""What was probably meant: verbs, collectives, variants and configs that nearly are one."""

import pytest

from cxlemu.suggest import meant
from tests.helpers.commands import cxlemu

NEAR = {
    "rnu": "there is no command 'rnu'; did you mean run?",
    "plan shwo": "there is no command 'shwo'; did you mean show?",
    "pool capacity ad": "did you mean add?",
    "reproduce ccl": "there is no command 'ccl'; did you mean cccl?",
    "faults sweeep": "did you mean sweep?",
    "run al_reduce": "; did you mean all_reduce",
    "run AllReduce": "; did you mean all_reduce? Choose",
    "run allreduce": "; did you mean all_reduce? Choose",
    "plan show broadcats": "; did you mean broadcast?",
    "plan show all_reduce --variant tow_shot": "has no variant 'tow_shot'; did you mean two_shot",
    "topology show titan": "a shipped topology; did you mean titan2-6xcz120? Choose from clusters-64x64, ",
    "simulate training --model llama": "; did you mean llama",
}


@pytest.mark.parametrize("words", NEAR)
def test_a_name_that_is_nearly_one_is_named(words: str) -> None:
    result = cxlemu(*words.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert NEAR[words] in " ".join(result.stderr.split())


@pytest.mark.parametrize("typed", ["zzz", "", "x", "e", "/" * 10**6])
def test_nothing_is_made_up(typed: str) -> None:
    assert meant(typed, ("run", "explore", "prove")) == ""


def test_a_verb_that_is_near_none_lists_them_all() -> None:
    assert "there are run, " in cxlemu("zzz").stderr


def test_commands_below_a_command_are_listed() -> None:
    for verb, names in {"simulate": ("memory", "trace", "training"), "reproduce": ("cccl", "flux")}.items():
        lines = cxlemu(verb, "--help").stdout
        assert all(f"\n  {name} " in lines for name in names)
