"""Programs that start ranks as processes in ways that processes cannot follow are told in one sentence."""

import subprocess
from pathlib import Path

import pytest

from tests.helpers.commands import python

PROGRAM = """
from functools import partial
from cxlemu import launch

def main(context, more=0):
    return context.rank + more

{guard}print(launch(partial(main, more=1), ranks=2, topology="laptop", how="processes"))
"""


def run(*command: str | Path, given: str | None = None) -> subprocess.CompletedProcess[str]:
    return python(*command, timeout_s=300, stdin=given)


def test_a_program_without_a_guard(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.format(guard=""))
    done = run(tmp_path / "program.py")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("Traceback") == 1  # the user's own call; not each rank's
    sentence = done.stderr.strip().splitlines()[-1]
    assert sentence == (
        "cxlemu.errors.ArgumentError: each rank is a process that imports this program: put what starts ranks under "
        '`if __name__ == "__main__":`, or take how="threads"'
    )


def test_a_program_with_a_guard(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.format(guard='if __name__ == "__main__":\n    '))
    done = run(tmp_path / "program.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1, 2]\n", "")


@pytest.mark.deep(rows=lambda how: how == "-c")
@pytest.mark.parametrize("how", ["-", "-c"])
def test_a_function_that_no_file_has(how: str) -> None:
    program = PROGRAM.format(guard="")
    done = run("-", given=program) if how == "-" else run("-c", program)
    assert done.returncode == 1
    assert "main was defined in a notebook or at a prompt, which other processes cannot import" in done.stderr
