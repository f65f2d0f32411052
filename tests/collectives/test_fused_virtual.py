"""Fused operators on modelled accelerators: the tuner, the file it keeps, and the command."""

import json
from functools import partial
from pathlib import Path

import pytest

from collectives.fused.choice import Operator, Tiling
from collectives.sweep.fused.tuned import TunedFile, modelled, this_one
from collectives.sweep.fused.tuner import tune
from collectives.sweep.fused.virtual import Simulator
from cxlemu.errors import ArgumentError
from cxlemu.topology import Topology
from tests.helpers import commands
from tests.helpers.tables import with_rows

OPERATOR = Operator("all_gather_gemm", 512, 8192, 4096)
CLUSTER = Topology.load("nvlink-8xa100")
HERE = modelled(CLUSTER)


cxlemu = partial(commands.cxlemu, columns=120)


@pytest.fixture(scope="module")
def simulator() -> Simulator:
    return Simulator(CLUSTER, 8)


def test_the_tuner_finds_the_best_of_what_it_tried() -> None:
    seen: dict[Tiling, int] = {}

    def measure(choice: Tiling) -> int:
        assert choice not in seen  # nothing twice
        assert choice.comm_tile_rows is not None and choice.compute_tile is not None
        rows, tile = choice.comm_tile_rows, choice.compute_tile
        seen[choice] = abs(rows - 32) + abs(tile[0] - 64) + abs(tile[1] - 128) + 100 * (choice.order != "natural")
        return seen[choice]

    found = tune(OPERATOR, 8, measure)
    assert found.tried == len(seen)
    assert found.fused_ns == min(seen.values()) == seen[found.choice] == 0
    assert found.choice == Tiling(32, (64, 128), "natural", found.choice.transport)


def test_what_cannot_win_is_not_measured(simulator: Simulator) -> None:
    operator = Operator("all_gather_gemm", 4096, 8192, 4096)

    def fused_ns(choice: Tiling) -> int:
        return simulator.fused_ns(operator, choice)

    everything = tune(operator, 8, fused_ns)
    pruned = tune(operator, 8, fused_ns, lambda choice: simulator.least_ns(operator, choice))
    assert pruned.fused_ns == everything.fused_ns
    assert pruned.tried < everything.tried


def test_tuning_is_never_worse_than_the_default(simulator: Simulator) -> None:
    for kind in ("all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce"):
        operator = Operator(kind, 512, 8192, 4096)
        default_ns = simulator.fused_ns(operator, Tiling())
        assert tune(operator, 8, lambda its, of=operator: simulator.fused_ns(of, its)).fused_ns <= default_ns


def test_a_file_says_nothing_of_another_machine(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    found = tune(OPERATOR, 8, lambda choice: 5)
    TunedFile(path, HERE, 8).put(OPERATOR, found)
    assert TunedFile(path, HERE, 8).get(OPERATOR) == found
    assert TunedFile(path, HERE, 4).get(OPERATOR) is None
    assert TunedFile(path, HERE, 8).get(Operator("all_gather_gemm", 513, 8192, 4096)) is None
    assert TunedFile(path, modelled(Topology.load("nvlink-8xa800")), 8).get(OPERATOR) is None
    slower = CLUSTER.model_copy(update={"accelerator": "a100-pcie"})
    assert TunedFile(path, modelled(slower), 8).get(OPERATOR) is None  # the same name, another chip
    run = {"pace": "none"}
    assert TunedFile(path, this_one(CLUSTER, run), 8).get(OPERATOR) is None  # modelled is not measured
    TunedFile(path, this_one(CLUSTER, run), 8).put(OPERATOR, found)
    assert TunedFile(path, this_one(CLUSTER, run), 8).get(OPERATOR) == found
    assert TunedFile(path, this_one(CLUSTER, {"pace": "2"}), 8).get(OPERATOR) is None  # nor run otherwise
    other = Operator("gemm_all_reduce", 512, 8192, 4096)
    TunedFile(path, HERE, 8).put(other, found)
    assert TunedFile(path, HERE, 8).get(OPERATOR) == found  # both are kept


@with_rows(
    ("[]", "the file: "),
    ("{", "the file: "),
    ('{"format": 2, "entries": []}', "format: "),
    ('{"format": 1, "entries": [{"machine": 1}]}', "entries.0.machine: "),
    ('{"format": 1, "entries": [], "more": 1}', "more: "),
)
def test_other_files_are_refused_in_a_sentence(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    path.write_text(text)
    with pytest.raises(ArgumentError, match=f"--tuned .*tuned.json: {says}.*; give a file that --tuned wrote"):
        TunedFile(path, HERE, 8)
    assert path.read_text() == text


def test_the_command_tunes_once_and_shows_what_it_chose(tmp_path: Path) -> None:
    tuned, out, trace = (tmp_path / name for name in ("tuned.json", "out.json", "trace.json"))
    arguments = ["fused", "all_gather_gemm", "--engine", "virtual", "-s", "512x8192x4096", "--tuned", str(tuned)]
    first = cxlemu(*arguments, "--json", str(out), "--trace", str(trace), code=0)
    assert "tried, kept in" in first.output
    again = cxlemu(*arguments)
    assert "tried, from" in again.output
    keeps = [line for line in first.output.splitlines() if "tiles   " not in line]
    assert keeps == [line for line in again.output.splitlines() if "tiles   " not in line]
    document = json.loads(out.read_text())
    metrics = document["metrics"]
    assert document["engine"] == "virtual" and document["ranks"] == 8
    assert metrics["ect_fused_us"] == pytest.approx(metrics["fused_us"] - metrics["gemm_us"])
    assert len(document["waits"]) >= 8 * 7 and {row["rank"] for row in document["waits"]} == set(range(8))
    mean_us = sum(row["us"] for row in document["waits"]) / len(document["waits"])
    assert mean_us == pytest.approx(metrics["wait_us"])
    slices = [row for row in json.loads(trace.read_text())["traceEvents"] if row["ph"] == "X"]
    assert any(row["name"].startswith("COMPUTE ") and "gemm_bf16" in row["name"] for row in slices)
    assert max(row["ts"] + row["dur"] for row in slices) == pytest.approx(metrics["fused_us"])


@with_rows(
    (["-c", "laptop"], "laptop has no accelerator: give it one"),
    (["--tune", "--tile", "64x64"], "--tile does not go with --tune, which chooses it"),
    (["-s", "100x8192x4096"], "m = 100 does not divide among 8 ranks"),
    (["--json", "/nonexistent/x.json"], "--json /nonexistent/x.json cannot be written"),
    (["--tuned", "/nonexistent/x.json"], "--tuned /nonexistent/x.json cannot be written"),
    (["-d", "f16", "-n", "9"], "has no memory in space peers"),
)
def test_bad_input_is_one_sentence(arguments: list[str], says: str) -> None:
    result = cxlemu("fused", "all_gather_gemm", "--engine", "virtual", *arguments, code=2)
    assert says in result.output
    assert "Traceback" not in result.output


def test_both_engines_have_their_own_help() -> None:
    assert "--pace" in cxlemu("fused", "--help").output
    virtual = cxlemu("fused", "--engine", "virtual", "--help").output
    assert "--tuned" in virtual and "--pace" not in virtual
