"""One step of the abstract machine, done to real memory: what the machine says of words, HostMemory does to bytes."""

import numpy as np

from cxlemu.memory.adversary import Action, CacheMove
from cxlemu.memory.protocol import LINE_BYTES, Bytes, HostMemory
from cxlemu.memory.shadow import ShadowMemory
from faults.machine.program import Do, Step
from faults.protocols.places import WORD_BYTES, PoolAddress, WordAddresses

_ONE_LINE = np.ones(1, np.bool_)


class WordMemory:
    """A rank's memory, by the words and lines of a program."""

    def __init__(self, memory: HostMemory, places: WordAddresses) -> None:
        self.memory, self.places = memory, places

    def do(self, step: Step) -> int:
        """Do one step but RECORD, AWAIT, CRASH or FAIL; return what a LOAD or WAIT saw, else 0."""
        memory = self.memory
        match step.do:
            case Do.STORE:
                memory.write(*self.places.words[step.place], _bytes(step.value))
            case Do.STORE_NT:
                memory.write_nt(*self.places.words[step.place], _bytes(step.value))
            case Do.FLUSH | Do.FLUSH_KEEP:
                memory.flush(*self.places.lines[step.place], LINE_BYTES, keep=step.do == Do.FLUSH_KEEP)
            case Do.FENCE:
                memory.fence()
            case Do.INVALIDATE:
                memory.invalidate(*self.places.lines[step.place], LINE_BYTES)
            case Do.LOAD:
                seen = np.empty(WORD_BYTES, np.uint8)
                memory.read(*self.places.words[step.place], seen)
                return int(seen.view("<u8")[0])
            case Do.SIGNAL:
                self._signal(self.places.words[step.place], step.value)
            case Do.WAIT:
                return self._look(self.places.words[step.place])
            case _:
                raise NotImplementedError(f"{step.do.name} is not a step of memory")
        return 0

    def settle(self) -> None:
        """Let all posted lines arrive and all flushed lines leave.

        Nature owes that, and an emulated cache never does it by itself. Other memories than emulated ones stay as they
        are.
        """
        memory = self.memory
        if not isinstance(memory, ShadowMemory):
            return
        for card, offset in self.places.lines:
            line = offset // LINE_BYTES
            memory.disturb(CacheMove(Action.LAND, card, line, _ONE_LINE))
            with memory.cache.lock:
                memory.cache.cards[card].complete(line, line + 1)

    def _signal(self, word: PoolAddress, value: int) -> None:
        """A doorbell that does not begin its line is stored and flushed."""
        if word.slot == 0:
            self.memory.signal(*word, value)
            return
        self.memory.write(*word, _bytes(value))
        self.memory.flush(*word.line, LINE_BYTES)

    def _look(self, word: PoolAddress) -> int:
        line = self.memory.poll(*word.line)
        return (
            line.word
            if word.slot == 0
            else int.from_bytes(line.payload[word.slot * WORD_BYTES - WORD_BYTES :][:8], "little")
        )


def _bytes(value: int) -> Bytes:
    return np.array([value], "<u8").view(np.uint8)
