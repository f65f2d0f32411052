"""Commands of cxlemu, run in this process, and Python in another one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tests.helpers.tiers import PATIENT_S

if TYPE_CHECKING:  # ranks import this module, and should do so fast
    from click.testing import Result


def cxlemu(
    *words: object, code: int | None = None, columns: int | None = None, stdin: str | None = None, **settings: Any
) -> Result:
    """Run a command; it exits with ``code``, if one is given."""
    from click.testing import CliRunner

    from cxlemu.cli import main

    if columns is not None:
        settings["env"] = {"COLUMNS": str(columns)}
    result = CliRunner().invoke(main, [str(word) for word in words], input=stdin, **settings)
    assert code is None or result.exit_code == code, result.output
    return result


def with_json(*words: object, code: int | None = None, **how: Any) -> tuple[Result, Any]:
    """Run a command, and read the document that its --json writes."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "said.json"
        return cxlemu(*words, "--json", file, code=code, **how), json.loads(file.read_text())


def python(
    *words: object, code: int | None = None, timeout_s: float = PATIENT_S, stdin: str | None = None, **how: Any
) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own; it exits with ``code``, if one is given."""
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s, **how)
    assert code is None or done.returncode == code, done.stdout + done.stderr
    return done
