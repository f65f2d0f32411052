"""Litmus tests as programs in C, a process for each host and a thread for each rank.

No run has a forbidden outcome, and some run has each allowed one. A crash comes at some step of a run; only those are
judged whose host was at its ``crash`` then. Another host reads the pool at last, when everything posted has arrived.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from cxlemu.memory import AdversaryRates
from faults.litmus.language import Litmus, read
from faults.programs.commands import Command, parse_pools
from faults.programs.result import ExecSetting, RunChoice, RunEnding
from faults.programs.run import run
from tests.helpers.pool_programs import build

HERE = Path(__file__).parent
POOL = "/dev/shm/litmus"
OPERATIONS = {
    "store": "s",
    "store_nt": "n",
    "flush": "f",
    "flush_keep": "k",
    "fence": "x",
    "invalidate": "i",
    "load": "l",
    "signal": "g",
    "wait": "w",
    "record": "r",
    "await": "a",
    "crash": "c",
}
# Nature at ease, as one that evicts, as one that prefetches, as one that lands.
RATES = [AdversaryRates(*rates) for rates in ((0.3, 0.3, 0.3), (0.5, 0, 0.3), (0.02, 0.9, 0.02), (0.1, 0.5, 0.5))]
WORST_CASES = (0, 2, 3, 6, 10, 20)
TURNS_OF_ONE_OR_TWO = (0, 1, 10, 21)  # and 30 k more: these programs are too short for longer bursts
FORBIDDEN_SEEDS, SEEDS = 50, 800  # more of them only as long as an allowed outcome was not reached
LAST_CRASH = 48  # steps of a run, in which hosts have come to where they crash
# Allowed, and never reached by instructions that promise more than the model does: clflush is in order with stores and
# other clflushes, and mfence waits for all that its thread flushed or stored past the cache. Weaker ones reach it.
WEAKER = {
    "DOORBELLS": {"signal": "G"},
    "MP-invotherline": {"invalidate": "I"},
    "NT-invalidate": {"invalidate": "I"},
    "ONEHOST-nt": {},  # a load waits for what its thread has stored there past the cache: there is no weaker one
    "SB-nofence": {"invalidate": "I"},
}
FAST = {"MP", "MP-noflush", "FALSESHARE", "FENCESCOPE", "OBSERVED"}
NAMES = sorted(file.stem for file in (HERE / "litmus").glob("*.yaml"))


@pytest.fixture
def program() -> Path:
    return build("litmus.c")


class Programs(NamedTuple):
    """A litmus test as commands.

    Attributes:
        commands: One for each host, and behind them one that reads the pool at last, on a host of its own.
        printed: For each command, the names of the values that it prints, by their number.
        crashes: The host that crashes, or None.
    """

    commands: list[Command]
    printed: list[dict[int, str]]
    crashes: int | None


def programs_of(name: str, program: Path, operations: dict[str, str]) -> Programs:
    import yaml

    document = yaml.safe_load((HERE / "litmus" / f"{name}.yaml").read_text())
    places: dict[str, int] = {}
    for number, words in enumerate(document.get("lines", {}).values()):
        places |= {word: 2048 + number * 64 + 8 * k for k, word in enumerate(words)}
    events: dict[str, int] = {}
    commands, printed, crashes = [], [], None
    for host, (host_name, ranks) in enumerate(document["hosts"].items()):
        told, its = [str(program), POOL], {}
        for steps in [ranks] if isinstance(ranks, list) else ranks.values():
            told += ["/"] * (len(told) > 2)
            for step in steps:
                operation, *rest = step.split()
                known, apart = (events, 1) if operation in ("record", "await") else (places, 64)
                at = known.setdefault(rest[0], len(known) * apart) if rest else 0
                value = rest[1] if len(rest) > 1 and operation != "load" else "0"
                if operation == "load":
                    its[len(told)] = f"{host_name}.{rest[1]}"
                if operation == "crash":
                    crashes = host
                told.append(f"{operations[operation]}:{at}:{value}")
        commands.append(Command(tuple(told), host, 0))
        printed.append(its)
    told, its = [str(program), POOL, f"p:{next(iter(places.values()))}"], {}
    for word, at in [*places.items()] * 2:
        its[len(told) + 1] = word
        told += [f"i:{at}", f"l:{at}"]
    return Programs([*commands, Command(tuple(told), len(commands), 1)], [*printed, its], crashes)


def choices() -> Iterator[tuple[RunChoice, AdversaryRates]]:
    """The worst case, then seeds."""
    for schedule in WORST_CASES:
        yield RunChoice(None, schedule), RATES[0]
    for k in range(SEEDS):
        short = 30 * k + TURNS_OF_ONE_OR_TWO[k // 4 % 4]
        yield RunChoice(k, k if k % 4 == 3 else short), RATES[k // 2 % len(RATES)]


def outcomes(litmus: Litmus, program: Path, weaker: dict[str, str]) -> Iterator[dict[str, int] | None]:
    """Yield what each run leaves in registers and in the pool; None where it hangs, or a crash came too early."""
    programs = programs_of(litmus.name, program, OPERATIONS | weaker)
    setting = ExecSetting(programs.commands, parse_pools([POOL]), hosts=len(programs.commands), check=False)
    for number, (choice, rates) in enumerate(choices()):
        crash = None if programs.crashes is None else (programs.crashes, Random(number).randint(2, LAST_CRASH))
        result = run(replace(setting, rates=rates, crash=crash), choice)
        assert result.unannounced == 0
        if result.ending is not RunEnding.ENDED:
            assert result.ending is RunEnding.NO_PROGRESS and litmus.hangs
            yield None
            continue
        values: dict[str, int] = {}
        settled, crashed = True, programs.crashes is None
        for one in result.exits:
            for line in one.output.split():
                if line == "crashes":
                    crashed = True
                    continue
                place, _, value = line.partition("=")
                name = programs.printed[one.command][int(place)]
                settled &= values.get(name, int(value)) == int(value)  # the pool is read twice: lines may still leave
                values[name] = int(value)
        yield values if crashed and settled else None


def unreached(litmus: Litmus, program: Path, weaker: dict[str, str], least: int) -> set[str]:
    """Tell which allowed outcomes no run reaches: of at least so many that are judged, and of all if any is left."""
    missing = {one.condition.text for one in litmus.expectations if one.allowed}
    judged = 0
    for number, values in enumerate(outcomes(litmus, program, weaker)):
        if values is None:
            if number >= least and not litmus.expectations:
                break
            continue
        seen = [one for one in litmus.expectations if one.condition.holds(values)]
        assert all(one.allowed for one in seen), values
        missing -= {one.condition.text for one in seen}
        judged += 1
        if judged >= least + len(WORST_CASES) and (not missing or (litmus.name in WEAKER and not weaker)):
            break
    assert judged > least or not litmus.expectations
    return missing


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.deep(rows=lambda name: name not in FAST)
def test_no_program_sees_what_is_forbidden(program: Path, name: str) -> None:
    litmus = read(HERE / "litmus" / f"{name}.yaml")
    missing = unreached(litmus, program, {}, FORBIDDEN_SEEDS if name not in FAST else 3)
    if name in WEAKER:
        assert len(missing) == 1
        missing = unreached(litmus, program, WEAKER[name], 0) if WEAKER[name] else set()
    assert not missing


def test_the_cache_of_a_crashed_host_is_empty(program: Path) -> None:
    """What a host had not flushed is lost for its own next program as well, which finds it where there was no crash."""

    def found(*first: str, crash: tuple[int, int] | None) -> str:
        steps = [(first, 0), (("l:0",), 1)]
        commands = [Command((str(program), POOL, *words), 0, stage) for words, stage in steps]
        setting = ExecSetting(commands, parse_pools([POOL]), check=False, crash=crash)
        return run(setting, RunChoice(None, 0)).exits[1].output

    assert found("s:0:1", crash=None) == "2=1\n"
    assert found("s:0:1", "c:0", crash=(0, 20)) == "2=0\n"
