"""scripts/release: a version is one version everywhere, and has notes."""

import shutil
import subprocess
from pathlib import Path

from tests.helpers.commands import python

ROOT = Path(__file__).parents[1]
FILES = ("CHANGELOG.md", "CITATION.cff", "pyproject.toml", "cxlemu/version.py", "scripts/release")


def released(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return python(tree / "scripts/release", *arguments)


def test_a_version_is_the_same_everywhere_and_has_notes(tmp_path: Path) -> None:
    done = released(ROOT, "--notes")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("### Breaking\n") and (ROOT / "CHANGELOG.md").read_text().count("\n") <= 150
    for file in FILES:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    version = tmp_path / "cxlemu/version.py"
    version.write_text(version.read_text().replace('"0.', '"9.'))
    done = released(tmp_path, "--notes")
    assert done.returncode == 1 and "cxlemu/version.py has version 9." in done.stderr
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n")
    assert "begins with 'Unreleased'" in released(tmp_path, "--notes").stderr
