"""What a search tries though no event of an execution races with it, as it is not in there: a line leaves by chance."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from typing import NamedTuple

from faults.programs.every.events import EVICT, LAND, NO_LINES, Actor, Line, Look, RunEvent, Trace
from faults.programs.turns import TEARS

LOOKED_AT = 16  # events, between two looks at the time


class Chance(NamedTuple):
    """A move of a line before an event of a run.

    Attributes:
        at: The number of that event.
        actor: What moves.
        owed: Whether it comes in any case, now or later: no bound on evictions holds it back.
    """

    at: int
    actor: Actor
    owed: bool = False


def noticed(
    trace: Trace, known: int, until: int, in_time: Callable[[], None], vain: Container[Look]
) -> Iterator[Chance]:
    """List evictions: of a stored line, at once and before another host's use, and before a look at an old line.

    By chance a line leaves before event ``until`` only. An old line that was flushed leaves in any case, if not before
    this look then behind it: that is no chance. What another run has shown of the first ``known`` events is left out.
    No run shows a look that is in ``vain`` before what has arrived, where it may be as well.
    """
    events = trace.events
    Uses = dict[Line, list[tuple[int, RunEvent]]]
    uses, new_uses, arrivals, new_arrivals = Uses(), Uses(), Uses(), Uses()  # new: behind what is known
    flushes: dict[tuple[int, Line], list[int]] = {}  # by host and line
    for n, event in enumerate(events):
        for line in event.flushed:
            flushes.setdefault((event.host, line), []).append(n)
        if event.fetched or event.arrived:
            for into in (uses, new_uses)[: 1 + (n >= known)]:
                for line in event.fetched | event.arrived:
                    into.setdefault(line, []).append((n, event))
            for into in (arrivals, new_arrivals)[: 1 + (n >= known)]:
                for line in event.arrived:
                    into.setdefault(line, []).append((n, event))
    fetched: dict[tuple[int, Line], int] = {}  # by host and line: the last fetch up to here
    leaving: set[tuple[int, Line]] = set()  # flushed, and neither fetched again nor stored to
    oldest = max((k + 1 for k, event in enumerate(events) if event.old), default=0)
    for k, event in enumerate(events[: min(max(until, oldest), len(events) - 1)]):
        host, before, steps = event.host, event.before, isinstance(event.actor, int)
        users, those = (uses, arrivals) if k >= known else (new_uses, new_arrivals)
        if k % LOOKED_AT == 0:
            in_time()
        for line in event.stored if steps and k < until else ():
            seen = sum(1 << n for n, e in arrivals.get(line, ()) if e.host == host and e.before >> k & 1)
            looks = [(n, e) for n, e in users.get(line, ()) if e.host != host and not before >> n & 1]
            looks += [(n, e) for n, e in trace.rounds if e.host != host and line in e.fetched | e.arrived]
            flush = next((n for n in flushes.get((host, line), ()) if n > k), len(events))
            for n, e in looks:
                if not (e.apart if e.look in vain else e.before) & seen:  # else it sees the store in any case
                    for offset in {k + 1, max(n, k + 1)}:
                        if offset <= flush:
                            yield Chance(offset, (EVICT, host, *line))
                    for tear in TEARS if line in event.torn else ():
                        yield Chance(_next_step(events, k), (tear, host, *line))
        if event.fetched:
            leaving -= {(host, line) for line in event.fetched}
        for line in event.old | (event.cached - event.stored) if steps else ():
            owed = line in event.old
            last = fetched.get((host, line))
            if last is None or ((host, line) in leaving and not owed):
                continue  # it is as new as it can be; or a fence: nobody looks
            lasts, beside = events[last].before, those.get(line, ())
            late = any(e.host != host and not (lasts >> n | e.before >> k) & 1 for n, e in beside)
            if owed and until and not late:  # what another host has stored may arrive by chance
                late = any(line in e.stored and e.host != host and not e.before >> k & 1 for e in events)
            if late:
                yield Chance(k, (EVICT, host, *line), owed=owed)
        if event.fetched:
            fetched |= {(host, line): k for line in event.fetched}
        if event.stored or event.flushed:
            leaving -= {(host, line) for line in event.stored}
            leaving |= {(host, line) for line in event.flushed}


def examined(trace: Trace, until: int) -> Iterator[Chance]:
    """List what an invariant sees though nobody looks: a stored line leaves before its host's next step there.

    Behind an earlier flush of the line that was on its way, others see both; none leaves behind event ``until``. What
    nobody waits for arrives at once.
    """
    events = trace.events
    following: dict[tuple[int, Line], int] = {}  # by host and line: the next step on the line
    landing: dict[tuple[int, Line], int] = {}  # the arrival of what is on its way
    last: dict[int, int] = {}  # by host: its last step
    for k, event in reversed(list(enumerate(events))):
        if not isinstance(event.actor, int):
            if event.actor[0] == LAND:
                landing[event.host, event.actor[2:]] = k
            if event.crashes:
                last[event.host] = k
                for each in (following, landing):
                    for its in [its for its in each if its[0] == event.host]:
                        del each[its]
            continue
        last.setdefault(event.host, k)
        for line in event.stored if k < until else ():
            its, evict = (event.host, line), (EVICT, event.host, *line)
            at, land = following.get(its, max(last[event.host], k + 1)), landing.get(its, 0)
            together = NO_LINES.union(*(lines for lines in trace.invariants if line in lines))
            waits = land and (together or any(line in one.fetched for one in events if one.host != event.host))
            if at == len(events) or land > at or not (waits or together):
                continue
            if waits or line not in events[at].flushed or any(e.arrived & together for e in events[k + 1 : at]):
                yield Chance(at, evict)
            for tear in TEARS if together and line in event.torn else ():
                yield Chance(_next_step(events, k), (tear, event.host, *line))
        for line in event.posted:
            land = landing.pop((event.host, line), 0)
            if land and not events[land].number and len(events[land].arrived) > 1:  # behind the end; an invariant
                yield Chance(k + 1, events[land].actor, owed=True)
        for lines in (event.cached, event.posted):
            for line in lines:
                following[event.host, line] = k


def is_seen_by_a_third(events: Sequence[RunEvent], first: int, host: int) -> bool:
    """Say whether an event is a line that leaves by chance, and a host other than its own and this one sees that.

    Where this one looks before, no run lets it leave between the two looks by itself.
    """
    left = events[first]
    hosts = (left.host, host) if left.evicts and left.by_chance else None
    return hosts is not None and any(
        event.host not in hosts and event.before >> first & 1 and event.conflicts(left) for event in events[first:]
    )


def _next_step(events: Sequence[RunEvent], k: int) -> int:
    """Number the next step of an event's thread: all that sleeps there wakes behind a torn store, which races move."""
    return next((n for n in range(k + 1, len(events)) if events[n].actor == events[k].actor), len(events))
