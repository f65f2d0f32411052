"""A search that goes on in another call: the places of its last execution, as plain data for a journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from faults.programs.every.events import Actor, RunEvent
from faults.programs.every.search import Branch, TriedPlace

_LINES = ("fetched", "arrived", "cached", "posted", "stored", "torn")
_PLAIN = ("stage", "steps", "stores", "leaves", "ends", "owed")
# Of an event: what is not needed behind its run.
RUNS_OWN = frozenset({"number", "before", "races", "flushed", "dropped", "linger", "old", "look", "replaced", "apart"})
COUNTS = ("executions", "faults", "met", "runs", "steps", "seconds")  # of EveryCoverage
FIELDS = frozenset({*COUNTS, "undecided", "unfired", "search", "state", "dirty", "events", "places"})


def is_saved(record: Mapping[str, Any]) -> bool:
    """Say whether a record has all parts of a saved search."""
    return record.keys() == FIELDS


def saved(places: list[TriedPlace]) -> dict[str, Any]:
    """Write places: each event once, as most of them sleep at many places."""
    events: dict[RunEvent, int] = {}

    def event(its: RunEvent | None) -> int:
        return -1 if its is None else events.setdefault(its, len(events))

    def tree(branches: list[Branch]) -> list[Any]:
        """Write each branch before those behind it, which are counted: nested lists could be too deep."""
        plain, left = [], branches[::-1]
        while left:
            its = left.pop()
            plain.append([its.actor, event(its.event), len(its.behind)])
            left += its.behind[::-1]
        return plain

    def place(its: TriedPlace) -> dict[str, Any]:
        plain = {field.name: getattr(its, field.name) for field in fields(TriedPlace)}
        return plain | {
            "event": event(its.event),
            "enabled": sorted(its.enabled),
            "asleep": [[actor, event(step)] for actor, step in its.asleep.items()],
            "done": [[actor, event(step)] for actor, step in its.done.items()],
            "todo": tree(its.todo),
        }

    return {"places": [place(its) for its in places], "events": [_event(its) for its in events]}


def restored(record: Mapping[str, Any]) -> list[TriedPlace]:
    """Read places that `saved` has written."""
    events: list[RunEvent | None] = [*map(_event_of, record["events"]), None]

    def steps(pairs: Any) -> dict[Actor, Any]:
        return {_actor(actor): events[step] for actor, step in pairs}

    def tree(plain: Any) -> list[Branch]:
        roots: list[Branch] = []
        open_lists: list[tuple[list[Branch], int]] = []  # each with how many branches are still to come there
        for actor, step, count in plain:
            branch = Branch(_actor(actor), events[step])
            while open_lists and not open_lists[-1][1]:
                open_lists.pop()
            into, left = open_lists.pop() if open_lists else (roots, 1)
            into.append(branch)
            open_lists += [(into, left - 1)] * (into is not roots) + [(branch.behind, count)]
        return roots

    return [
        TriedPlace(
            **its
            | {
                "event": events[its["event"]],
                "enabled": frozenset(its["enabled"]),
                "asleep": steps(its["asleep"]),
                "done": steps(its["done"]),
                "todo": tree(its["todo"]),
                "spare": [_actor(actor) for actor in its["spare"]],
            }
        )
        for its in record["places"]
    ]


def _event(its: RunEvent) -> list[Any]:
    lines = [sorted(getattr(its, name)) for name in _LINES]
    return [its.actor, its.host, its.waits_for, lines, [getattr(its, name) for name in _PLAIN]]


def _event_of(plain: Any) -> RunEvent:
    actor, host, waits_for, lines, rest = plain
    touched: dict[str, Any] = {name: frozenset(map(tuple, its)) for name, its in zip(_LINES, lines, strict=True)}
    return RunEvent(
        _actor(actor),
        host,
        **touched,
        waits_for=tuple(waits_for) if waits_for else None,
        **dict(zip(_PLAIN, rest, strict=True)),
    )


def _actor(plain: Any) -> Actor:
    return plain if isinstance(plain, int) else tuple(plain)
