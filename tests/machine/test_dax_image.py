"""Real cards on hosts whose caches show what is missing: everything that runs on DAX is right there, too.

The host is that of tests/helpers/native/lines_image.c: what is not flushed stays away from the card, and what is not
invalidated stays old. Every mistake in the C that synchronizes real cards turns the probe red.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.helpers.card_files import blank_cards, device_flags
from tests.helpers.dax_mutants import MUTANTS
from tests.helpers.native_build import ImageBuild

pytestmark = [pytest.mark.deep, pytest.mark.skipif(shutil.which("gcc") is None, reason="compiles with gcc")]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> ImageBuild:
    return ImageBuild(tmp_path_factory.mktemp("image"))


def python(image: ImageBuild, *arguments: str) -> subprocess.CompletedProcess[str]:
    """In the copy, and with nothing of the checkout on its path."""
    command = [sys.executable, "-P", *arguments]
    environment = os.environ | {"PYTHONPATH": str(image.where)}
    return subprocess.run(command, cwd=image.where, env=environment, capture_output=True, text=True, timeout=900)


def probed(image: ImageBuild, cards: Path) -> subprocess.CompletedProcess[str]:
    return python(image, "-m", "tests.helpers.dax_probe", str(cards))


SUITES: dict[str, Sequence[str]] = {
    "pools": ("tests/machine/test_dax.py", "tests/machine/test_dax_reuse.py", "tests/machine/test_superblock.py"),
    "session": ("tests/machine/test_session.py",),
    "memories": ("tests/machine/test_memory_conformance.py", "--deep", "-k", "dax"),
    "restart": ("tests/collectives/test_restart.py", "--deep", "-k", "dax"),
    "shrink": ("tests/collectives/test_shrink.py", "--deep", "-k", "root"),
    "capacity": (
        *("tests/collectives/test_tenants.py", "--deep", "-k"),
        "capacity_from or force_says or which_pool or formatting_again or launchers_ranks",
    ),
    "heap": ("tests/collectives/test_zero_copy_on_dax.py",),
    "protocols": ("tests/faults/test_protocols.py", "-k", "dax"),
}


@pytest.mark.parametrize("suite", SUITES)
def test_what_runs_on_dax_is_right_where_caches_hide_nothing(image: ImageBuild, suite: str) -> None:
    result = python(image, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *SUITES[suite])
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-1000:]


def test_calls_execute_what_their_records_ask_for(image: ImageBuild, tmp_path: Path) -> None:
    result = probed(image, tmp_path)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mistake_is_seen(image: ImageBuild, tmp_path: Path, name: str) -> None:
    file, is_there, instead = MUTANTS[name]
    image.broken(file, is_there, instead)
    try:
        result = probed(image, tmp_path)
    finally:
        image.mended()
    assert result.returncode == 1, result.stderr


# --- litmus tests as machine instructions: where caches hide nothing, a step that does not do its work shows ---------

# None with two ranks of one host, as each process has an image, nor with a flush that drops a line: an image keeps it.
LITMUS = ("MP", "MP-nt", "MP-noflush", "MP-nofence", "MP-noinv", "MP-payload", "SB", "WRC", "CoRR", "TURNS", "OWNLATER")
STEPS_MUTANTS = {
    "a store stores something else": (
        "STORE: atomic_store_explicit(word, (uint64_t)s->value",
        "STORE: atomic_store_explicit(word, 7",
    ),
    "a flush does nothing": ("case FLUSH_DROP: lines_flush(at, LINE_BYTES, 0); break;", "case FLUSH_DROP: break;"),
    "a fence does nothing": ("case FENCE_ALL: lines_fence(); break;", "case FENCE_ALL: break;"),
    "an invalidate does nothing": ("case DROP: lines_invalidate(at, LINE_BYTES); break;", "case DROP: break;"),
    "a non-temporal store is an ordinary one": ("lines_store_nt(at, (uint64_t)s->value)", "memcpy(at, &s->value, 8)"),
    "a wait is content with less": (
        "if (shown(word) >= value) return CAME;",
        "if (shown(word) + 1 >= value) return CAME;",
    ),
}


# What an image, from which everything arrives within a moment, shows too rarely.
BY_INSTRUCTIONS = {"a fence does nothing"}


def litmus(image: ImageBuild, cards: Path) -> subprocess.CompletedProcess[str]:
    devices = device_flags(blank_cards(cards, 2, nbytes=8 << 20))
    assert python(image, "-m", "cxlemu", "pool", "format", "--yes", *devices).returncode == 0
    tests = [f"tests/faults/litmus/{name}.yaml" for name in LITMUS]
    return python(image, "-m", "cxlemu", "litmus", *tests, "--backend", "dax", *devices, "--rounds", "300")


def each_step(image: ImageBuild, cards: Path) -> subprocess.CompletedProcess[str]:
    return python(image, "-m", "tests.helpers.straight_probe", str(cards / "card"))


def test_each_step_executes_its_instructions(image: ImageBuild, tmp_path: Path) -> None:
    result = each_step(image, tmp_path)
    assert result.returncode == 0, result.stderr


def test_litmus_tests_show_what_is_missing_and_nothing_else(image: ImageBuild, tmp_path: Path) -> None:
    result = litmus(image, tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    for weak in ("MP-noflush", "MP-noinv"):
        line = next(line for line in result.stdout.splitlines() if line.split()[1] == weak)
        assert "never B.r == 0" not in line, line  # as on a coherent machine


@pytest.mark.parametrize("name", STEPS_MUTANTS)
def test_a_step_that_does_not_do_its_work_is_seen(image: ImageBuild, tmp_path: Path, name: str) -> None:
    image.litmus.broken("straight.c", *STEPS_MUTANTS[name])
    try:
        result = each_step(image, tmp_path) if name in BY_INSTRUCTIONS else litmus(image, tmp_path)
    finally:
        image.litmus.mended()
    assert result.returncode == 1, result.stdout + result.stderr
    assert ("executes" in result.stderr) if name in BY_INSTRUCTIONS else ("violation" in result.stdout)
