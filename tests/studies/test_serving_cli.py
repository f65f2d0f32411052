"""``cxlemu simulate serving``: what it prints and writes, and what it says where nothing happened."""

import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result

from cxlemu.topology import Topology
from studies.cli.simulate_serving_plot import draw
from studies.training.language_model import LanguageModel
from tests.helpers.commands import cxlemu
from tests.helpers.tables import with_rows

ONE = '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n'


def invoked(line: str, **how: Any) -> Result:
    return cxlemu("simulate", "serving", *shlex.split(line), **how)


def words(done: Result) -> str:
    return re.sub(r"\s+", " ", done.output)


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_four_places_beside_each_other(tmp_path: Path) -> None:
    trace, file, plot = (tmp_path / name for name in ("requests.jsonl", "serving.json", "serving.png"))
    invoked(f"--hosts 4 --requests 200 --write-trace {trace} --json {file} --plot {plot} -v", code=0)
    document = read(file)
    runs = {run["place"]: run for run in document["runs"]}
    assert list(runs) == ["accelerator", "host", "pool", "rdma"]
    assert all(run["served"] == run["requests"] == 200 for run in runs.values())
    assert runs["accelerator"]["from_store_tokens"] == 0
    assert runs["accelerator"]["resources"] == []
    assert runs["pool"]["hit_rate"] > runs["accelerator"]["hit_rate"]
    assert runs["pool"]["first_token"]["p50_ns"] < runs["accelerator"]["first_token"]["p50_ns"]
    assert plot.read_bytes().startswith(b"\x89PNG")
    again = invoked(f"{trace} --hosts 4 --json -")
    assert json.loads(again.stdout) == document  # a trace that is written is the same requests


def test_a_picture_has_a_title_plain_numbers_and_lines_that_show_beside_each_other() -> None:
    pytest.importorskip("matplotlib")
    request = SimpleNamespace(arrival_ns=0, input_tokens=10)
    done = [SimpleNamespace(at_once_ns=its * 10**6, request=request, from_accelerator=0, from_store=5) for its in (60,)]
    moved = SimpleNamespace(carried=[])

    def outcome(place: str) -> Any:
        model = SimpleNamespace(model=LanguageModel.load("llama3-8b"))
        setup = SimpleNamespace(topology=Topology.load("six-cards"), iterations=model, place=place)
        return SimpleNamespace(done=done, run=SimpleNamespace(setup=setup, now_ns=10**9, movement=moved, happened=[]))

    figure = draw([outcome("pool"), outcome("rdma")])
    first = figure.axes[0]
    first.set_ylim(40, 90)
    figure.canvas.draw()
    assert "llama3-8b" in figure.get_suptitle()
    ticks = {label.get_text() for which in (True, False) for label in first.get_yticklabels(minor=which)}
    assert "60" in ticks and not any("10^" in text for text in ticks)
    assert len({(line.get_linestyle(), line.get_linewidth()) for line in first.lines}) == 2


def test_incidents_happen_or_are_said_not_to_have(tmp_path: Path) -> None:
    file = tmp_path / "serving.json"
    line = f"--hosts 2 --requests 60 --place pool --crash 0@1 --cold-start 0@2 --lose-card 3@3 --json {file}"
    invoked(line, code=0)
    (run,) = read(file)["runs"]
    assert run["happened"] == ["--crash 0@1", "--cold-start 0@2", "--lose-card 3@3"]
    assert run["served"] == 60
    assert run["restarts"] > 0
    late = invoked("--hosts 2 --requests 10 --place pool --crash 0@9999")
    assert (late.exit_code, "--crash 0@9999 never happened" in words(late)) == (3, True), late.output
    card = invoked("--hosts 2 --requests 10 --place rdma --lose-card 3@0.1")
    assert (card.exit_code, "--lose-card 3@0.1 never happened" in words(card)) == (3, True), card.output


def test_a_sweep_finds_from_how_many_hosts_on_the_fabric_is_saturated(tmp_path: Path) -> None:
    file = tmp_path / "sweep.json"
    line = "--workload documents --warm --place pool -c six-cards --rate 11 --requests 150"
    done = invoked(f"{line} --sweep hosts=7-8 --json {file}", code=0)
    assert re.search(r"pool: saturated from [78] hosts on, where card.* is busy 9\d%", words(done))
    assert [run["hosts"] for run in read(file)["runs"]] == [7, 8]
    short = invoked(f"{line} --sweep hosts=1-2")
    assert (short.exit_code, "not saturated up to 2 hosts" in words(short)) == (3, True), short.output


def test_prefill_and_decoding_apart() -> None:
    done = invoked("--hosts 3 --requests 40 --prefill 1 --place pool,rdma --json -", code=0)
    for run in json.loads(done.stdout)["runs"]:
        assert run["served"] == 40
        assert run["transfers_slowdown"] >= 1
    assert "transfers, times as long as alone" in done.stderr


def test_intervals_stand_below_the_table_and_in_the_document() -> None:
    done = invoked("--hosts 2 --requests 5 --place accelerator,pool --intervals --json -", code=0)
    said = re.sub(r"\s+", " ", done.stderr)
    for run in json.loads(done.stdout)["runs"]:
        first = run["intervals"]["time to first token, p50, ms"]
        assert first["low"] < first["middle"] < first["high"]
        assert first["middle"] == run["first_token"]["p50_ns"] / 1e6
        assert f"{run['place']}, time to first token, p50: {first['low']:.3g} to {first['high']:.3g} ms, moved" in said
        assert "output, tokens/s" in run["intervals"]


def test_groups_of_an_instance_share_experts() -> None:
    line = "--model llama4-maverick --accelerator b200 -c serving-2x8h800 --inside nvlink-8xh800 --requests 60"
    done = invoked(f"{line} --tp 2 --ep 4 --place rdma --rate 40 --crash 0@0.5 --cold-start 0@1 --json -", code=0)
    document = json.loads(done.stdout)
    assert (document["tensor"], document["expert"]) == (2, 4)
    (run,) = document["runs"]
    assert (run["served"], run["instances"]) == (60, 2)
    assert run["restarts"] > 0
    assert "2 of 8 x b200" in done.stderr


@with_rows(
    ("one.jsonl", 3, "Nothing was reused: no request begins with blocks of one before it"),
    ("two.jsonl --place pool --capacity 4G --batch 1", 3, "pool: nothing was read from the store"),
    ("two.jsonl --place accelerator", 0, ""),
    ("long.jsonl", 3, "Nothing was served"),
    ("empty.jsonl", 2, "has no requests"),
    ("bad.jsonl", 2, "bad.jsonl:2: input_length is missing"),
    ("nothing.jsonl", 2, "the trace cannot be read"),
    ("folder", 2, "not a regular file"),
    ("one.jsonl --rate 3", 2, "--rate only applies to generated requests"),
    ("one.jsonl --seed 3", 2, "--seed only applies to generated requests"),
    ("one.jsonl --workload chat", 2, "--workload only applies to generated requests"),
    ("--rate 1e-300", 2, "500 requests at 1e-300 a second take longer than 744 hours"),
    ("--inside nvlink-8xh800", 2, "--inside does nothing here"),
    ("--hosts 2 --crash 0@1 --crash 0@1.0", 2, "--crash 0@1 is given twice"),
    ("--place accelerator --warm", 2, "--warm does nothing without a store"),
    ("--place accelerator --capacity 1G", 2, "--capacity does nothing without a store"),
    ("--place nothing", 2, "unknown value 'nothing': choose from"),
    ("--place pool -c infiniband-3xh100", 2, "has no pool"),
    ("--place rdma -c six-cards", 2, "add cards with owner: hosts"),
    ("--place pool --capacity 1", 2, "does not hold one block"),
    ("--place pool --capacity 100T", 2, "is more than pool has"),
    ("--prefill 1 --place host --hosts 2", 2, "--place pool or rdma, not host"),
    ("--prefill 2 --place pool --hosts 2", 2, "leaves none of 2 instances"),
    ("--tp 2", 2, "needs --inside"),
    ("--ep 2 --inside nvlink-8xh800", 2, "ep=2 does nothing: llama3-8b has no experts"),
    ("--model llama4-maverick --accelerator b200 --ep 8 --inside nvlink-8xh800", 2, "tp=1 x ep=8 does not divide"),
    ("--tp 2 --inside nvlink-8xh800", 2, "a host of serving-16xh100, 1: give hosts a fitting ranks_per_host"),
    ("--model llama3-405b", 2, "give --tp"),
    ("--sweep hosts=2-1", 2, "should be hosts=FIRST-LAST"),
    ("--sweep hosts=1-2 --hosts 2", 2, "does not go with --sweep"),
    ("--sweep hosts=1-2 --intervals", 2, "--intervals does not go with --sweep"),
    ("-c racks-2x72 --hosts 3", 2, "made of fabrics"),
    ("--crash 99@1", 2, "has 16 hosts in all"),
    ("--lose-card 32@1", 2, "has 32 cards in all"),
    ("--crash 0", 2, "should be NUMBER@SECONDS"),
    ("--requests 300000", 2, "300000 requests at 80 a second: generate 1 to 200000"),
)
def test_what_cannot_be_done_is_said(
    line: str, code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = ONE.replace('"timestamp": 0', '"timestamp": 900')
    long = ONE.replace("600", "1000000").replace("[1, 2]", "[]")
    files = {"one": ONE, "two": ONE + again, "long": long, "empty": "\n", "bad": ONE + '{"timestamp": 1}\n'}
    for name, content in files.items():
        (tmp_path / f"{name}.jsonl").write_text(content)
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    done = invoked(line)
    assert (done.exit_code, said in words(done)) == (code, True), done.output


def test_measured_servers_stand_beside_the_model_as_the_page_says(tmp_path: Path) -> None:
    file = tmp_path / "serving.json"
    done = cxlemu("reproduce", "serving", "--json", file, code=0)
    rows = read(file)["rows"]
    assert len(rows) == 16
    assert all(row["address"] and row["conditions"] and row["kind"] == "predicted" for row in rows)
    page = (Path(__file__).parents[2] / "docs/serving.md").read_text()
    told = [int(percent) for percent in re.findall(r"([+-]\d+)%", page.partition("## Beside measured")[2])]
    assert sorted(told) == sorted(round(100 * row["relative_error"]) for row in rows[:-1])
    assert rows[-1]["ours"] == pytest.approx(1.02, abs=0.005)
    assert ("5 of 16 predicted figures within 15%" in done.output) and ("Five are within 15%" in page)
