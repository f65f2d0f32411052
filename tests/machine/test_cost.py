"""What fabrics cost: bills of materials, their sums and ratios, and what is wrong in them."""

from functools import partial
from pathlib import Path

import pytest

from cxlemu.errors import ConfigError
from cxlemu.topology import Item, Topology
from cxlemu.topology.bill import SUMS, power_watts, price_usd
from cxlemu.topology.shipped import shipped_configs
from tests.helpers.commands import cxlemu, with_json
from tests.helpers.tables import with_rows

TITAN = Topology.load("titan2-6xcz120")


cost = partial(cxlemu, "topology", "cost")


def test_sums_are_counts_times_prices() -> None:
    bill = tuple(
        Item(name=kind, kind=kind, count=count, price_usd=price, power_watts=price / 10)  # type: ignore[arg-type]
        for kind, count, price in (("switch", 1, 1000.0), ("adapter", 3, 100.0), ("cable", 4, 10.0), ("card", 2, 1.0))
    )
    assert [price_usd(bill, what) for what in ("switches", "without cards", "all")] == [1000, 1340, 1342]
    assert power_watts(bill) == pytest.approx(134.2)


def test_the_table_adds_up_and_says_how_each_price_came_about() -> None:
    done, document = with_json("topology", "cost", "titan2-6xcz120", code=0)
    (config,) = document["configs"]
    total = sum(item["count"]["value"] * item["price_usd"]["value"] for item in config["bill"])
    assert config["price_usd"]["all"] == total == price_usd(TITAN.bill or ())
    assert f"{total:,.0f}" in done.output
    assert done.output.count("assumed") >= 4
    assert all(("bill", index, "price_usd") in TITAN.provenance for index in range(len(TITAN.bill or ())))


def test_configurations_are_compared_with_the_last(tmp_path: Path) -> None:
    text = shipped_configs()["titan2-6xcz120"].read_text()
    (tmp_path / "dear.yaml").write_text(text.replace("value: 5800", "value: 58000").replace("titan2-6xcz120", "dear"))
    done = cost(str(tmp_path / "dear.yaml"), "titan2-6xcz120")
    assert "dear by titan2-6xcz120: switches 10.00 x the price, 1.00 x the power" in done.output


def test_a_topology_without_prices_is_refused(tmp_path: Path) -> None:
    assert "laptop has no bill" in cost("laptop", "--json", str(tmp_path / "x.json"), code=2).output
    assert list(tmp_path.iterdir()) == []


@with_rows(
    ("kind: switch", "kind: swich", "bill[0].kind is 'swich' but should be 'switch', 'adapter', 'cable' or 'card'"),
    ("{value: 5800", "{value: -1", "bill[0].price_usd is -1 but should be greater than or equal to 0"),
    ("    power_watts: {value: 150,", "    watts: {value: 150,", "bill[0].watts is not a known key"),
)
def test_a_wrong_bill_is_one_sentence(old: str, new: str, message: str) -> None:
    raw = shipped_configs()["titan2-6xcz120"].read_bytes().replace(old.encode(), new.encode())
    with pytest.raises(ConfigError) as caught:
        Topology.parse(raw, "dear.yaml")
    assert message in str(caught.value)


def test_the_docs_have_the_published_ratio_and_ours() -> None:
    text = " ".join((Path(__file__).parents[2] / "docs" / "modelled.md").read_text().split())
    bills = [Topology.load(name).bill or () for name in ("infiniband-3xh100", "titan2-6xcz120")]
    switches, without, all_ = (price_usd(bills[0], what) / price_usd(bills[1], what) for what in SUMS)
    assert f"the two switches alone give {switches:.2f}" in text
    assert (
        f"With adapters and cables the ratio is {without:.2f}, and with the cards, which are memory as well, {all_:.2f}"
        in text
    )
