"""Rounds that are made as columns are, byte for byte, those that the algorithm would have written one by one."""

from itertools import product

import pytest

from collectives.algorithms.catalog import build, recipe
from collectives.builder import alike
from cxlemu.plan import Call, Layout

ROWS = {
    "all_reduce": (("two_shot", "two_shot_staged"), 120_004),
    "all_gather": (("all", "naive"), 90_060),
    "reduce_scatter": (("all", "aggregate"), 90_060),
    "all_to_all": (("all",), 90_060),
    "broadcast": (("all",), 300_004),
}
WORLDS = [(2, 2), pytest.param((3, 4), marks=pytest.mark.deep), pytest.param((4, 2), marks=pytest.mark.deep)]


def told(collective: str, variant: str, ranks: int, slots: int, in_place: bool, nbytes: int = 0) -> list[object]:
    """Build a plan of some dozens of rounds, and return all that is in it."""
    layout = Layout(ranks, 6, slots, slot_card_bytes=2048, doorbells_per_rank=64, interleave_bytes=2048)
    redop = "avg" if collective in ("all_reduce", "reduce_scatter") else "none"
    call = Call(collective, variant, ranks, nbytes or ROWS[collective][1], "f32", redop, in_place=in_place)
    plan = build(recipe(collective, variant), layout, call)
    parts = [plan.part(rank) for rank in range(ranks)]
    streams = [[(stream.name, stream.records.tobytes()) for stream in part.streams] for part in parts]
    return [plan.frame, [(part.buffers, part.events) for part in parts], streams]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("collective", ROWS)
def test_rounds_in_columns_are_the_rounds_one_by_one(
    collective: str, world: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    repeat, repeated = alike.AlikeRounds.repeat, []

    def counted(self: alike.AlikeRounds, rounds: int) -> int:
        repeated.append(repeat(self, rounds))
        return repeated[-1]

    monkeypatch.setattr(alike.AlikeRounds, "repeat", counted)
    for variant, in_place in product(ROWS[collective][0], [False, True]):
        repeated.clear()
        found = told(collective, variant, *world, in_place)
        assert sum(repeated) >= alike.LEAST * world[0], variant
        with monkeypatch.context() as patched:
            patched.setattr(alike, "LEAST", 1 << 40)
            assert told(collective, variant, *world, in_place) == found, variant


def test_a_root_says_that_it_is_done_with_the_last_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """No round follows those in columns, and the root retrieves nothing in any."""
    found = told("broadcast", "all", 2, 2, False, 24 * 6 * 2048)
    monkeypatch.setattr(alike, "LEAST", 1 << 40)
    assert told("broadcast", "all", 2, 2, False, 24 * 6 * 2048) == found
