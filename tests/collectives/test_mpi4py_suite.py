"""mpi4py's own tests of messages and collectives, on our communicators: how many pass, and why others do not run."""

import os
from functools import partial
from pathlib import Path

import pytest

from cxlemu import launch
from tests.helpers.mpi4py_suite import suite
from tests.helpers.tiers import PATIENT_S

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cxlemu-tests"

# Tests of each module that pass, with two ranks and with three.
PASSED = {
    "test_cco_buf": 66,
    "test_cco_nb_buf": 66,
    "test_cco_pr_buf": 66,
    "test_cco_vec": 58,
    "test_cco_nb_vec": 58,
    "test_cco_pr_vec": 58,
    "test_cco_obj": 20,
    "test_msgzero": 8,
    "test_p2p_buf": 40,
    "test_p2p_buf_matched": 8,
    "test_p2p_obj": 60,
    "test_p2p_obj_matched": 8,
}


@pytest.fixture(scope="module")
def where() -> Path:
    found = suite.folder(CACHE)
    if isinstance(found, str):
        pytest.skip(f"no test-suite of mpi4py here: {found}")
    return found


@pytest.mark.deep
@pytest.mark.parametrize(
    ("module", "ranks"),
    [(each, 2) for each in suite.MODULES]
    + [(each, 3) for each in suite.MODULES if "_nb_" not in each and "_pr_" not in each],  # these differ in the waiting
)
def test_a_module_of_mpi4py_passes(module: str, ranks: int, where: Path) -> None:
    main = partial(suite.run, where=where, module=module, deadline_s=PATIENT_S)
    told = launch(main, ranks=ranks, topology="laptop", memory="shm", how="processes", deadline_s=PATIENT_S)
    for rank, found in enumerate(told):
        failed = {name: what for name, what in found.items() if what != "passed" and not what.startswith("skipped: ")}
        assert failed == {}, f"rank {rank}"
        skipped = {what.removeprefix("skipped: ") for what in found.values()} - {"passed"}
        assert skipped == set(suite.SKIPPED.get(module, {}).values())
        assert list(found.values()).count("passed") == PASSED[module]


@pytest.mark.deep
def test_each_module_of_mpi4py_runs_or_says_why_not(where: Path) -> None:
    assert {path.stem for path in where.glob("test_*.py")} == {*suite.MODULES, *suite.SKIPPED_MODULES}
    assert not suite.MODULES.keys() & suite.SKIPPED_MODULES.keys() and suite.MODULES.keys() == PASSED.keys()


def test_a_suite_that_cannot_be_had_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert str(suite.folder(tmp_path)).startswith(f"pip cannot download mpi4py {suite.VERSION}: ")
    assert list(tmp_path.iterdir()) == []
    (archive := tmp_path / "mpi4py.tar.gz").write_bytes(b"another file")
    with pytest.raises(AssertionError, match="has the checksum"):
        suite.unpack(archive, tmp_path / "mpi4py")
