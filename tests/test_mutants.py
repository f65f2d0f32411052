"""The list of mutants is in order; scripts/mutants, which CI runs, sees that each is red."""

import subprocess
from pathlib import Path

import pytest

from tests.helpers.commands import python
from tests.helpers.mutants import ROOT, Judge, Mutant, Ran, Verdict, listed, mistakes
from tests.helpers.tables import with_rows

SOURCE, TEST = "cxlemu/rounding.py", "tests/machine/test_units.py"


def mutants(*arguments: str) -> subprocess.CompletedProcess[str]:
    return python(ROOT / "scripts/mutants", *arguments)


def test_each_text_is_there_once_and_so_are_its_tests() -> None:
    assert mistakes(listed()) == []
    assert len(listed()) >= 120 and sum(one.file.endswith(".c") for one in listed()) >= 40


@with_rows(
    (Mutant(SOURCE, "no such text", "", (TEST,)), f"{SOURCE} has this text 0 times, not once: 'no such text'"),
    (Mutant(SOURCE, "return", "", (TEST,)), "times, not once: 'return'"),
    (Mutant("cxlemu/none.py", "x", "", (TEST,)), "cxlemu/none.py has this text 0 times"),
    (Mutant("cxlemu/native/core.h", "x", "", (TEST,)), "core.h is a header: what includes it would not be built"),
    (Mutant(SOURCE, "def round_up", "def round_up", (TEST,)), "nothing else stands there"),
    (Mutant(SOURCE, "def round_up", "", (f"{TEST}::test_none",)), f"there is no test {TEST}::test_none"),
    (Mutant(SOURCE, "def round_up", "", ("tests/test_none.py",)), "there is no test tests/test_none.py"),
    ids=str,
)
def test_an_entry_that_means_nothing_is_a_sentence(one: Mutant, says: str) -> None:
    assert [text for text in mistakes([one]) if says in text]


def test_nothing_selected_is_no_success() -> None:
    done = mutants("-k", "there is no such text")
    assert (done.returncode, done.stdout) == (3, "") and "no mutant of share 1/1" in done.stderr
    assert mutants("-j", "0").returncode == 2
    assert mutants("--share", "4/3").returncode == 2


@pytest.mark.deep
def test_only_a_test_that_fails_makes_a_mutant_red(tmp_path: Path) -> None:
    rounding = (ROOT / SOURCE).read_text()
    some = [
        Mutant(SOURCE, rounding, rounding + "\n", (TEST,)),
        Mutant(SOURCE, rounding, "import nothing_at_all\n", ("tests/machine/test_rooms.py",)),
        *listed("test_a_sealed_hold_that_cannot_be_is_none")[:1],
    ]
    found: list[Verdict] = []

    def tell(_: Mutant, ran: Ran) -> None:
        found.append(ran.verdict)

    judge = Judge(tmp_path, some, 1)
    assert judge.unbroken().verdict is Verdict.SURVIVED
    judge.verdicts(tell)
    assert found == [Verdict.SURVIVED, Verdict.UNJUDGED, Verdict.RED]
