"""Fault scripts are data: they survive a round trip, and whatever is wrong with one is one sentence with its place."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cxlemu.errors import ConfigError
from cxlemu.memory import MemorySpec
from cxlemu.memory.rates import AdversaryRates
from faults.inject.fault import FAULTS, NUMBER_MAX, Fault, Requirement, When
from faults.inject.places import InstructionPlace, place
from faults.inject.script import NatureRates, Script
from tests.helpers.tables import with_rows

NUMBERS = st.integers(0, NUMBER_MAX)
VALUES = {
    "card": st.integers(0, 255),
    "line": NUMBERS,
    "lines": st.integers(1, NUMBER_MAX),
    "seconds": st.floats(1e-9, 3600),
    "gbytes_per_s": st.floats(1e-9, 10**6),
    "instructions": st.integers(1, NUMBER_MAX),
    "bit": st.integers(0, 63),
}
RATE = st.floats(0, 1)


@st.composite
def faults(draw: st.DrawFn) -> Fault:
    name = draw(st.sampled_from(sorted(FAULTS)))
    kind = FAULTS[name]
    fields = {field: draw(VALUES[field]) for field in kind.needs}
    for field in kind.may:
        below = field not in ("line", "lines") or {"line": "card", "lines": "line"}[field] in fields
        if below and draw(st.booleans()):
            fields[field] = draw(VALUES[field])
    return Fault(kind=name, rank=draw(st.integers(0, 65535)), when=When(call=draw(NUMBERS), instruction=0), **fields)


SCRIPTS = st.builds(
    Script,
    seed=st.integers(0, 10**18 - 1),
    adversary=st.none() | st.builds(NatureRates, evict=RATE, prefetch=RATE, land=RATE),
    faults=st.lists(faults(), max_size=5).map(tuple),
)


@given(SCRIPTS)
@settings(derandomize=True)
def test_a_script_survives_yaml_and_json(script: Script) -> None:
    assert Script.parse(script.dump()) == script
    assert Script.model_validate(json.loads(json.dumps(script.plain()))) == script


FAULT = "faults:\n  - {kind: %s, rank: 1, when: {instruction: 1}%s}"


@with_rows(
    ("- 1", "script:1: a fault script is a mapping, lines of `key: value`"),
    ("sed: 1", "script:1: sed is not a known key; did you mean seed?"),
    ("seed: -1", "script:1: seed is -1 but should be greater than or equal to 0"),
    (
        "seed: 1000000000000000000",
        "script:1: seed 1000000000000000000 is not a plain number of 18 digits at most; write 10 or 0.5",
    ),
    ("adversary:\n  evict: 2", "script:2: adversary.evict is 2 but should be less than or equal to 1"),
    ("faults: {}", "script:1: faults is {} but should be a valid list"),
    ("a: &a 1\nb: *a", "script:2: not plain YAML: aliases are not allowed"),
    ("seed: !!python/object:os.system 1", "script:1: not plain YAML: tags are not allowed"),
    (FAULT % ("poisn", ""), "script:2: faults[0].kind is 'poisn', but there is no such fault; did you mean poison?"),
    (FAULT % ("stall", ""), "script:2: faults[0].seconds is missing: stall needs it (duration)"),
    (
        FAULT % ("stall", ", seconds: -1"),
        "script:2: faults[0].seconds is -1 but should be greater than or equal to 0.000000001",
    ),
    (
        FAULT % ("stall", ", seconds: .inf"),
        "script:2: faults[0].seconds .inf is not a plain number of 18 digits at most; write 10 or 0.5",
    ),
    (
        FAULT % ("kill", ", card: 3"),
        "script:2: faults[0].card does not apply to kill, which takes nothing but a rank and when; leave it out",
    ),
    (FAULT % ("poison", ", line: 3"), "script:2: faults[0].card is missing: a line is the line of a card"),
    (
        FAULT % ("flip_doorbell", ", bit: 64"),
        "script:2: faults[0].bit is 64 but should be below 64: flip_doorbell has no more bits",
    ),
    (
        "faults: [" + "{kind: kill, rank: 0, when: {instruction: 0}}," * 64 + "]",
        "script:1: faults is a list of 64 but should have at most 63 items",
    ),
)
def test_a_defect_is_one_sentence_with_file_key_and_line(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Script.parse(text)
    told = str(refused.value)
    if "a list of 64" in sentence:
        assert told.startswith("script:1: faults is [{") and "at most 63 items" in told
    else:
        assert told == sentence


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: No such file or directory; give a fault script file"):
        Script.load(tmp_path / "none.yaml")
    (tmp_path / "some.yaml").write_text("seed: 7")
    assert Script.load(tmp_path / "some.yaml") == Script(seed=7)


def test_the_adversary_is_the_scripts() -> None:
    assert Script(seed=3).memory() == MemorySpec()
    rates = NatureRates(evict=0.5, prefetch=0, land=1)
    assert Script(seed=3, adversary=rates).memory() == MemorySpec(seed=3, rates=AdversaryRates(0.5, 0, 1))


def test_what_cannot_happen_there_is_refused() -> None:
    script = Script.parse(FAULT % ("poison", ""))
    script.check(ranks=2, backend="emulated")
    with pytest.raises(ConfigError, match=r"faults\[0\].rank is 1, but ranks are numbered 0 to 0"):
        script.check(ranks=1, backend="emulated")
    with pytest.raises(ConfigError, match=r"faults\[0\].kind poison needs emulated memory, not the backend 'shm'"):
        script.check(ranks=2, backend="shm")
    Script.parse(FAULT % ("kill", "")).check(ranks=2, backend="shm")


def test_what_may_be_detected_names_its_errors() -> None:
    for kind in FAULTS.values():
        assert kind.errors or kind.requirement is Requirement.SURVIVE


def test_instructions_are_numbered_through_the_streams() -> None:
    from collectives.algorithms.catalog import build, recipe
    from cxlemu.plan import Call, Layout

    layout = Layout(2, cards=2, slots=2, slot_card_bytes=1024, doorbells_per_rank=8, interleave_bytes=256)
    part = build(recipe("all_gather", "all"), layout, Call("all_gather", "all", 2, 128)).part(0)
    first, second = (len(stream.records) for stream in part.streams)
    places = [place(part, instruction) for instruction in range(first + second + 1)]
    assert places == [
        *(InstructionPlace(0, at) for at in range(first)),
        *(InstructionPlace(1, at) for at in range(second)),
        None,
    ]
