"""`cxlemu reproduce validation`: requests by pencil and paper, the table, and the command."""

import os
import threading
from collections.abc import Mapping
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path

import pytest

from cxlemu.plan import Op
from cxlemu.topology import Topology
from cxlemu.topology.document import Key
from cxlemu.topology.intervals import Uncertain
from studies import cores, ranged
from studies.cli import reproduce_validation
from studies.ranged import Ranged
from studies.validation.measured import (
    FLUSHED_READ,
    FLUSHED_WRITE,
    GEMM,
    HOST_WRITE,
    KEPT,
    MIXED,
    OTHER_CARD,
    PORT_WRITE,
    PREDICTED_FIRST,
    SLOWER,
    SMALL,
)
from studies.validation.sparks import of_sparks
from studies.validation.streams import Requests, by_processors, gbytes_per_s, requests_ns
from studies.validation.study import DEPTHS, NETWORK, PARTS, PRODUCTS, RINGS, SWITCHED, Study, Validated, nccl_us
from tests.helpers.commands import cxlemu, with_json
from tests.helpers.fabric_helpers import LOAD_NS, fabric, ns

FABRIC = by_processors(fabric(hosts=2, cards=2, copy_ns=5000, to_pool_gbytes_per_s=1))


@lru_cache
def study() -> Study:
    return Study()


reproduce = partial(cxlemu, "reproduce", "validation")


def test_requests_follow_each_other_and_accelerators_cost_nothing() -> None:
    assert requests_ns(FABRIC, [Requests(1, 0, 4096, 3)]) == [ns(4096, 22.5) + LOAD_NS]
    written = Requests(0, 1, 4096, 3, Op.WRITE)
    assert requests_ns(FABRIC, [written]) == [ns(4096, 22.5)]
    assert gbytes_per_s(FABRIC, [written]) == 4096 / ns(4096, 22.5)


def test_processors_of_any_host_share_a_card_in_the_order_of_requests() -> None:
    each = ns(4096, 22.5)
    ask = Requests(0, 0, 4096, 1)
    assert requests_ns(FABRIC, [ask, ask._replace(host=1), ask]) == [
        each + LOAD_NS,
        3 * each + LOAD_NS,
        2 * each + LOAD_NS,
    ]
    assert requests_ns(FABRIC, [ask, ask._replace(card=1, host=1)]) == [each + LOAD_NS] * 2


def test_an_error_is_from_the_nearer_end() -> None:
    assert Validated(SLOWER, "", 6.9).relative_error == 0
    assert Validated(SLOWER, "", 13.8).relative_error == pytest.approx(1)
    assert Validated(SLOWER, "", 13.8).missed
    assert not Validated(SLOWER, "", 6.9 * 1.14).missed


def test_a_queue_of_more_requests_is_longer_and_the_port_is_full_from_eight_on() -> None:
    """One more 4 KiB read under way than fill the port is one more to wait for."""
    curve = study().curve
    assert [its.at_once for its in curve] == list(DEPTHS)
    assert all(a.slower < b.slower for a, b in pairwise(curve))
    assert curve[-1].slower - curve[-2].slower == pytest.approx(16 * ns(64 * 85, 31.5) / 661, rel=0.01)
    assert [its.at_once for its in curve if its.alone_gbytes_per_s > 22] == [8, 16, 32]


def test_a_buffer_before_a_link_that_is_faster_than_its_card_blocks_nothing() -> None:
    """The queue is before the port, so that the option cannot explain the row; its length can, by Little's law."""
    assert study().blocking == next(its for its in study().curve if its.at_once == study().blocking.at_once)
    assert study().queued_bytes / 4096 == pytest.approx(22.5, abs=0.1)


@lru_cache
def rows_of(config: str) -> list[Validated]:
    return study().rows_of(config)


@pytest.mark.deep(rows=lambda config: config in (RINGS, "products"))  # nine tenths of the time of all
@pytest.mark.parametrize("config", PARTS)
def test_the_page_has_the_models_figures(config: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / "validation.md").read_text()
    said = " ".join(text.split())
    for row in rows_of(config):
        its = row.measured
        assert its.source and its.date[:2] == "20" and its.low <= its.high
        assert row.why or not row.missed
        name = its.figure if its.unit == "x" else f"{its.figure}, {its.unit}"
        theirs = "-".join(f"{value:g}" for value in dict.fromkeys((its.low, its.high)))
        assert f"| {name} | {theirs} | {row.ours:.4g} |" in text
        assert f": {its.source} ({its.date})" in said


@pytest.mark.deep
def test_the_page_counts_the_models_figures() -> None:
    rows = study().rows
    assert len(rows) == 117 and len({row.measured.figure for row in rows}) == 117
    text = (Path(__file__).parents[2] / "docs" / "validation.md").read_text()
    said = " ".join(text.split())
    predicted = [row for row in rows if not row.measured.put_in]
    near = sum(not row.missed for row in predicted)
    assert f"{near} of {len(predicted)} predicted figures are within 15%" in said
    inside = [line.split(" | ")[3] for line in text.splitlines() if line.startswith("| ") and not line.endswith("* |")]
    assert f"and {inside.count('yes')} inside their intervals" in said
    assert inside.count("yes") + inside.count("no") == len(predicted)
    first = [row for row in predicted if (row.measured.source, row.measured.date) in PREDICTED_FIRST]
    assert f"{len(first)} rows" in said and f"{sum(not row.missed for row in first)} of them are within 15%" in said
    limits = " ".join((Path(__file__).parents[2] / "docs" / "limits.md").read_text().split())
    assert f"of {len(predicted)} [measurements of parts](validation.md) {len(predicted) - near}." in limits


def test_small_calls_of_sparks_are_of_its_adapters() -> None:
    """With half of the adapter's rate, and without LL128; by how much the lower end of what is measured is longer."""
    shipped = Topology.load(NETWORK)
    sparks = of_sparks(shipped)
    assert [link.gbytes_per_s for link in sparks.links] == [link.gbytes_per_s / 2 for link in shipped.links]
    rows = {row.measured.figure: row.ours for row in rows_of(NETWORK)}
    of_rows = {nbytes: rows[its.figure] for nbytes, its in SMALL.items()}
    for nbytes in (64, 8 << 10):
        assert of_rows[nbytes] == nccl_us("all_reduce", nbytes, sparks if nbytes > 64 else shipped)
    left = [its.low / of_rows[nbytes] for nbytes, its in SMALL.items() if nbytes > 64]
    page = " ".join((Path(__file__).parents[2] / "docs" / "validation.md").read_text().split())
    assert f"too fast by {min(left):.2f} to {max(left):.2f} times" in page


def test_a_processor_that_waits_reads_lines_first_and_flushes_slowly() -> None:
    its = study().processor
    other = its.varied(reads_at_once=1, lines_read_first=1.0, flush_line_ns=its.flush_line_ns + 10)
    usual, found = (
        {row.measured: row.ours for row in rows}
        for rows in (rows_of(SWITCHED), Study(processor=other).rows_of(SWITCHED))
    )
    for flushed in (FLUSHED_READ, FLUSHED_WRITE):
        assert found[flushed] - usual[flushed] == pytest.approx(256 * 10 / 1e3)
    assert found[SLOWER] == study().curve[0].slower < usual[SLOWER]
    # 17 of 102 B on the way to the pool are the request that reads the line
    assert found[HOST_WRITE] == pytest.approx(usual[HOST_WRITE] * 85 / 102, rel=0.01)
    assert found[PORT_WRITE] == usual[PORT_WRITE]


def test_conditions_that_nobody_states_change_their_own_rows() -> None:
    its = study().processor
    other = its.varied(small_reads_at_once=16, other_card_gbytes_per_s=25.6, matmul_ns=25_000)
    usual, found = (
        {row.measured: row.ours for part in (SWITCHED, PRODUCTS) for row in of.rows_of(part)}
        for of in (study(), Study(processor=other))
    )
    assert found[KEPT] < usual[KEPT]
    assert found[OTHER_CARD[1, 1]] == pytest.approx(25.6, rel=0.01) and found[MIXED] == usual[MIXED]
    assert found[GEMM[1024, 1024, 1024]] == 2 * 1024**3 / 25_000 / 1e3
    large = GEMM[8192, 8192, 8192]
    assert found[large] == usual[large]  # the next one is started while it runs


def test_the_command_prints_all_figures_and_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    some = Study()
    some.rows = [row for config in PARTS if config != RINGS for row in rows_of(config)]
    monkeypatch.setattr(reproduce_validation, "Study", lambda: some)
    done, document = with_json("reproduce", "validation", code=0)
    assert [row["measured"]["figure"] for row in document["rows"]] == [row.measured.figure for row in some.rows]
    assert "predicted figures within 15%" in done.output
    assert len(document["beside"]) == len(DEPTHS)


@pytest.mark.deep
def test_the_command_draws(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert reproduce("--plot", str(tmp_path)).exit_code == 0
    assert [file.name for file in tmp_path.iterdir()] == ["validation.png"]


def test_a_directory_that_cannot_be_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "cannot be made" in reproduce("--plot", str(tmp_path / "file" / "out"), code=2).output


def test_workers_compute_what_one_process_computes_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = [Uncertain((name,), name, 0.5, 1.0, 2.0) for name in ("one", "other")]
    here = os.getpid()

    def answers_of(factor: float) -> Ranged:
        def ours(run: Mapping[Key, float]) -> dict[str, float]:
            its = factor * run.get(("one",), 1.0) + run.get(("other",), 1.0)
            return {"figure": its, "elsewhere": float(os.getpid() != here)}

        return Ranged(figures, ours, 5)

    parts = [answers_of(1.0), answers_of(10.0)]
    monkeypatch.setattr(cores, "cores", lambda: 1)
    with ranged.computed(parts) as alone:
        expected = [answer["figure"] for answer in alone]
    monkeypatch.setattr(cores, "cores", lambda: 2)
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    with ranged.computed(parts) as together:
        answers = list(together)
    assert [answer["figure"] for answer in answers] == expected and len(expected) == sum(part.runs for part in parts)
    assert all(answer["elsewhere"] for answer in answers)
    with pytest.raises(KeyboardInterrupt), ranged.computed(parts):
        raise KeyboardInterrupt  # its workers end, or the test does not
