"""What C asks of its hooks, when, and with which arguments."""

from typing import Any

import numpy as np
import pytest

from cxlemu import _native
from cxlemu.engines.native import IDLE
from cxlemu.plan import Instruction, Kind, Op, Operand, encode
from tests.machine.test_native_untrusted import LAYOUT, arguments

RANKS = LAYOUT.ranks
COPY = Instruction(Op.COPY, dst=Operand(Kind.BUFFER, 1), a=Operand(Kind.BUFFER, 0), nbytes=8)
CALL = ("all_gather", "none", 0, "auto")


class Hooks:
    """As CallHooks: notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def slow_path(self, *call: Any) -> str:
        self.asked.append(call)
        return "planned"

    def resume(self, *stopped: Any) -> None:
        self.asked.append(stopped)

    def run_in_turn(self, operation: Any) -> Any:
        self.asked.append((operation,))
        return operation.run()


class Rank:
    """A sequencer with these hooks, and an operation that copies 8 bytes."""

    def __init__(self, *after: Instruction) -> None:
        self.hooks, self.pending = Hooks(), bytearray(1)
        self.sequencer = _native.Sequencer(RANKS, 1, 0, idle_ns=0, spins=0, pending=self.pending, hooks=self.hooks)
        self.cache = _native.DispatchCache(self.sequencer, bytearray(64), np.zeros(1, np.int64))
        self.x, self.out = np.arange(8, dtype=np.uint8), np.zeros(8, np.uint8)
        records = encode([COPY, *after])
        self.program = _native.Program(**arguments(streams=[records], buffer_bytes=[8, 8, 0], events=1))
        buffers = self.x, self.out, np.zeros(0, np.uint8)
        self.operation = _native.Operation(self.sequencer, self.program, 1, 5, "mine", self.out, *buffers)

    def call(self, x: Any) -> Any:
        collective, op, root, variant = CALL
        return self.cache(collective, x, self.out, op, root, variant, False)

    def remember(self, operation: _native.Operation) -> bool:
        collective, op, root, variant = CALL
        return self.cache.remember(operation, collective, self.x, self.out, op, root, variant)


def test_a_call_that_ends_at_once_asks_nothing() -> None:
    rank = Rank()
    assert rank.operation() is rank.out and rank.out.tolist() == rank.x.tolist()
    assert rank.hooks.asked == [] and rank.sequencer.calls == 1 and rank.sequencer.epoch == 2


def test_a_call_that_waits_is_resumed_with_all_that_is_known_of_it() -> None:
    rank = Rank(Instruction(Op.AWAIT, arg=0))
    assert rank.operation() is rank.out
    ((cookie, epoch, tag, stopped, status, obstacles),) = rank.hooks.asked
    assert (cookie, epoch, stopped, status) == ("mine", 1, rank.program, IDLE)
    assert tag == rank.sequencer.tag and obstacles == [(0, 1, -1, 0, 0)]


@pytest.mark.parametrize("closed", ["pending", "revoked"])
def test_a_closed_sequencer_asks_whose_turn_it_is(closed: str) -> None:
    rank = Rank()
    rank.remember(rank.operation)
    if closed == "pending":
        rank.pending[0] = 1
    else:
        rank.sequencer.revoked = 1
    assert rank.operation() is rank.out
    assert rank.hooks.asked == [(rank.operation,)]
    assert rank.call(rank.x) == "planned"
    assert len(rank.hooks.asked[1]) == 7


def test_only_calls_that_are_like_none_before_take_the_slow_path() -> None:
    rank = Rank()
    assert rank.call(rank.x) == "planned"
    assert rank.remember(rank.operation)
    assert rank.call(rank.x) is rank.out
    assert rank.call(rank.x.view(np.int8)) == "planned"
    assert [call[0] for call in rank.hooks.asked] == ["all_gather"] * 2


def test_a_call_for_later_is_found_on_arrays_of_its_own() -> None:
    rank = Rank()
    collective, op, root, variant = CALL
    x, out = rank.x + 1, rank.out.copy()
    assert rank.cache.find(collective, x, out, op, root, variant) is None
    rank.remember(rank.operation)
    later = rank.cache.find(collective, x, out, op, root, variant)
    assert later is not None
    with pytest.raises(ValueError, match="referenc"):
        x.resize(100)
    assert later.run() is out and out.tolist() == x.tolist() and rank.out.tolist() == [0] * 8
    assert rank.cache.find(collective, x[:4], out, op, root, variant) is None
    assert rank.sequencer.calls == 1


def test_a_cache_refuses_what_is_no_call_and_another_communicators_operation() -> None:
    rank = Rank()
    with pytest.raises(TypeError, match="7 arguments"):
        rank.cache("all_gather", rank.x)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="another communicator"):
        rank.remember(Rank().operation)


@pytest.mark.parametrize("name", ["slow_path", "resume", "run_in_turn"])
def test_hooks_without_a_method_are_refused_at_once(name: str) -> None:
    methods = {"slow_path": print, "resume": print, "run_in_turn": print}
    del methods[name]
    some = type("Some", (), methods)()
    with pytest.raises(AttributeError, match=name):
        _native.Sequencer(1, 1, 0, idle_ns=0, spins=0, pending=bytearray(1), hooks=some)
