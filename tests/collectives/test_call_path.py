"""Where an array goes in a first call and in a repeated one, file by file, as docs/calls.md lists it."""

import json
import re
from pathlib import Path

from tests.helpers.commands import python

ROOT = Path(__file__).parents[2]
LISTED = re.compile(r"^\d+\. \[([^\]]+)\]\(\.\./([^)]+)\)", re.MULTILINE)
MOST = 29  # a new file on the way of a call is worth a thought: what would be one file less?


def listed(heading: str) -> list[str]:
    """The files of a numbered list in docs/calls.md, under a heading."""
    text = (ROOT / "docs/calls.md").read_text().split(f"\n### {heading}\n")[1].split("\n#")[0]
    found = LISTED.findall(text)
    assert all(shown.replace("\\_", "_") == target for shown, target in found), found
    return [target for _, target in found]


def test_a_call_goes_through_the_files_that_the_docs_list() -> None:
    done = python("-m", "tests.helpers.call_path", timeout_s=240, cwd=ROOT, code=0)
    found = json.loads(done.stdout)
    assert found["first"] == listed("Python, in order")
    assert len(found["first"]) <= MOST
    assert found["repeated"] == []


def test_the_files_in_c_are_there() -> None:
    names = listed("C, in order")
    assert names and all((ROOT / name).is_file() for name in names)
