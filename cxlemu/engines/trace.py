"""What a virtual run did, as events on tracks, and as a file that Perfetto (ui.perfetto.dev) and Chrome open.

A track is a rank's stream, a copy engine, a card or a link. Slices of one track never overlap: a stream executes one
instruction at a time, and a resource carries one transfer. COMPUTEs of a stream do overlap: they take as many tracks
of their rank as run at the same time.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from cxlemu.engines.virtual import VirtualRun
from cxlemu.plan import Instruction, Op
from cxlemu.units import format_bytes

GROUPS = ("ranks", "engines", "cards", "links")  # Perfetto's processes, from top to bottom


class TraceEvent(NamedTuple):
    group: str  # one of GROUPS
    track: str
    name: str
    begin_ns: int
    end_ns: int
    arguments: dict[str, int | str]  # what a viewer shows beside it


def events(run: VirtualRun, *, start_ns: int = 0) -> Iterator[TraceEvent]:
    """Yield all that a logged run did, instructions first, then transfers; ``start_ns`` is added to every time."""
    ranks = range(len(run.model.hosts))
    lanes: dict[int, list[int]] = {}
    members = [{rank: index for index, rank in enumerate(call.members or ranks)} for call in run.calls]
    for begin_ns, end_ns, queue_ns, rank, call, stream, index in run.executed.tolist():
        plan = run.calls[call].plan
        records = plan.part(members[call][rank]).streams[stream]
        instruction = records.instructions[index]
        track = f"rank{rank} {records.name}"
        if instruction.op == Op.COMPUTE:
            track = f"rank{rank} computes {_lane(lanes.setdefault(rank, []), begin_ns, end_ns)}"
        arguments: dict[str, int | str] = {"call": str(plan.call), "at": index} | _arguments(instruction)
        if queue_ns:
            arguments["queue_ns"] = queue_ns
        kernel = f" {plan.frame.kernels[instruction.arg]}" if instruction.op == Op.COMPUTE else ""
        name = instruction.op.name + kernel + (f" {format_bytes(instruction.nbytes)}" if instruction.nbytes else "")
        yield TraceEvent("ranks", track, name, start_ns + begin_ns, start_ns + end_ns, arguments)
    for begin_ns, end_ns, nbytes, number, rank in run.reserved.tolist():
        resource = run.model.resources[number]
        yield TraceEvent(
            f"{resource.kind}s",
            resource.name,
            f"rank{rank} {format_bytes(nbytes)}",
            start_ns + begin_ns,
            start_ns + end_ns,
            {"bytes": nbytes, "rank": rank},
        )


def _lane(ends_ns: list[int], begin_ns: int, end_ns: int) -> int:
    """Take the first track that is free, or one more."""
    lane = next((lane for lane, its_ns in enumerate(ends_ns) if its_ns <= begin_ns), len(ends_ns))
    ends_ns[lane : lane + 1] = [end_ns]
    return lane


def _arguments(instruction: Instruction) -> dict[str, int | str]:
    if instruction.op in (Op.SIGNAL, Op.WAIT, Op.SIGNAL_DATA, Op.WAIT_DATA):
        return {"doorbell": instruction.arg, "round": instruction.value}
    if instruction.op == Op.WAIT_ALL:
        return {"group": instruction.arg, "round": instruction.value}
    return {"bytes": instruction.nbytes} if instruction.nbytes else {}


def perfetto(found: Iterable[TraceEvent]) -> bytes:
    """Write events in Chrome's trace format: a process for each group, a thread for each track, by name."""
    slices = sorted(found, key=lambda e: (GROUPS.index(e.group), _natural(e.track), e.begin_ns, e.end_ns))
    tracks: dict[tuple[str, str], int] = {}
    for event in slices:
        tracks.setdefault((event.group, event.track), len(tracks) + 1)
    rows: list[dict[str, Any]] = []
    for pid, group in enumerate(GROUPS, 1):
        if any(group == track for track, _ in tracks):
            rows.append(_named("process_name", pid, 0, group))
            rows.append({"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}})
    for (group, track), tid in tracks.items():
        pid = GROUPS.index(group) + 1
        rows.append(_named("thread_name", pid, tid, track))
        rows.append({"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}})
    for event in slices:
        rows.append(
            {
                "ph": "X",
                "name": event.name,
                "cat": event.group,
                "pid": GROUPS.index(event.group) + 1,
                "tid": tracks[event.group, event.track],
                "ts": event.begin_ns / 1000,  # microseconds
                "dur": (event.end_ns - event.begin_ns) / 1000,
                "args": event.arguments,
            }
        )
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    return f'{{"displayTimeUnit":"ns","traceEvents":[\n{lines}\n]}}\n'.encode()


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _natural(text: str) -> list[tuple[int, str]]:
    """Make a sort key that puts rank2 before rank10."""
    words = "".join(c if c.isdigit() else f"\0{c}\0" for c in text).replace("\0\0", "").split("\0")
    return [(int(word), "") if word.isdigit() else (-1, word) for word in words if word]
