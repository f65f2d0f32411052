"""Schedules are data: what an order chose is recorded, goes through JSON, and replays to the same bytes."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.algorithms.catalog import build, recipe
from cxlemu.errors import ArgumentError
from cxlemu.memory import MemorySpec
from cxlemu.memory.adversary import Action
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Call, Layout, Op
from faults.lockstep.lockstep import Lockstep
from faults.lockstep.orders import in_random_nature, replay, round_robin
from faults.lockstep.schedule import LockstepMove, Nature, StreamStep, from_json, to_json
from tests.helpers.expected import expected, input_bytes
from tests.helpers.tables import with_rows
from tests.helpers.tiers import examples

LAYOUT = Layout(2, cards=2, slots=2, slot_card_bytes=512, doorbells_per_rank=8, interleave_bytes=256)
PLAN = build(recipe("all_gather", "all"), LAYOUT, Call("all_gather", "all", 2, 128))
LINES = [(card, line) for card in range(2) for line in range(LAYOUT.extent_bytes // LINE_BYTES)]
DATA_LINE = LAYOUT.slot_offset(1) // LINE_BYTES  # of the first call, whose epoch is 1, the first

numbers = st.integers(0, 2**31 - 1)
moves = st.builds(StreamStep, numbers, numbers) | st.builds(Nature, st.sampled_from(Action), numbers, numbers, numbers)


@given(st.lists(moves, max_size=20))
def test_a_schedule_goes_through_json(schedule: list[LockstepMove]) -> None:
    assert from_json(json.loads(json.dumps(to_json(schedule)))) == schedule


@with_rows(
    {},
    "step 0 0",
    [["step", 0]],
    [["step", 0, 0, 0]],
    [["step", 0, -1]],
    [["step", 0, True]],
    [["step", 0, 2**31]],
    [["step", 0, 0.0]],
    [["evikt", 0, 0, 0]],
    [["evict", 0, 0]],
    [[]],
    [None],
    [[["step"], 0, 0]],
)
def test_what_is_no_schedule_is_refused_in_one_sentence(wrong: Any) -> None:
    with pytest.raises(ArgumentError) as error:
        from_json(wrong)
    assert "\n" not in str(error.value) and len(str(error.value)) < 250


def inputs_of(seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, input_bytes(PLAN.call, rank), np.uint8) for rank in range(2)]


@examples(10)
@given(st.integers(0, 1000))
def test_what_an_order_and_nature_did_replays_move_by_move(seed: int) -> None:
    program = [(PLAN, inputs_of(call)) for call in range(3)]
    first = Lockstep(LAYOUT, order=in_random_nature(seed, [0, 1], LINES, rate=0.5))
    outputs = first.calls(program)
    assert all(
        np.array_equal(got, right)
        for (plan, given), call in zip(program, outputs, strict=True)
        for got, right in zip(call, expected(plan.call, given), strict=True)
    )
    assert sum(isinstance(move, StreamStep) for move in first.moves) == 3 * sum(
        part.instruction_count for part in PLAN.parts
    )
    again = Lockstep(LAYOUT, order=replay(from_json(to_json(first.moves))))
    again.calls(program)
    assert again.moves == first.moves
    assert again.steps == first.steps
    assert [card.tobytes() for card in again.cards] == [card.tobytes() for card in first.cards]


def test_steps_that_cannot_be_made_are_passed_over() -> None:
    world = Lockstep(LAYOUT, order=replay([StreamStep(0, 1)] * 50 + [StreamStep(7, 0), StreamStep(1, 0)]))
    world.call(PLAN, inputs_of(0))
    retrieve = PLAN.part(0).streams[1].instructions
    until_blocked = next(i for i, instruction in enumerate(retrieve) if instruction.op == Op.WAIT)
    assert world.moves[: until_blocked + 1] == [StreamStep(0, 1)] * until_blocked + [StreamStep(1, 0)]


def test_an_evicted_line_is_in_the_pool_before_anything_was_flushed() -> None:
    written = [i.op for i in PLAN.part(0).streams[0].instructions].index(Op.WRITE) + 1
    seen: list[bytes] = []
    nature: list[Nature]
    for nature in ([], [Nature(Action.EVICT, 0, 0, DATA_LINE)]):
        world = Lockstep(LAYOUT)
        moves: Iterator[LockstepMove] = iter([*[StreamStep(0, 0)] * written, *nature])

        def order(
            steps: Sequence[StreamStep], moves: Iterator[LockstepMove] = moves, world: Lockstep = world
        ) -> LockstepMove:
            if (move := next(moves, None)) is not None:
                return move
            at = world.base + DATA_LINE * LINE_BYTES
            seen.append(world.cards[0][at : at + LINE_BYTES].tobytes())
            world.order = round_robin()
            return world.order(steps)

        world.order = order
        world.call(PLAN, given := inputs_of(0))
    assert seen == [bytes(LINE_BYTES), given[0][:LINE_BYTES].tobytes()]


@pytest.mark.parametrize("move", [(2, 0, 0), (0, 2, 0), (0, 0, LAYOUT.extent_bytes // LINE_BYTES)])
def test_nature_has_no_power_over_what_is_not_there(move: tuple[int, int, int]) -> None:
    with pytest.raises(ArgumentError, match="no such line"):
        Lockstep(LAYOUT).disturb(Nature(Action.EVICT, *move))


def test_coherent_memory_has_no_cache_to_disturb() -> None:
    with pytest.raises(ArgumentError, match="no cache"):
        Lockstep(LAYOUT, memory=MemorySpec("shm")).disturb(Nature(Action.EVICT, 0, 0, 0))
