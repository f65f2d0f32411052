"""A kind of fault is one declaration: what is registered here at run time works everywhere that shipped kinds do."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from click.testing import CliRunner

from cxlemu.cli import main as cli
from cxlemu.errors import ArgumentError, ConfigError, IntegrityError, PeerLostError
from faults.campaign.case import CampaignCase
from faults.campaign.report import page
from faults.campaign.run import CampaignRunner
from faults.campaign.spec import Spec
from faults.inject import (
    FAULTS,
    Fault,
    FaultKind,
    Injection,
    InstructionPlace,
    Requirement,
    Scenario,
    ScenarioVerdict,
    Script,
    before,
)
from faults.inject import fault as fault_module
from faults.inject.fault import register, register_installed
from faults.inject.places import data
from faults.inject.sweep import everywhere, sweep
from faults.replay.replay import replay
from faults.token import parse
from tests.helpers.tables import with_rows
from tests.helpers.tiers import PATIENT_S


@before
def flip_everywhere(injection: Injection, number: int, fault: Fault, start: InstructionPlace) -> None:
    """A bit of every byte of the data that the instruction is about, in the pool."""
    for card, offset, nbytes in injection.spans(start, data)[:1]:
        injection.context.pool.cards[card][offset : offset + nbytes] ^= 1 << (fault.bit or 0)


def lower_bits(fault: Fault) -> Iterator[Fault]:
    if fault.bit:
        yield fault.model_copy(update={"bit": 0})


STRIPE = FaultKind(
    "flip_stripe",
    "a bit of every byte of the data that the instruction is about",
    Requirement.DETECT,
    flip_everywhere,
    (IntegrityError, PeerLostError),
    needs={"bit": 5},
    emulated=True,
    bits=8,
    simpler=lower_bits,
    tell=lambda fault: [f"bit {fault.bit} of every byte"],
)


@pytest.fixture
def kinds() -> Iterator[dict[str, FaultKind]]:
    """All kinds; what the test registers is gone after it."""
    before_it = dict(FAULTS)
    yield FAULTS
    FAULTS.clear()
    FAULTS.update(before_it)


def test_a_script_takes_it_and_holds_it_to_its_declaration(kinds: dict[str, FaultKind]) -> None:
    register(STRIPE)
    text = "faults:\n  - {kind: flip_stripe, rank: 1, when: {instruction: 1}, bit: %d}"
    script = Script.parse(text % 3)
    assert str(script.faults[0]) == "flip_stripe at rank 1, call 0, instruction 1, bit 3 of every byte"
    assert Script.parse(script.dump()) == script
    with pytest.raises(ConfigError, match="bit is 8 but should be below 8: flip_stripe has no more bits"):
        Script.parse(text % 8)
    with pytest.raises(ConfigError, match=r"card does not apply to flip_stripe, which takes bit"):
        Script.parse((text % 3).replace("bit: 3", "bit: 3, card: 0"))
    with pytest.raises(ConfigError, match="kind flip_stripe needs emulated memory"):
        script.check(ranks=2, backend="shm")


def test_a_sweep_puts_it_before_every_instruction_and_judges_what_it_owes(kinds: dict[str, FaultKind]) -> None:
    base = Scenario(collective="broadcast", variant="naive", ranks=2, nbytes=64)
    (row,) = sweep(list(everywhere(base, [register(STRIPE).name])), tell=lambda result: None)
    assert row.fault == "flip_stripe"
    assert row.verdicts[ScenarioVerdict.SILENTLY_WRONG] > 0  # it owes more than can be had without a checksum
    protected = base.model_copy(update={"integrity": "crc32c"})
    (row,) = sweep(list(everywhere(protected, ["flip_stripe"])), tell=lambda result: None)
    assert row.verdicts.keys() <= {ScenarioVerdict.SURVIVED, ScenarioVerdict.DETECTED}
    assert row.verdicts[ScenarioVerdict.DETECTED] > 0


def test_a_campaign_draws_it_shrinks_it_tells_it_and_replays_it(kinds: dict[str, FaultKind]) -> None:
    register(STRIPE)
    assert "flip_stripe" in Spec().kinds
    spec = Spec(
        collectives=("broadcast",), variants=("naive",), ranks=(3,), launches=("turns",), kinds=("flip_stripe",)
    )
    result = CampaignRunner(spec.sweep(8), lambda: ThreadPoolExecutor(1), 1, budget_s=PATIENT_S).run()
    (finding,) = result.findings
    assert finding.judgement.key == ("silently wrong", "flip_stripe", "broadcast naive")
    (drawn,), (small,) = finding.first.script.faults, finding.smallest.script.faults
    assert (drawn.bit, small.bit) == (5, 0)  # as campaigns give it; as it is simplest
    assert (finding.smallest.ranks, finding.smallest.nbytes) == (2, 1)
    html = page(result, "stripes")
    assert "bit 0 of every byte: a bit of every byte of the data" in html
    assert replay(parse(str(finding.token))).same
    del kinds["flip_stripe"]
    with pytest.raises(Exception, match="there is no such fault"):
        CampaignCase.parse(finding.smallest.plain())


def test_where_says_at_which_instruction_or_that_it_never_comes(kinds: dict[str, FaultKind]) -> None:
    never = FaultKind("never", "nothing", Requirement.SURVIVE, flip_everywhere, where=lambda injection, start: None)
    base = Scenario(collective="broadcast", variant="naive", ranks=2, nbytes=64)
    (row,) = sweep(list(everywhere(base, [register(never).name])), tell=lambda result: None)
    assert row.verdicts.total() == row.verdicts[ScenarioVerdict.NEVER] > 0


def test_a_sweep_takes_every_kind_with_what_it_needs() -> None:
    rows = sweep(
        list(everywhere(Scenario(collective="barrier", variant="line", ranks=2), list(FAULTS))), tell=lambda r: None
    )
    assert [row.fault for row in rows] == [kind for kind in FAULTS if kind != "flip_payload"]  # there is no data
    assert all(verdict.ok for row in rows for verdict in row.verdicts)


@with_rows(
    ({"name": "evict"}, "there is a kind of fault 'evict' already: give yours another name"),
    ({"name": "Flip It"}, "a kind of fault is a short lower-case word, such as lose_card, not 'Flip It'"),
    ({"may": ("depth",)}, "fault kind flip_stripe: a fault has no field 'depth'; it may have card, line"),
    ({"errors": ()}, "fault kind flip_stripe: name the errors by which survivors may detect it"),
)
def test_a_declaration_that_cannot_be_is_refused(
    change: dict[str, Any], sentence: str, kinds: dict[str, FaultKind]
) -> None:
    with pytest.raises(ArgumentError, match=sentence):
        register(replace(STRIPE, **change))
    assert "flip_stripe" not in kinds and kinds["evict"].what.startswith("lines leave")


def test_installed_packages_bring_kinds(kinds: dict[str, FaultKind], monkeypatch: pytest.MonkeyPatch) -> None:
    group = "cxlemu.fault_kinds"
    found = [
        EntryPoint("a", "tests.faults.test_fault_kinds:STRIPE", group),
        EntryPoint("b", "no.such.module:KIND", group),
    ]
    monkeypatch.setattr(fault_module, "entry_points", lambda *, group: {"cxlemu.fault_kinds": found}[group])
    with pytest.warns(UserWarning, match=r"the fault kind no\.such\.module:KIND cannot be used: ModuleNotFoundError"):
        register_installed()
    assert kinds["flip_stripe"].what == STRIPE.what


def test_the_table_of_a_sweep_fits_80_columns_with_all_its_words() -> None:
    done = CliRunner().invoke(cli, ["faults", "sweep", "barrier", "-n", "2", "--sample", "3"], env={"COLUMNS": "80"})
    head = done.output.splitlines()[:3]
    words = " ".join(head).split()
    assert {"collective", "variant", "fault", "runs", "survived", "detected", "error", "hung", "silently"} <= set(words)
    assert words.count("wrong") == 2 and max(map(len, head)) <= 80
