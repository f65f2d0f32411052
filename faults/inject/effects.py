"""The effects of faults: what each kind does at its instruction; faults/inject/model.py says what a run must then do.

An effect adds acts to the rank's call. The simplest are done at once, right before the instruction: see `before`. All
effects take the same arguments: the rank's call, the number of the fault in its script, the fault, and the place in the
call at which it happens.
"""

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
from cxlemu.signals import Stop
from faults.inject.fault import Effect, Fault
from faults.inject.injection import Injection
from faults.inject.places import InstructionPlace, bells, data

UNMOVED = "there was no line to move"


class Killed(Stop):
    """The rank is dead, but its process cannot be, because other ranks live in it."""


def _cache(injection: Injection) -> tuple[ShadowMemory, HostCache]:
    memory = injection.context.memory
    assert isinstance(memory, ShadowMemory)  # Script.check refuses other backends
    return memory, memory.cache


def before(what: Callable[[Injection, int, Fault, InstructionPlace], bool | str | None]) -> Effect:
    """Make an effect of a function that acts right before the instruction; the rank then executes the instruction.

    It returns False, or a reason, where it finds nothing to act on.
    """

    def effect(injection: Injection, number: int, fault: Fault, start: InstructionPlace) -> None:
        def act() -> bool:
            came = what(injection, number, fault, start)
            if came is False or isinstance(came, str):
                injection.missed[number] = came or f"{fault.kind} finds nothing to act on there"
            else:
                injection.happened(number)
            return False

        injection.at(start, act)

    return effect


# --- nature --------------------------------------------------------------------------------------------------------


@before
def nature(injection: Injection, number: int, fault: Fault, start: InstructionPlace) -> bool:
    """Evict, prefetch or land lines, as the fault's kind says.

    The lines are those that the instruction touches; or, if the fault has a ``card``, ``lines`` lines from ``line`` on,
    or all lines of that card.
    """
    memory, cache = _cache(injection)
    windows = [(span.card, *span.lines) for span in injection.spans(start)]
    if fault.card is not None:
        first = fault.line or 0
        count = cache.memory[fault.card].nbytes // LINE_BYTES if fault.line is None else fault.lines or 1
        windows = [(fault.card, first, first + count)]
    moves = [
        CacheMove(Action(fault.kind), card, first, np.ones(last - first, np.bool_)) for card, first, last in windows
    ]
    if not sum(map(memory.disturb, moves)):
        injection.missed[number] = UNMOVED
    return bool(windows)


@before
def tear(injection: Injection, number: int, fault: Fault, start: InstructionPlace) -> None:
    """Let posted write-backs arrive, each line's with a probability of one half."""
    memory, cache = _cache(injection)
    rng = np.random.default_rng((injection.seed, number))
    drawn = [rng.random(held.nbytes // LINE_BYTES) < 0.5 for held in cache.memory]
    if not sum(memory.disturb(CacheMove(Action.LAND, card, 0, lines)) for card, lines in enumerate(drawn)):
        injection.missed[number] = UNMOVED


# --- doorbells -----------------------------------------------------------------------------------------------------


def _ring(injection: Injection, where: InstructionPlace) -> Callable[[], None]:
    """Return a function that rings the doorbell of the instruction as the instruction would ring it now."""
    i, binding = injection.instruction(where), injection.running.binding
    epoch = binding.epoch + i.value
    card, offset = binding.layout.doorbell_address(i.arg, epoch)
    payload = b""
    if i.op == Op.SIGNAL_DATA:
        payload = injection.buffers[i.a.id][i.a.offset : i.a.offset + i.nbytes].tobytes()
    word = doorbell_word(epoch, binding.tag)
    return lambda: injection.memory.signal(card, binding.base + offset, word, payload)


def skip_doorbell(injection: Injection, number: int, fault: Fault, start: InstructionPlace) -> None:
    """Leave out the instruction, which rings a doorbell."""

    def act() -> bool:
        injection.happened(number)
        return True

    injection.at(start, act)


@before
def repeat_doorbell(injection: Injection, number: int, fault: Fault, start: InstructionPlace) -> None:
    """Ring the instruction's doorbell before the instruction rings it."""
    _ring(injection, start)()


def late_doorbell(injection: Injection, number: int, fault: Fault, start: InstructionPlace) -> None:
    """Hold back a doorbell until its stream rings it again, its rank has waited for a while, or its rank's call
    ends."""
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
    """Let the rank sleep for ``seconds`` before the instruction."""
    assert fault.seconds is not None

    def act() -> bool:
        injection.happened(number, fault.seconds or 0.0)
        injection.context.session.clock.sleep(fault.seconds or 0.0)
        return False

    injection.at(start, act)


def slow(injection: Injection, number: int, fault: Fault, start: InstructionPlace) -> None:
    """Slow down the instruction and all that follow it in the order of the rank's streams.

    Each is delayed by ``seconds``, or by the time that its pool bytes take at ``gbytes_per_s``. Delays that are shorter
    than the clock's shortest sleep add up until they are as long.
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
        if any(seconds):
            injection.happened(number, sum(seconds))
        else:
            injection.missed[number] = "nothing moves from there on"
        return False

    injection.at(start, begin)
    for where, delay_s in zip(later, seconds, strict=True):
        injection.at(where, partial(act, delay_s))


def _die(injection: Injection, number: int) -> NoReturn:
    injection.happened(number)
    if injection.context.launch not in ("threads", "turns"):
        os.kill(os.getpid(), signal.SIGKILL)
    injection.context.session.play_dead()
    raise Killed


@before
def kill(injection: Injection, number: int, fault: Fault, start: InstructionPlace) -> None:
    """Kill the rank: its process by SIGKILL or, where ranks share a process, its thread by `Killed`."""
    _die(injection, number)


@before
def crash(injection: Injection, number: int, fault: Fault, start: InstructionPlace) -> None:
    """Crash the rank's host: its cache is lost, its link is cut, and the rank is killed."""
    _, cache = _cache(injection)
    cache.crash(np.random.default_rng((injection.seed, number)))
    cache.damage.cut_link(number, cache.host)  # nothing arrives any more from the host's other ranks either
    _die(injection, number)


# --- cards and links -----------------------------------------------------------------------------------------------


@before
def poison(injection: Injection, number: int, fault: Fault, start: InstructionPlace) -> bool:
    """Poison the fault's line, or the first line that the instruction touches."""
    _, cache = _cache(injection)
    named = _named(injection, fault, start)
    for card, line in named:
        cache.damage.poison(number, card, line)
    return bool(named)


@before
def lose_card(injection: Injection, number: int, fault: Fault, start: InstructionPlace) -> bool:
    """Lose the fault's card, or the first card that the instruction touches."""
    _, cache = _cache(injection)
    named = _named(injection, fault, start)
    for card, _ in named:
        cache.damage.lose_card(number, card)
    return bool(named)


def _named(injection: Injection, fault: Fault, start: InstructionPlace) -> list[tuple[int, int]]:
    """Locate the fault's (card, line), or the first that its instruction touches; empty if the call touches nothing."""
    if fault.card is not None:
        return [(fault.card, fault.line or 0)]
    return [(span.card, span.lines[0]) for span in injection.spans(start)[:1]]


def link_down(injection: Injection, number: int, fault: Fault, start: InstructionPlace) -> None:
    """Cut the host's link.

    The link is up again after ``instructions`` more instructions of this rank, or at the end of its call; without that
    field it stays down.
    """
    _, cache = _cache(injection)
    executed: list[InstructionPlace] = []  # since the link went down

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
def flip_payload(injection: Injection, number: int, fault: Fault, start: InstructionPlace) -> str | None:
    """Flip a bit of the first data in the pool that the instruction touches."""
    spans, bit = data(injection.running, injection.instruction(start)), fault.bit or 0
    if not spans:
        return f"instruction {fault.when.instruction} has no data in the pool"
    card, offset, nbytes = spans[0]
    if bit >= 8 * nbytes:
        return f"the data of instruction {fault.when.instruction} has {8 * nbytes} bits"
    _flip(injection, card, offset, bit)
    return None


@before
def flip_doorbell(injection: Injection, number: int, fault: Fault, start: InstructionPlace) -> str | None:
    """Flip a bit of the word of the first doorbell that the instruction touches."""
    spans = bells(injection.running, injection.instruction(start))
    if not spans:
        return f"instruction {fault.when.instruction} has no doorbell"
    _flip(injection, spans[0].card, spans[0].offset, fault.bit or 0)
    return None


@before
def flip_superblock(injection: Injection, number: int, fault: Fault, start: InstructionPlace) -> None:
    """Flip a bit of the superblock on the fault's card, or on card 0."""
    _flip(injection, fault.card or 0, 0, fault.bit or 0)
