"""What each kind of fault does when its instruction comes; faults/inject/model.py says what is owed for it.

An effect adds acts to the rank's call. The simplest are done at once, right before the instruction: see `before`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from typing import NoReturn

import numpy as np

from cxlemu.memory.adversary import Action, CacheMove
from cxlemu.memory.cache import HostCache
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.memory.shadow import ShadowMemory
from cxlemu.plan import Op
from cxlemu.plan.layout import doorbell_word
from faults.inject.fault import Effect, Fault
from faults.inject.injection import Injection
from faults.inject.places import InstructionPlace, bells, data


class Killed(BaseException):
    """The rank is dead, where its process cannot be because others live in it."""


def _cache(injection: Injection) -> tuple[ShadowMemory, HostCache]:
    memory = injection.context.memory
    assert isinstance(memory, ShadowMemory)  # Script.check sees to it
    return memory, memory.cache


def before(what: Effect) -> Effect:
    """Make an effect of something that is done right before the instruction, which then follows."""

    def effect(injection: Injection, number: int, fault: Fault, start: InstructionPlace) -> None:
        def act() -> bool:
            injection.happened(number)
            what(injection, number, fault, start)
            return False

        injection.at(start, act)

    return effect


# --- nature --------------------------------------------------------------------------------------------------------


@before
def nature(injection: Injection, number: int, fault: Fault, start: InstructionPlace) -> None:
    memory, cache = _cache(injection)
    windows = [(span.card, *span.lines) for span in injection.spans(start)]
    if fault.card is not None:
        most = cache.memory[0].nbytes // LINE_BYTES
        first = min(fault.line or 0, most)
        count = 1 if fault.lines is None and fault.line is not None else fault.lines or most
        windows = [(min(fault.card, len(cache.memory) - 1), first, min(first + count, most))]
    for card, first, last in windows:
        memory.disturb(CacheMove(Action(fault.kind), card, first, np.ones(last - first, np.bool_)))


@before
def tear(injection: Injection, number: int, fault: Fault, start: InstructionPlace) -> None:
    memory, cache = _cache(injection)
    rng = np.random.default_rng((injection.seed, number))
    for card, held in enumerate(cache.memory):
        lines = held.nbytes // LINE_BYTES
        memory.disturb(CacheMove(Action.LAND, card, 0, rng.random(lines) < 0.5))


# --- doorbells -----------------------------------------------------------------------------------------------------


def _ring(injection: Injection, where: InstructionPlace) -> Callable[[], None]:
    """Rings the doorbell of the instruction as it would now, whenever it is called."""
    i, binding = injection.instruction(where), injection.running.binding
    epoch = binding.epoch + i.value
    card, offset = binding.layout.doorbell_address(i.arg, epoch)
    payload = b""
    if i.op == Op.SIGNAL_DATA:
        payload = injection.buffers[i.a.id][i.a.offset : i.a.offset + i.nbytes].tobytes()
    word = doorbell_word(epoch, binding.tag)
    return lambda: injection.memory.signal(card, binding.base + offset, word, payload)


def skip_doorbell(injection: Injection, number: int, fault: Fault, start: InstructionPlace) -> None:
    def act() -> bool:
        injection.happened(number)
        return True

    injection.at(start, act)


@before
def repeat_doorbell(injection: Injection, number: int, fault: Fault, start: InstructionPlace) -> None:
    _ring(injection, start)()


def late_doorbell(injection: Injection, number: int, fault: Fault, start: InstructionPlace) -> None:
    late: list[Callable[[], None]] = []

    def hold_back() -> bool:
        injection.happened(number)
        late.append(_ring(injection, start))
        return True

    def arrive() -> bool:
        while late:
            late.pop()()
        return False

    injection.at(start, hold_back)
    for other in injection.onward(
        InstructionPlace(start.stream, start.at + 1)
    ):  # one host's writes to a line keep their order
        i = injection.instruction(other)
        if i.op == injection.instruction(start).op and i.arg == injection.instruction(start).arg:
            injection.at(other, arrive)
    injection.while_waiting.append(arrive)
    injection.at_end.append(arrive)


# --- ranks and hosts -----------------------------------------------------------------------------------------------


def stall(injection: Injection, number: int, fault: Fault, start: InstructionPlace) -> None:
    assert fault.seconds is not None

    def act() -> bool:
        injection.happened(number, fault.seconds or 0.0)
        injection.context.session.clock.sleep(fault.seconds or 0.0)
        return False

    injection.at(start, act)


def slow(injection: Injection, number: int, fault: Fault, start: InstructionPlace) -> None:
    """Later in the streams' order; bytes at the rate that is left, or instructions at their new pace.

    Delays that are shorter than the clock can tell add up until it can.
    """
    later = list(injection.everywhere())
    later = later[later.index(start) :]
    seconds = [fault.seconds or 0.0] * len(later)
    if fault.gbytes_per_s is not None:
        moved = [sum(span.nbytes for span in data(injection.running, injection.instruction(w))) for w in later]
        seconds = [nbytes / (fault.gbytes_per_s * 1e9) for nbytes in moved]

    clock, owed_s = injection.context.session.clock, 0.0

    def act(delay_s: float) -> bool:
        nonlocal owed_s
        owed_s += delay_s
        if owed_s > 0 and owed_s >= clock.shortest_sleep_s:
            clock.sleep(owed_s)
            owed_s = 0.0
        return False

    def begin() -> bool:
        injection.happened(number, sum(seconds))
        return False

    injection.at(start, begin)
    for where, delay_s in zip(later, seconds, strict=True):
        injection.at(where, partial(act, delay_s))


def _die(injection: Injection) -> NoReturn:
    if injection.context.launch == "processes":
        os.kill(os.getpid(), signal.SIGKILL)
    injection.context.session.play_dead()
    raise Killed


@before
def kill(injection: Injection, number: int, fault: Fault, start: InstructionPlace) -> None:
    _die(injection)


@before
def crash(injection: Injection, number: int, fault: Fault, start: InstructionPlace) -> None:
    _, cache = _cache(injection)
    cache.crash(np.random.default_rng((injection.seed, number)))
    cache.damage.cut_link(number, cache.host)  # of its other ranks, too, nothing arrives any more
    _die(injection)


# --- cards and links -----------------------------------------------------------------------------------------------


@before
def poison(injection: Injection, number: int, fault: Fault, start: InstructionPlace) -> None:
    _, cache = _cache(injection)
    for card, line in _named(injection, fault, start):
        cache.damage.poison(number, card, line)


@before
def lose_card(injection: Injection, number: int, fault: Fault, start: InstructionPlace) -> None:
    _, cache = _cache(injection)
    for card, _ in _named(injection, fault, start):
        cache.damage.lose_card(number, card)


def _named(injection: Injection, fault: Fault, start: InstructionPlace) -> list[tuple[int, int]]:
    """(card, line) of the fault, or the first that its instruction is about; none where a call touches nothing."""
    if fault.card is not None:
        return [(fault.card, fault.line or 0)]
    return [(span.card, span.lines[0]) for span in injection.spans(start)[:1]]


def link_down(injection: Injection, number: int, fault: Fault, start: InstructionPlace) -> None:
    _, cache = _cache(injection)
    executed: list[InstructionPlace] = []  # since it went down

    def count(where: InstructionPlace) -> bool:
        if executed or where == start:
            if len(executed) == fault.instructions:
                cache.damage.mend(number)
            executed.append(where)
        return False

    before(lambda *_: cache.damage.cut_link(number, cache.host))(injection, number, fault, start)
    if fault.instructions is not None:
        for where in injection.everywhere():
            injection.at(where, partial(count, where))
        injection.at_end.append(lambda: cache.damage.mend(number))


# --- single bits ---------------------------------------------------------------------------------------------------


def _flip(injection: Injection, card: int, offset: int, bit: int) -> None:
    injection.context.pool.cards[card][offset + bit // 8] ^= 1 << bit % 8


@before
def flip_payload(injection: Injection, number: int, fault: Fault, start: InstructionPlace) -> None:
    for card, offset, nbytes in injection.spans(start, data)[:1]:
        _flip(injection, card, offset, (fault.bit or 0) % (8 * nbytes))


@before
def flip_doorbell(injection: Injection, number: int, fault: Fault, start: InstructionPlace) -> None:
    for card, offset, _ in injection.spans(start, bells)[:1]:
        _flip(injection, card, offset, fault.bit or 0)


@before
def flip_superblock(injection: Injection, number: int, fault: Fault, start: InstructionPlace) -> None:
    _flip(injection, fault.card or 0, 0, fault.bit or 0)
