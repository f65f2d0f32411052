"""Places that a maintainer can use: lines of the program, not of its language's library."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from faults.programs.findings import ROLES, ProgramFinding
from faults.programs.positions import located
from faults.programs.result import RunChoice
from tests.helpers.pool_programs import SOURCES, kinds, on_x86, ran

pytestmark = on_x86


@pytest.mark.skipif(shutil.which("rustc") is None, reason="there is no rustc")
def test_what_rusts_library_accesses_is_at_the_line_that_calls_it(tmp_path: Path) -> None:
    source, its = SOURCES / "positions.rs", tmp_path / "positions"
    subprocess.run(["rustc", "-O", "-g", str(source), "-o", str(its)], check=True, timeout=240, capture_output=True)
    result = ran(f"{its} /dev/dax0.0 w : {its} /dev/dax0.0 r", RunChoice(None, 0))
    assert "not-flushed" in kinds(result)
    lines = source.read_text().splitlines()
    told = set()
    for raw in result.findings:
        finding = ProgramFinding.one(bytes(raw))
        sites = [finding.site(role) for role in ROLES if finding.site(role)]
        for place in located([result.places[site] for site in sites]):
            assert place is not None and place.at.file.endswith("positions.rs"), place
            assert all(caller.file.endswith("positions.rs") for caller in place.callers), place
            told.add(lines[place.at.line - 1].strip().split("(")[0])
    assert {"text.copy_from_slice", "flag.store", "while flag.load"} <= told
