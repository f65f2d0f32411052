"""The backend cxl of torch.distributed, beside Gloo and in torch's own tests."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.tiers import PATIENT_S
from tests.helpers.torch_ranks import torch_ranks

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed: pip install cxlemu[torch]"
)
HERE = "tests.collectives.torch"
SMALL = {"CXLEMU_CARD_BYTES": "8MiB"}
ADVERSARY = {**SMALL, "CXLEMU_SEED": "7"}
SHM = {**SMALL, "CXLEMU_BACKEND": "shm"}


def died(results: list[Any]) -> str:
    return "\n".join(result["died"] for result in results if isinstance(result, dict) and "died" in result)


@pytest.mark.parametrize("which", ["few", pytest.param("all", marks=pytest.mark.deep)])
def test_results_have_gloos_bits_and_nothing_that_gloo_does_is_refused(which: str) -> None:
    found = torch_ranks(f"{HERE}.matrix:beside_gloo", which, ranks=2, **ADVERSARY)
    assert not died(found)
    for of_rank in found:
        assert of_rank["only gloo"] == []
        # Gloo adds bytes of bool tensors, and leaves twos in them.
        assert [row for row in of_rank["differ"] if "torch.bool SUM" not in row] == []
        assert of_rank["same"] > (280 if which == "few" else 1000)


@pytest.mark.parametrize(
    "memory", [ADVERSARY, pytest.param(SHM, marks=pytest.mark.deep)], ids=["emulated with adversary", "shm"]
)
@pytest.mark.parametrize(
    "program",
    [
        "ddp_beside_gloo",
        *(pytest.param(f"fsdp_beside_gloo {d}", marks=pytest.mark.deep) for d in ("float32", "bfloat16")),
    ],
)
def test_training_has_gloos_bits(program: str, memory: dict[str, str]) -> None:
    name, *arguments = program.split()
    assert torch_ranks(f"{HERE}.training:{name}", *arguments, ranks=2, **memory) == [True, True]


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    found = torch_ranks(f"{HERE}.mistakes:mistakes", ranks=2, **SMALL)
    assert not died(found)
    for of_rank in found:
        assert "float8_e4m3fn[4] can be sent, but not reduced" in of_rank["f8"]
        assert "float32[2] is on meta: send tensor.cpu()" in of_rank["device"]
        assert "float32[3] is not 2 times float32[2]" in of_rank["shape"]
        assert "SUM over" not in of_rank["mismatch"]
        assert "in call" in of_rank["mismatch"] and "all_reduce sum float32[" in of_rank["mismatch"]
        assert of_rank["after"] != ""
        assert of_rank["names"] == []


def test_torch_finds_the_backend_and_cxlemu_imports_no_torch() -> None:
    import_all = "import sys, cxlemu, collectives, faults, collectives.communicator.communicator; "
    done = subprocess.run(
        [sys.executable, "-c", import_all + "assert 'torch' not in sys.modules"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


# The others are in the deep tier.
FEW = ["test_all_reduce_min", "test_all_to_all_single_unequal_split", "test_all_gather_object_default_pg"]


def suite(*arguments: str, ranks: int, into: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", f"{HERE}.suite", "--ranks", str(ranks), "--json", str(into), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=6 * PATIENT_S)
    assert into.exists(), done.stdout[-3000:] + done.stderr[-3000:]
    rows: list[dict[str, Any]] = json.loads(into.read_text())["rows"]
    assert [row for row in rows if row["outcome"] == "fail"] == []
    return rows


def test_some_of_torchs_own_tests_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXLEMU_CARD_BYTES", "8MiB")
    assert {row["outcome"] for row in suite(*FEW, ranks=3, into=tmp_path / "rows.json")} == {"pass"}


SHARDS = 4


@pytest.mark.deep
@pytest.mark.parametrize("shard", range(SHARDS))
def test_torchs_own_tests_pass(shard: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some tests skip themselves: they are for other backends, or for other numbers of ranks."""
    monkeypatch.setenv("CXLEMU_CARD_BYTES", "8MiB")
    rows = suite("--shard", f"{shard}/{SHARDS}", ranks=4, into=tmp_path / "rows.json")
    assert sum(row["outcome"] == "pass" for row in rows) > len(rows) // 2
