"""What is measured of this machine, and the topology that it becomes."""

import json
import os
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from cxlemu import _measure, _native
from cxlemu.accelerator.fake import FakeDevice
from cxlemu.calibrate import cards as measured_cards
from cxlemu.calibrate import measure as calibrate
from cxlemu.calibrate.cards import MIXES, Loaded, MeasuredCard, MeasuredCards, move
from cxlemu.calibrate.certificate import NOTHING, certificate, page, visibility
from cxlemu.calibrate.device_copies import DeviceCopies, device_copies
from cxlemu.calibrate.measure import SMALL_BYTES, Bandwidth, Calibration
from cxlemu.calibrate.topology_file import on_cards, topology_file
from cxlemu.cli import doctor_calibrate
from cxlemu.cost import CostModel
from cxlemu.errors import ArgumentError, NothingJudgedError
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.pool import numa
from cxlemu.topology import Topology
from tests.helpers.commands import cxlemu
from tests.helpers.tables import with_rows

MEASURED = Calibration(
    cores=4,
    node=None,
    local_latency_ns=90.4,
    far_latency_ns=240.6,
    one_core=Bandwidth(12.0, 11.0, 7.25),
    one_core_far=Bandwidth(10.0, 9.0, 6.0),
    all_cores_far=Bandwidth(30.0, 20.0, 14.0),
    reduce_gbytes_per_s=8.125,
    flush_line_ns=5.6,
    invalidate_line_ns=5.4,
    fence_ns=2.4,
    ring_ns=117.0,
    round_trip_ns=701.2,
)


def parsed(measured: Calibration) -> Topology:
    return Topology.parse(topology_file(measured, capacity_bytes=1 << 32, load=0.25), "here.yaml")


def test_a_measured_machine_is_a_topology_whose_figures_all_have_a_standing() -> None:
    topology = parsed(MEASURED)
    assert topology.bare_figures() == []
    assert {standing.kind for standing in topology.provenance.values()} == {"source", "assumed"}
    assert all("load 0.2" in str(s) or s.kind == "assumed" for s in topology.provenance.values())
    assert topology.host_count == 4 and topology.card_count == 1
    assert topology.load_latency_ns(0, 0) == topology.cards[0].latency_ns == 241
    costs = topology.costs
    assert (costs.to_pool_gbytes_per_s, costs.from_pool_gbytes_per_s, costs.both_gbytes_per_s) == (6.0, 6.0, 6.0)
    assert (costs.flush_line_ns, costs.invalidate_line_ns, costs.fence_ns, costs.doorbell_ring_ns) == (6, 5, 2, 117)
    assert costs.doorbell_observe_ns == 110  # half of 701.2 is 350.6, of which a load takes 240.6
    assert (costs.local_copy_gbytes_per_s, costs.reduce_gbytes_per_s) == (7.25, 8.12)
    assert CostModel.of(topology, 4).hosts == (0, 1, 2, 3)


@with_rows(
    (30.0, 20.0, 14.0, (30.0, 20.0, 30.0)),  # copies move less than reads alone
    (30.0, 20.0, 18.0, (30.0, 20.0, 36.0)),
    (8.0, 7.0, 12.0, (12.0, 12.0, 24.0)),  # who copies 12 GB/s reads and writes as many
)
def test_a_cards_bandwidths_fit_together(read: float, write: float, copy: float, card: tuple[float, ...]) -> None:
    (cards,) = parsed(replace(MEASURED, all_cores_far=Bandwidth(read, write, copy))).cards
    assert (cards.read_gbytes_per_s, cards.write_gbytes_per_s, cards.total_gbytes_per_s) == card


def test_the_pool_is_bound_to_the_far_node() -> None:
    topology = parsed(replace(MEASURED, node=3))
    assert topology.pool_numa_node == 3
    assert parsed(MEASURED).pool_numa_node is None


DEVICE = DeviceCopies(
    device="NVIDIA Some",
    to_pool=55.0,
    from_pool=50.0,
    both=90.0,
    to_pinned=56.0,
    from_pinned=51.0,
    copy_ns=1200.4,
    event_ns=2000.0,
    local_copy=1500.0,
    reduce=2000.0,
)


def test_ranks_whose_arrays_live_on_a_device_have_its_copies_and_their_cores_lines() -> None:
    topology, costs = parsed(replace(MEASURED, device=DEVICE)), parsed(replace(MEASURED, device=DEVICE)).costs
    assert (costs.to_pool_gbytes_per_s, costs.from_pool_gbytes_per_s, costs.both_gbytes_per_s) == (55, 50, 90)
    assert (costs.copy_ns, costs.doorbell_ring_ns, costs.flush_line_ns, costs.fence_ns) == (1200, 2117, 6, 2)
    assert (costs.local_copy_gbytes_per_s, costs.reduce_gbytes_per_s) == (1500, 2000)
    (cards,), (link,) = topology.cards, topology.links  # neither is in the device's way
    assert cards.write_gbytes_per_s >= 55 and cards.read_gbytes_per_s >= 50 and link.gbytes_per_s >= 55
    assert topology.bare_figures() == [] and "NVIDIA Some" in topology.description
    assert CostModel.of(topology, 4).hosts == (0, 1, 2, 3)


@pytest.mark.parametrize(("both", "said"), [(30.0, 55.0), (300.0, 105.0)])
def test_both_directions_are_no_slower_than_one_and_no_faster_than_two(both: float, said: float) -> None:
    assert parsed(replace(MEASURED, device=replace(DEVICE, both=both))).costs.both_gbytes_per_s == said


class Watched(FakeDevice):
    """Notes which queue copies which way, and to or from where on the card."""

    def __init__(self) -> None:
        super().__init__(3)
        self.ways: dict[str, set[tuple[int, int]]] = {"publish": set(), "retrieve": set()}

    def publish(self, queue: Any, memory: Any, run: Any, *a: Any, **k: Any) -> None:
        self.ways["publish"].add((id(queue), run.card_offset))
        super().publish(queue, memory, run, *a, **k)

    def retrieve(self, queue: Any, memory: Any, run: Any, *a: Any) -> None:
        self.ways["retrieve"].add((id(queue), run.card_offset))
        super().retrieve(queue, memory, run, *a)


def test_a_devices_copies_are_measured_through_its_interface() -> None:
    pool, device = calibrate.memory(1 << 16, None), Watched()
    its = device_copies(device, pool)
    assert its.device == device.name and device.moves > 0
    assert min(figure for figure in astuple(its) if not isinstance(figure, str)) > 0
    assert (pool[: 1 << 15] != 1).all() and (pool[1 << 15 :] == 1).all()
    ((out, to),), ((back, source),) = device.ways["publish"], device.ways["retrieve"]
    assert out != back and (to, source) == (0, 1 << 15)  # two queues, which share no bytes


def test_what_cannot_be_measured_is_assumed_or_absent() -> None:
    topology = parsed(replace(MEASURED, cores=1, round_trip_ns=None, flush_line_ns=None, ring_ns=None))
    assert topology.costs.doorbell_observe_ns is None
    assert topology.costs.flush_line_ns == topology.costs.doorbell_ring_ns == 0
    assert topology.provenance["costs", "flush_line_ns"].kind == "assumed"


def test_the_farthest_node_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numa, "node_of", lambda pages: 0)
    for nodes, far in (([], None), ([0], None), ([0, 1], 1), ([0, 1, 2], 2)):
        monkeypatch.setattr(numa, "nodes_with_memory", lambda its=nodes: its)
        assert calibrate.far_node() == far


def test_a_chase_follows_the_lines() -> None:
    lines = np.zeros((6, LINE_BYTES // 8), np.uint64)
    lines[:, 0] = [3, 0, 1, 5, 4, 2]  # 0 3 5 2 1 0
    assert [_measure.chase(lines, 0, loads)[1] for loads in range(7)] == [0, 3, 5, 2, 1, 0, 3]
    lines[5, 0] = 6
    with pytest.raises(ValueError, match="not there"):
        _measure.chase(lines, 0, 3)
    with pytest.raises(ValueError, match="not there"):
        _measure.chase(lines, 6, 1)


def test_latency_is_measured_on_one_cycle_through_all_lines() -> None:
    pages = calibrate.memory(1 << 16, None)
    assert calibrate.load_latency_ns(pages) > 0
    lines, count = pages.view(np.uint64).reshape(-1, 8), (1 << 16) // LINE_BYTES
    seen = {_measure.chase(lines, 0, loads)[1] for loads in range(count)}
    assert seen == set(range(count))


def test_a_busy_machine_ends_the_round_trips_of_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def rounds(number: int) -> list[float]:
        """Let each rank make so many rounds; return how long rank 0 might wait in each."""
        left: list[list[float]] = [[], []]

        def ping_pong(lines: object, rank: int, first: int, trips: int, yields: bool, deadline_s: float) -> None:
            left[rank].append(deadline_s)
            if len(left[rank]) > number:
                raise TimeoutError

        monkeypatch.setattr(_measure, "ping_pong", ping_pong)
        assert 0 < calibrate.round_trip_ns() < 1e9
        return left[0]

    assert len(left := rounds(2)) == 3 and left == sorted(left, reverse=True)  # one deadline for all
    with pytest.raises(NothingJudgedError, match="measure again when this machine is less busy"):
        rounds(0)


def test_pushes_store_to_every_line() -> None:
    pages = calibrate.memory(1 << 12, None)
    pages.fill(9)
    assert _native.pushes_s(pages, False) >= 0 and (pages == 9).all()
    assert _native.pushes_s(pages, True) >= 0
    assert (pages.reshape(-1, LINE_BYTES)[:, 0] == 1).all() and (pages.reshape(-1, LINE_BYTES)[:, 1:] == 9).all()


@pytest.mark.deep
@pytest.mark.parametrize("device", [[], ["--accelerator", "fake"]])
def test_the_command_writes_what_other_commands_take(
    device: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_calibrate, "_array_bytes", lambda: calibrate.LEAST_BYTES)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # a busy machine's figures are not for later runs
    file = tmp_path / "here.yaml"
    result = cxlemu("doctor", "--calibrate", file, *device, code=0)
    assert "GB/s" in result.output and "NUMA node" in result.output
    assert bool(device) == ("nothing about a GPU" in " ".join(result.output.split()))
    assert bool(device) == ("fake device" in file.read_text())
    assert "none" not in cxlemu("topology", "check", file, code=0).output
    assert "measured" in cxlemu("simulate", "broadcast", "-c", file, "-b", "64K", "-n", "2", code=0).output


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    assert "--calibrate" in cxlemu("doctor", "--calibrate", tmp_path / "absent" / "here.yaml", code=2).stderr


def test_a_device_that_is_not_there_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    result = cxlemu("doctor", "--calibrate", tmp_path / "here.yaml", "--accelerator", "gpu0", code=2)
    assert "unknown device 'gpu0'" in str(result.stderr) + str(result.exception)
    assert not (tmp_path / "here.yaml").exists()


# --- cards, and their certificate -----------------------------------------------------------------------------------


def card(path: str, kind: str) -> MeasuredCard:
    return MeasuredCard(
        path=path,
        kind=kind,
        nbytes=1 << 37,
        latency_ns=400.4,
        one_core=Bandwidth(12.0, 8.0, 8.0),
        mixes={"reads": 22.0, "two reads to a write": 34.0, "a read to a write": 30.0, "writes": 20.0},
        loaded=(Loaded(1, 11.0, 450.0), Loaded(3, 21.0, 900.0)),
        flush_line_ns=30.0,
        invalidate_line_ns=20.0,
        fence_ns=3.0,
        ring_ns=500.0,
    )


def cards(*kinds: str) -> MeasuredCards:
    return MeasuredCards(tuple(card(f"/dev/dax{number}.0", kind) for number, kind in enumerate(kinds)), 42.0)


LITMUS = {
    "backend": "dax",
    "machines": 2,
    "cards": "2 of 128 GiB",
    "rows": [
        {
            "name": "handover",
            "verdict": "ok",
            "skipped": None,
            "rounds": 500,
            "expectations": [
                {"condition": "B.r == 1", "expected": "allowed", "observation": "always"},
                {"condition": "B.r == 2", "expected": "allowed", "observation": "never"},
                {"condition": "B.r == 0", "expected": "forbidden", "observation": "never"},
            ],
        },
        {"name": "torn", "verdict": "skipped", "skipped": "it has a crash", "rounds": 0, "expectations": []},
    ],
}


def test_cards_are_a_topology_with_their_own_figures() -> None:
    two = cards("device-DAX", "device-DAX")
    text = topology_file(on_cards(MEASURED, two), capacity_bytes=1 << 32, load=0.25, cards=two)
    topology = Topology.parse(text, "here.yaml")
    assert topology.card_count == 2 and topology.bare_figures() == []
    first = topology.cards[0]
    assert (first.read_gbytes_per_s, first.write_gbytes_per_s, first.total_gbytes_per_s) == (22.0, 20.0, 34.0)
    assert (first.capacity_bytes, topology.load_latency_ns(0, 1)) == (1 << 37, 400)
    costs = topology.costs
    assert (costs.flush_line_ns, costs.fence_ns, costs.doorbell_ring_ns) == (30, 3, 500)
    assert costs.to_pool_gbytes_per_s == 8.0
    assert "/dev/dax1.0" in text.decode() and "shared memory" not in text.decode()
    small = replace(two, cards=(two.cards[0], replace(two.cards[1], nbytes=1 << 24)))
    text = topology_file(on_cards(MEASURED, small), capacity_bytes=1 << 32, load=0.25, cards=small)
    assert Topology.parse(text, "here.yaml").card_bytes == 1 << 24


def test_a_certificate_of_devices_says_what_was_seen_and_what_was_not() -> None:
    document = certificate(MEASURED, cards("device-DAX"), LITMUS, load=0.25, virtual=False)
    assert document["device_measured"] and json.loads(json.dumps(document)) is not None
    assert document["cards"][0]["loaded"][1] == {"cores": 3, "gbytes_per_s": 21.0, "latency_ns": 900.0}
    assert document["visibility"]["never"] == ["handover: B.r == 2"]  # an allowed one: no more is known of it
    assert document["not_seen"][-1] == "allowed outcomes that never occurred: handover: B.r == 2"
    html = page(document)
    assert NOTHING not in html and "900 ns" in html and "no forbidden outcome" in html
    virtual = certificate(MEASURED, cards("device-DAX"), LITMUS, load=0.25, virtual=True)
    assert len(virtual["not_seen"]) == len(document["not_seen"]) + 1 and "virtual machine" in page(virtual)
    assert "<li>requests of other hosts to the same cards at the same time</li>" in html


@pytest.mark.parametrize("kinds", [(), ("file",), ("device-DAX", "file")])
def test_a_certificate_of_stand_ins_says_that_no_device_was_measured(kinds: tuple[str, ...]) -> None:
    document = certificate(MEASURED, cards(*kinds) if kinds else None, None, load=0.25, virtual=False)
    assert not document["device_measured"] and f'<p class="bad">{NOTHING}</p>' in page(document)
    assert any("shared memory" in text or "is a file, a stand-in" in text for text in document["not_seen"])
    assert any(text.startswith("visibility between ports") for text in document["not_seen"])


@with_rows(
    ({"backend": "shm"}, "the litmus tests ran on the backend shm, not on cards"),
    ({"machines": 1}, "the litmus tests ran on one machine, whose caches are coherent"),
)
def test_a_certificate_takes_coherent_caches_for_no_visibility(change: dict[str, object], said: str) -> None:
    document = certificate(MEASURED, cards("device-DAX"), LITMUS | change, load=0.25, virtual=False)
    assert document["not_seen"][-1] == f"visibility between ports: {said}"


def test_only_what_litmus_wrote_is_visibility() -> None:
    with pytest.raises(ArgumentError, match="--litmus takes what"):
        visibility({"rows": [{}]})


def calibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> Result:
    """The command on a machine and cards that were measured before."""
    monkeypatch.setattr(doctor_calibrate, "measure", lambda nbytes, on_step: MEASURED)
    monkeypatch.setattr(doctor_calibrate, "past_caches_bytes", lambda: None)
    return cxlemu("doctor", "--calibrate", tmp_path / "here.yaml", *map(str, arguments))


def test_files_are_measured_as_cards_and_are_no_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    region_bytes = 4 * len(os.sched_getaffinity(0)) * 3 * SMALL_BYTES
    monkeypatch.setattr(measured_cards, "REGION_BYTES_MAX", region_bytes)
    paths = [str(tmp_path / name) for name in ("a", "b")]
    devices = [word for path in paths for word in ("--device", path)]
    cxlemu("pool", "format", *devices, "--create-size", f"{max(32, 4 * len(os.sched_getaffinity(0)))}M", code=0)
    superblocks = [Path(path).read_bytes()[:4096] for path in paths]
    wanted = [word for name in ("c.html", "c.json") for word in ("--certificate", tmp_path / name)]
    done = calibrated(tmp_path, monkeypatch, *devices, *wanted)
    assert done.exit_code == 3 and NOTHING in done.stderr, done.output
    document = json.loads((tmp_path / "c.json").read_text())
    assert [(its["path"], its["kind"]) for its in document["cards"]] == [(path, "file") for path in paths]
    for its in document["cards"]:
        assert min(its["latency_ns"], its["flush_line_ns"], *its["mixes"].values(), *its["one_core"].values()) > 0
        assert max((each["cores"] for each in its["loaded"]), default=0) == len(os.sched_getaffinity(0)) - 1
    assert NOTHING in (tmp_path / "c.html").read_text()
    assert [Path(path).read_bytes()[:4096] for path in paths] == superblocks
    assert Topology.load(str(tmp_path / "here.yaml")).card_count == 2


@pytest.mark.parametrize(("verdict", "code"), [("ok", 0), ("violation", 1)])
def test_a_certificate_of_devices_ends_as_its_litmus_tests(
    verdict: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = LITMUS | {"rows": [LITMUS["rows"][0] | {"verdict": verdict}]}  # type: ignore[index]
    (tmp_path / "seen.json").write_text(json.dumps(seen))
    monkeypatch.setattr(doctor_calibrate, "launch", lambda *a, **k: [cards("device-DAX")])
    done = calibrated(
        tmp_path,
        monkeypatch,
        "--device",
        "/dev/dax0.0",
        "--certificate",
        tmp_path / "c.html",
        "--litmus",
        tmp_path / "seen.json",
    )
    assert done.exit_code == code, done.output
    assert ("forbidden outcomes: handover" in (tmp_path / "c.html").read_text()) == bool(code)


def test_a_certificate_of_shared_memory_is_exit_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = calibrated(tmp_path, monkeypatch, "--certificate", tmp_path / "c.json")
    assert done.exit_code == 3 and NOTHING in done.stderr
    assert json.loads((tmp_path / "c.json").read_text())["cards"] == []


@with_rows(
    (["--certificate", "c.txt"], "neither .html nor .json"),
    (["--device", "x", "--accelerator", "fake"], "leave out --accelerator"),
    (["--litmus", "x.json"], "--litmus goes with --certificate"),
)
def test_options_of_a_certificate_that_do_not_fit_are_refused(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = calibrated(tmp_path, monkeypatch, *arguments)
    assert done.exit_code == 2 and says in done.stderr + str(done.exception)
    cxlemu("doctor", *arguments, code=2)


@with_rows(
    ("reads", (1, 2, 4)), ("two reads to a write", (6, 2, 4)), ("a read to a write", (2, 2, 4)), ("writes", (8, 8, 8))
)
def test_a_mix_reads_and_writes_as_many_bytes_as_it_says(mix: str, left: tuple[int, ...]) -> None:
    group = np.repeat(np.array([1, 2, 4], np.float32), SMALL_BYTES // 4)
    own = np.full(SMALL_BYTES // 4, 8, np.float32)
    move([group.view(np.uint8)], mix, own.view(np.uint8))
    assert (group.reshape(3, -1) == np.array(left, np.float32)[:, None]).all()
    assert (own == (4 if mix == "reads" else 8)).all()
    reads, writes = MIXES[mix]
    changed = sum(a != b for a, b in zip((1, 2, 4), left, strict=True))
    assert (reads, writes) == {0: (3, 0), 3: (0, 3), 1: (2 if left[0] == 6 else 1, 1)}[changed]
