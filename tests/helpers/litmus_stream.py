"""A litmus test as a stream of events for the checker of programs: one random interleaving."""

import random

from faults.litmus.language import Litmus
from faults.machine.program import Do, Step, Straight
from tests.helpers.event_stream import KEEP, LINE, MFENCE, Stream

WORD = 8


def perform(litmus: Litmus, seed: int, nature: bool) -> Stream:
    """Run a litmus test to its end, or until every rank waits.

    Seeds 0 and 1 let each rank go as far as it can before the next one, in their order and in the opposite one.
    """
    draw = random.Random(seed)
    threads = [thread for thread in litmus.program.threads if isinstance(thread, Straight)]
    names = [f"{'ABCDEFGH'[thread.host]}.{thread.rank}" for thread in threads]
    stream = Stream(*names)
    run = _Run(litmus, stream)
    run.begin()
    at = [0] * len(threads)
    idle = 0
    while idle < 400 and any(at[k] < len(thread.steps) for k, thread in enumerate(threads)):
        left = [k for k, thread in enumerate(threads) if at[k] < len(thread.steps)]
        k = draw.choice(left) if seed > 1 or idle else left[-seed]
        if nature:
            run.nature(draw, names)
        done = run.step(names[k], threads[k].steps[at[k]])
        idle = 0 if done else idle + 1
        at[k] += done
    return stream


class _Run:
    def __init__(self, litmus: Litmus, stream: Stream) -> None:
        self.litmus, self.stream = litmus, stream
        self.events: set[int] = set()
        words = litmus.program.words
        self.offsets = [
            word.line * LINE + WORD * [w.line for w in words[:k]].count(word.line) for k, word in enumerate(words)
        ]

    def begin(self) -> None:
        for word, at in zip(self.litmus.program.words, self.offsets, strict=True):
            self.stream.pool[at : at + WORD] = word.initial.to_bytes(WORD, "little")

    def nature(self, draw: random.Random, names: list[str]) -> None:
        name, line = draw.choice(names), draw.randrange(len(self.litmus.program.lines))
        move = draw.choice(["none", "none", "evict", "prefetch", "land"])
        if move == "evict":
            self.stream.evict(name, line * LINE)
        elif move == "prefetch":
            self.stream.prefetch(name, line * LINE)
        elif move == "land":
            self.stream.land(name, line)

    def step(self, name: str, step: Step) -> bool:
        """Make a step; False if it is a wait in vain."""
        stream, do = self.stream, step.do
        if do in (Do.FLUSH, Do.FLUSH_KEEP, Do.INVALIDATE):
            at = step.place * LINE
        elif do in (Do.RECORD, Do.AWAIT, Do.FENCE, Do.CRASH):
            at = 0
        else:
            at = self.offsets[step.place]
        site = f"{name} {do.name.lower()} {step.place}"
        match do:
            case Do.STORE:
                stream.store(name, at, step.value, site)
            case Do.STORE_NT:
                stream.store_nt(name, at, step.value, site)
            case Do.FLUSH:
                stream.flush(name, at, WORD, site)
            case Do.FLUSH_KEEP:
                stream.flush(name, at, WORD, site, KEEP)
            case Do.FENCE:
                stream.fence(name, MFENCE)  # the model's fence completes drops as well
            case Do.INVALIDATE:
                stream.invalidate(name, at, WORD, site)
            case Do.LOAD:
                stream.load(name, at, WORD, site)
            case Do.SIGNAL:
                stream.store(name, at, step.value, site)
                stream.flush(name, at, WORD, site)
                stream.land(name, at // LINE)
            case Do.WAIT:
                stream.invalidate(name, at, WORD, site)
                return int.from_bytes(stream.load(name, at, WORD, site), "little") >= step.value
            case Do.RECORD:
                self.events.add(step.place)
            case Do.AWAIT:
                return step.place in self.events
            case Do.CRASH:
                stream.crash(name)
        return True
