"""A protocol, run again and again by the ranks of a world: each run on fresh lines, with an adversary of its own."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from cxlemu import userfile
from cxlemu.errors import ArgumentError, CancelledError
from cxlemu.memory import WORST_CASE
from cxlemu.memory.protocol import LINE_BYTES, Bytes, HostMemory
from cxlemu.memory.shadow import ShadowMemory
from cxlemu.pool.session_area import HEARTBEAT_S, RankState
from cxlemu.world import RankContext
from faults.explore.programs import RankProtocol
from faults.protocols.memory import WordMemory
from faults.protocols.places import WORD_BYTES, WordAddresses, lines_per_card, over_cards
from faults.protocols.rank import IDLE, LOOK_AT_OTHERS_S, Ending, How, Rank, StoppedError
from faults.protocols.reports import Reports

assert LOOK_AT_OTHERS_S <= HEARTBEAT_S
GRACE_S = 10.0  # time after their deadline in which all ranks tell how they ended
_RUNNING, _THROUGH, _FAILED = 1, 2, 3  # the tag of a rank's status


@dataclass(frozen=True)
class ProtocolRun:
    number: int  # the run's number, from 0
    seed: int | None  # the adversary's; None: there was no adversary
    endings: tuple[Ending, ...]  # how each rank ended, in rank order
    memory: Mapping[str, int]  # the pool's value of each word in the end
    final: str = ""  # what the protocol's ``final`` said against the end; empty if it said nothing or was not asked

    @property
    def wrong(self) -> bool:
        """Whether a rank failed or was stuck, or ``final`` said something against the end."""
        return bool(self.final) or any(ending.wrong for ending in self.endings)

    @property
    def idle(self) -> bool:
        return all((ending.how, ending.text) == (How.RETURNED, IDLE) for ending in self.endings)

    @property
    def stuck(self) -> bool:
        return any(ending.how == How.STUCK for ending in self.endings)


def load(spec: str) -> RankProtocol:
    """Load a protocol from ``FILE.py:NAME``; the file is executed."""
    function, file, name = userfile.load(spec, "--protocol", lambda each: isinstance(each, RankProtocol))
    if not isinstance(function, RankProtocol):
        raise ArgumentError(f"--protocol {spec}: {file} has no {name!r} decorated with @protocol")
    return function


def run(
    context: RankContext, protocol: str | RankProtocol, seeds: Sequence[int | None], *, exitfirst: bool = False
) -> int:
    """Run a protocol once for each seed, up to the first run that is stuck; rank 0 emits each `ProtocolRun` as it ends.

    Every rank of the world calls this. Every run begins with the same memory. Return how many runs were wrong.
    """
    runs = _Runs(context, load(protocol) if isinstance(protocol, str) else protocol)
    return sum(run.wrong for run in runs.all(seeds, exitfirst))


class _Runs:
    def __init__(self, context: RankContext, protocol: RankProtocol) -> None:
        self.context, self.protocol = context, protocol
        self.words = protocol.words()
        if isinstance(context.memory, ShadowMemory) and context.hosts != protocol.hosts(context.ranks):
            raise ArgumentError(f"ranks are on hosts {context.hosts}, but {protocol.name} says otherwise")
        cards, lines = context.topology.pool_card_count, len(protocol.lines)
        offset = context.arena.take(lines_per_card(lines, cards) * LINE_BYTES).at
        self.places = WordAddresses.of(self.words, over_cards(lines, cards, offset))
        self.reports = Reports(context.memory, context.arena, context.ranks)
        self.peers = [rank for rank in range(context.ranks) if rank != context.rank]

    def all(self, seeds: Sequence[int | None], exitfirst: bool) -> Iterator[ProtocolRun]:
        for number, seed in enumerate(seeds):
            run = self.one(number, seed)
            if self.context.rank == 0:
                self.context.emit(run)
            yield run
            if run.stuck or (exitfirst and run.wrong):  # after a stuck run others may be stuck, for a deadline each
                return

    def one(self, number: int, seed: int | None) -> ProtocolRun:
        context = self.context
        words = WordMemory(self._memory(seed), self.places)
        self._begin(words, number)
        rank = Rank(
            self.protocol,
            context.rank,
            context.ranks,
            words,
            deadline_s=context.deadline_s,
            pauses=None if seed is None else Random(f"{seed}/{context.rank}"),
            look=lambda: self._look(number),
            crash=lambda: self._crash(number),
        )
        ending = rank.run()
        self._say(number, _FAILED if ending.how == How.FAILED else _THROUGH)
        self.reports.publish(context.rank, ending)
        context.session.barrier(context.deadline_s + GRACE_S)
        return self._judged(ProtocolRun(number, seed, self.reports.read(), self._pool()))

    def _memory(self, seed: int | None) -> HostMemory:
        """Open a memory on the host's cache, with an adversary of this run; a real pool's memory stays as it is."""
        context, quiet = self.context, self.context.memory
        if not isinstance(quiet, ShadowMemory):
            return quiet
        spec = replace(WORST_CASE, seed=seed)
        return spec.open(context.pool.cards, host_cache=quiet.cache, host=context.host, rank=context.rank)

    def _begin(self, words: WordMemory, number: int) -> None:
        """Give all lines their initial values, and take them out of every cache."""
        context, quiet = self.context, self.context.memory
        self._meet()  # all have seen the end of the run before
        for card, offset in self.places.lines:
            quiet.invalidate(card, offset, LINE_BYTES)
        self._say(number, _RUNNING)
        self._meet()
        if context.rank == 0:
            for place, line in zip(self.places.lines, self._initial(), strict=True):
                quiet.write(*place, line)
                quiet.flush(*place, LINE_BYTES)
            quiet.fence()
        self._meet()
        for card, offset in self.places.lines:  # so an adversary knows them as well
            words.memory.invalidate(card, offset, LINE_BYTES)
        self._meet()

    def _meet(self) -> None:
        self.context.session.barrier(self.context.deadline_s)

    def _initial(self) -> Iterator[Bytes]:
        lines = np.zeros((len(self.places.lines), LINE_BYTES), np.uint8)
        for word, place in zip(self.words, self.places.words, strict=True):
            lines[word.line].view("<u8")[place.slot] = word.initial
        return iter(lines)

    def _say(self, number: int, tag: int) -> None:
        self.context.session.report(0, number, tag, self.protocol.name)

    def _look(self, number: int) -> None:
        self.context.check()
        self.context.session.beat()
        for peer in self.peers:
            status = self.context.session.peek(peer)
            if status is not None and status.state == RankState.FAILED:
                raise CancelledError(f"stopped, because rank {peer} failed")
            if status is not None and (status.call, status.tag) == (number, _FAILED):
                raise StoppedError(f"stopped, because rank {peer} failed")

    def _crash(self, number: int) -> None:
        context, quiet = self.context, self.context.memory
        if not isinstance(quiet, ShadowMemory):
            raise ArgumentError("Crash() is for the emulated pool: a real host's cache is not lost on request")
        if context.hosts.count(context.host) > 1:
            raise ArgumentError("Crash() of a host that ranks share can be explored, and not run: they end at once")
        quiet.cache.crash(np.random.default_rng(number))

    def _pool(self) -> dict[str, int]:
        """Read what is in the pool itself, whatever caches hold."""
        lines = self.context.pool.line_memory()
        for card, offset in self.places.lines:  # this host may have cached what another one has overwritten since
            lines.invalidate(card, offset, LINE_BYTES)
        cards = self.context.pool.cards
        places = zip(self.words, self.places.words, strict=True)
        return {
            word.name: int(cards[card][offset : offset + WORD_BYTES].view("<u8")[0]) for word, (card, offset) in places
        }

    def _judged(self, run: ProtocolRun) -> ProtocolRun:
        """Ask ``final`` about a run, if all ranks returned or crashed."""
        if not all(ending.how in (How.RETURNED, How.CRASHED) for ending in run.endings):
            return run
        if self.protocol.final is None:
            return run
        return replace(run, final=self.protocol.judge(run.memory, [ending.value for ending in run.endings]))
