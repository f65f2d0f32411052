"""Answers as intervals: ranges in files, what varies and how, and which figure moves an answer most."""

import json
from pathlib import Path
from typing import Any

import pytest

from cxlemu.errors import ConfigError
from cxlemu.topology import Accelerator, Topology
from cxlemu.topology.intervals import SAMPLES, Uncertain, changed, interval, intervals, uncertain, variations
from cxlemu.topology.shipped import shipped_configs
from tests.helpers.commands import cxlemu
from tests.helpers.fabric_helpers import fabric
from tests.helpers.tables import with_rows

COPY = Uncertain(("costs", "copy_ns"), "costs.copy_ns", 2000, 5000, 10000)
CALL = Uncertain(("costs", "call_ns"), "costs.call_ns", 90, 100, 110)
STATED = 'copy_ns: {value: 5000, assumed: "starting one asynchronous copy"'


def ranged(tmp_path: Path, words: str) -> Path:
    file = tmp_path / "mine.yaml"
    costs = f"costs: {{like: gpu, {STATED}{words}}}}}"
    file.write_text(shipped_configs()["titan2-6xcz120"].read_text().replace("costs: {like: gpu}", costs))
    return file


def test_a_range_is_what_the_file_states_else_follows_from_what_is_assumed(tmp_path: Path) -> None:
    topology = Topology.load(ranged(tmp_path, ", range: [2000, 10000]"))
    found = {its.name: its for its in uncertain(topology)}
    assert found["costs.copy_ns"] == COPY
    assert found["costs.call_ns"][2:5] == (10000, 20000, 40000)
    assert found["costs.local_copy_gbytes_per_s"][2:5] == (750, 1000, 1250)
    assert "costs.fence_ns" not in found  # 0, without a range
    assert found["links.host-x16.latency_ns"].value == 20 and found["cards.0.latency_ns"][2:5] == (100, 378, 470)
    assert "hosts.memory.latency_ns" not in found  # of a source
    assert {name for name in found if name.endswith(("_bytes", "_usd", "_watts"))} == {
        "links.host-x16.flit_bytes",
        "links.card-x8.flit_bytes",
    }  # whose file states a range
    assert topology.document()["costs"]["copy_ns"]["range"] == [2000, 10000]
    links = {its.name: its for its in uncertain(Topology.load("thousand-hosts"))}
    assert links["links.trunk.gbytes_per_s"][2:5] == (1512, 2016, 2520)


def test_a_figure_that_is_0_varies_where_its_file_has_a_range() -> None:
    found = {its.name: its for its in uncertain(Accelerator.load("h100-sxm"))}
    assert found["held_by_copies"][2:5] == (0, 0, 1)
    assert [found["held_by_copies"].at(share) for share in (0, 0.5, 0.75, 1)] == [0, 0, 0.5, 1]


def test_what_is_fitted_stays() -> None:
    topology = Topology.load("infiniband-3xh100-cccl")
    fitted = {key for key, its in topology.provenance.items() if its.kind == "fitted"}
    assert fitted and not fitted & {its.key for its in uncertain(topology)}


@with_rows("[1, 2, 3]", "7", "[6000, 7000]", "[1000, 4000]", "[x, y]", "[-1, 6000]", "[1, true]")
def test_a_range_that_does_not_hold_its_value_is_refused(words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mine\.yaml:\d+: costs\.copy_ns\.range is "):
        Topology.load(ranged(tmp_path, f", range: {words}"))


def test_a_share_is_1_at_most() -> None:
    found = {its.name: its for its in uncertain(Accelerator.load("a100-sxm"))}
    assert found["memory_efficiency"].high == 1.0 and found["half_rate_tile"].low == 60


def test_runs_are_the_middle_each_end_alone_and_a_latin_hypercube() -> None:
    samples = 40
    first, *others = variations([COPY, CALL], samples)
    assert first == {}
    assert others[:4] == [{COPY.key: 2000}, {COPY.key: 10000}, {CALL.key: 90}, {CALL.key: 110}]
    joint = others[4:]
    for figure in (COPY, CALL):
        every_part = sorted(figure.at((number + 0.5) / samples) for number in range(samples))
        assert sorted(run[figure.key] for run in joint) == every_part
        assert sum(run[figure.key] < figure.value for run in joint) == samples / 2
    assert variations([COPY, CALL], samples) == [first, *others]
    assert variations([], samples) == [{}]


def test_an_interval_reaches_as_far_as_any_run_and_names_what_moves_it() -> None:
    figures = [COPY, CALL]
    runs = variations(figures)
    answers = [run.get(COPY.key, 5000) + 10.0 * run.get(CALL.key, 100) for run in runs]
    found = interval(figures, answers, runs)
    assert found.middle == 6000 and (found.low, found.high) == (min(answers), max(answers))
    assert (found.alone, found.alone_low, found.alone_high) == ("costs.copy_ns", 3000, 11000)
    assert found.jointly == "costs.copy_ns" and found.correlation > 0.95
    assert 2900 < found.low <= 3000 and 11000 <= found.high < 11100
    assert found.holds(11000, 12000) and found.holds(0, 3000) and not found.holds(11200, 12000)
    falling = interval(figures, [-its for its in answers], runs)
    assert (falling.low, falling.correlation) == (-found.high, pytest.approx(-found.correlation))


def test_what_moves_an_answer_only_with_another_is_found_jointly() -> None:
    """A product with 0 in the middle: no figure moves it alone."""
    figures = [CALL, CALL._replace(key=("costs", "copy_ns"), name="costs.copy_ns")]
    runs = variations(figures)
    answers = [(run.get(CALL.key, 100) - 100) * (run.get(("costs", "copy_ns"), 100) - 100) for run in runs]
    found = interval(figures, answers, runs)
    assert found.alone_low == found.alone_high == 0 and found.low < 0 < found.high
    assert "alone" in found.describe("us") and found.jointly


def test_an_answer_that_nothing_moves_says_so() -> None:
    runs = [{"time": 7.0}] * len(variations([COPY], 10))
    found = intervals([COPY], runs)["time"]
    assert found[:3] == (7, 7, 7) and found.describe("us") == "7.0 us, moved by nothing"


def test_figures_of_several_machines_are_changed_at_once() -> None:
    machines = Topology.load("titan2-6xcz120"), Topology.load("infiniband-3xh100")
    figures = {its.name: its for its in uncertain(machines)}
    card, nic = figures["titan2-6xcz120: cards.0.latency_ns"], figures["infiniband-3xh100: links.nic.latency_ns"]
    pool, network = changed(machines, {card.key: card.low, nic.key: 250.4})
    assert (pool.cards[0].latency_ns, network.links[0].latency_ns) == (100, 250)
    assert pool.costs == machines[0].costs and machines[0].cards[0].latency_ns == 378


def test_a_figure_that_machines_take_from_one_entry_varies_in_all_of_them_at_once() -> None:
    ours = Topology.load("titan2-6xcz120")
    theirs = ours.model_copy(update={"name": "other"})
    figures = uncertain((ours, theirs))
    assert len(figures) == len(uncertain(ours))
    assert {its.name.partition(": ")[0] for its in figures} == {"titan2-6xcz120 and other"}
    for run in variations(figures, 4):
        one, other = changed((ours, theirs), run)
        assert one == other.model_copy(update={"name": one.name})
    slower = changed(theirs, {("costs", "call_ns"): 30000})
    apart = {its.name for its in uncertain((ours, slower))} - {its.name for its in figures}
    assert apart == {"titan2-6xcz120: costs.call_ns", "other: costs.call_ns"}


@pytest.fixture
def few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of them at once."""
    monkeypatch.setattr(variations, "__defaults__", (SAMPLES // 10,))


@pytest.mark.usefixtures("few_runs")
def test_fabrics_of_one_name_that_differ_in_one_rate_are_told_by_their_files(tmp_path: Path) -> None:
    text = shipped_configs()["laptop"].read_text()
    link = "  - {name: bus, ends: [hosts, cards], gbytes_per_s: RATE, latency_ns: 20}\n"
    files = tmp_path / "one.yaml", tmp_path / "two.yaml"
    for file, rate in zip(files, "24", strict=True):
        bus = link.replace("RATE", rate)
        file.write_text(text[: text.index("switches:")] + "links:\n" + bus + text[text.index("spaces:") :])
    one, two = files
    said = simulate("-c", "laptop", "-n", "2", "--against", str(one), "--against", str(two), "--intervals").output
    said = " ".join(said.replace("#", "").split())
    assert f"These fabrics differ in: links.bus.gbytes_per_s: 2 in {one}; 4 in {two} 1 result" in said
    assert f"{one} within ranges: " in said and f"{two} within ranges: " in said
    assert "links[0].gbytes_per_s" in cxlemu("topology", "check", str(one)).output


def simulate(*arguments: str) -> Any:
    return cxlemu("simulate", "all_gather", "-b", "64M", *arguments)


@pytest.mark.usefixtures("few_runs")
def test_simulate_shows_the_interval_of_a_time_and_of_a_ratio(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    arguments = ("-c", "titan2-6xcz120", "--intervals", "--against", "infiniband-3xh100", "--json", str(file))
    done = simulate(*arguments)
    assert done.exit_code == 0, done.output
    document = json.loads(file.read_text())
    (found,), (row,), (other,) = document["intervals"], document["rows"], document["against"][0]["rows"]
    its, ratio = found["time_us"], found["infiniband-3xh100"]
    assert its["low"] < its["middle"] == row["time_us"] < its["high"]
    assert ratio["low"] < ratio["middle"] == other["time_us"] / row["time_us"] < 1 < ratio["high"]
    assert ratio["alone"] == "infiniband-3xh100: spaces.inboxes.protocols.simple.costs.from_pool_gbytes_per_s"
    said = " ".join(done.output.replace("#", "").split())
    assert f"within ranges: {its['low']:.1f} to {its['high']:.1f} us, moved most by {its['alone']} (" in said
    assert "either may be faster within the ranges" in said


@pytest.mark.deep
def test_intervals_come_again() -> None:
    first, again = (simulate("-c", "titan2-6xcz120", "--intervals").output for _ in range(2))
    assert "within ranges: " in first and again == first


def test_a_topology_without_ranges_has_no_intervals(tmp_path: Path) -> None:
    file = tmp_path / "sure.yaml"
    bare = fabric(hosts=2, cards=2)
    file.write_text(json.dumps(bare.document()))
    done = simulate("-c", str(file), "--intervals")
    assert done.exit_code == 2 and "--intervals: no figure of " in done.output and "range: [18, 22]" in done.output
