"""Chakra nodes of what torch's profiler saw of a rank: its collectives and messages over the pool, and its computing.

Read are Kineto's files (`export_chrome_trace`) of runs with ``record_shapes=True`` on the backend cxl:

    cxl:all_reduce ...    a collective; from beginning to end, if it is synchronous
    cxl:send, cxl:recv    a message
    cxl:wait              the rank computes on when the call that it names has ended
    Optimizer.step        the rank computes on when all calls before have ended: DDP waits where no profiler looks
    cpu_op                computing: the time in which any operator of torch runs, but those within a call

What lies between two of the first four is one node of computing, as long as operators ran. Calls of a group come one
after another. Time outside operators (Python, reading data) is left out.
"""

import json
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cxlemu.chakra.files import FILE_BYTES_MAX, Node
from cxlemu.chakra.schema import COLLECTIVES, NodeType
from cxlemu.errors import PlanFileError
from cxlemu.files import read_file

CALL = "cxl:"
WAIT = "cxl:wait"
STEP = "Optimizer.step"
NUMBER_MAX = 1 << 52  # of microseconds and bytes
_KINDS = {f"{name}{how}": name for name in COLLECTIVES for how in ("", "_coalesced")}
Span = tuple[float, float]


@dataclass(frozen=True)
class KinetoRank:
    nodes: list[Node]
    groups: dict[str, list[int]]  # the ranks of each group in which it made a call, but for the world


def read(path: Path, rank: int) -> KinetoRank:
    """Read the trace of a rank of torch's world; a PlanFileError says in one sentence what is wrong with the file."""
    try:
        document = json.loads(read_file(path, FILE_BYTES_MAX))
    except OSError as error:
        raise PlanFileError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise PlanFileError(f"{path} is not JSON: {error}") from None
    events = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(events, list):
        raise PlanFileError(f"{path} is not a trace of torch's profiler: it has no traceEvents")
    try:
        return _Reading(str(path), rank, [event for event in events if _is_range(event)]).done()
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise PlanFileError(f"{path}: the profiler's metadata of a call is damaged: {error!r}") from None


def _is_range(event: Any) -> bool:
    return isinstance(event, dict) and event.get("ph") == "X" and isinstance(event.get("name"), str)


@dataclass
class _Reading:
    file: str
    rank: int
    events: list[dict[str, Any]]
    nodes: list[Node] = field(default_factory=list)
    groups: dict[str, list[int]] = field(default_factory=dict)
    _of_call: dict[int, int] = field(default_factory=dict)  # call: its node
    _last_of: dict[str, int] = field(default_factory=dict)  # group: the node of its last call
    _cpu: tuple[int, ...] = ()  # what the next node of computing comes after

    def done(self) -> KinetoRank:
        ours = [event for event in self.events if event["name"].startswith((CALL, STEP))]
        ours.sort(key=lambda event: _span(event)[0])
        busy = _Busy(self._operators([event for event in ours if not self._asynchronous(event)]))
        now = float("-inf")
        for event in ours:
            begin, end = _span(event)
            self._compute(busy.within(now, begin))
            self._step(event)
            now = max(now, begin if self._asynchronous(event) or event["name"].startswith(STEP) else end)
        self._compute(busy.within(now, float("inf")))
        if not self._of_call:
            raise PlanFileError(f"{self.file} has no call of the backend cxl: profile with record_shapes=True")
        return KinetoRank(self.nodes, self.groups)

    def _asynchronous(self, event: dict[str, Any]) -> bool:
        return event["name"] != WAIT and bool(self._about(event).get("Async", False))

    def _operators(self, calls: Iterable[dict[str, Any]]) -> list[Span]:
        """When operators ran, but for those within synchronous calls and waits, which are part of these."""
        within: defaultdict[Any, list[Span]] = defaultdict(list)  # by thread
        for event in calls:
            if event["name"].startswith(CALL):
                within[event.get("tid")].append(_span(event))
        operators = []
        for event in self.events:
            if event.get("cat") == "cpu_op":
                (begin, end), inside = _span(event), within[event.get("tid")]
                index = bisect(inside, (begin, float("inf"))) - 1
                if index < 0 or end > inside[index][1]:
                    operators.append((begin, end))
        return operators

    def _compute(self, time_us: float) -> None:
        if (us := round(time_us)) > 0:
            self._cpu = (self._add("computing", NodeType.COMP, self._cpu, us, is_cpu_op=True),)

    def _step(self, event: dict[str, Any]) -> None:
        name = event["name"].removeprefix(CALL)
        if event["name"].startswith(STEP):
            self._cpu = (*self._cpu, *self._last_of.values())
        elif event["name"] == WAIT:
            if (node := self._of_call.get(int(self._about(event)["Call"]))) is not None:
                self._cpu = (*self._cpu, node)
        else:
            about = self._about(event)
            group, ranks = str(about["Process Group Name"]), json.loads(about["Process Group Ranks"])
            if about["Rank"] != self.rank:
                raise PlanFileError(
                    f"{self.file} belongs to rank {about['Rank']}, not {self.rank}: give files in rank order"
                )
            if not isinstance(ranks, list) or self.rank not in ranks or any(type(rank) is not int for rank in ranks):
                raise ValueError(f"the group has the ranks {ranks!r:.40}")
            if not 0 <= (nbytes := int(about["In msg bytes"])) <= NUMBER_MAX:
                raise ValueError(f"{nbytes} bytes")
            fields: dict[str, Any] = {"is_cpu_op": False, "comm_size": nbytes}
            if about["Process Group Description"] != "default_pg":
                self.groups[group], fields["pg_name"] = ranks, group
            after = (*self._cpu, *([self._last_of[group]] if group in self._last_of else ()))
            node = self._call(name, about, fields, after, len(ranks))
            self._last_of[group] = self._of_call[int(about["Call"])] = node
            if not self._asynchronous(event):
                self._cpu = (node,)

    def _call(
        self, name: str, about: dict[str, Any], fields: dict[str, Any], after: tuple[int, ...], ranks: int
    ) -> int:
        if name in ("send", "recv"):
            peer = int(about["Dst Rank" if name == "send" else "Src Rank"])
            if peer < 0:
                raise PlanFileError(f"{self.file}: a receive from any source does not record the sender")
            fields |= {"comm_tag": int(about["Tag"]), "comm_dst" if name == "send" else "comm_src": peer}
            return self._add(name, NodeType.COMM_SEND if name == "send" else NodeType.COMM_RECV, after, **fields)
        if name not in _KINDS:
            raise PlanFileError(f"{self.file}: Chakra has no collective {name[:40]!r}")
        if name == "scatter":  # Chakra's size is what the root brings
            fields["comm_size"] *= ranks
        return self._add(name, NodeType.COMM_COLL, after, comm_type=COLLECTIVES[_KINDS[name]], **fields)

    def _add(self, name: str, kind: NodeType, after: tuple[int, ...], us: int = 0, **fields: int | str | bool) -> int:
        self.nodes.append(Node(len(self.nodes), name, kind, tuple(dict.fromkeys(after)), us, fields))
        return len(self.nodes) - 1

    def _about(self, event: dict[str, Any]) -> dict[str, Any]:
        about = event.get("args")
        return about if isinstance(about, dict) else {}


def _span(event: dict[str, Any]) -> Span:
    begin, took = float(event["ts"]), float(event.get("dur", 0.0))
    if not (abs(begin) <= NUMBER_MAX and took <= NUMBER_MAX):  # neither is infinite, or no number
        raise ValueError(f"a range begins at {begin} us and takes {took} us")
    return begin, begin + max(0.0, took)


class _Busy:
    """How long operators ran, from any moment to any other, however they overlap."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._begins: list[float] = []
        self._before: list[float] = []  # how long they ran before each begin
        self._ends: list[float] = []
        for begin, end in sorted(spans):
            if self._ends and begin <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._before.append(self._until(begin))
                self._begins.append(begin)
                self._ends.append(end)

    def within(self, begin: float, end: float) -> float:
        return max(0.0, self._until(end) - self._until(begin))

    def _until(self, moment: float) -> float:
        index = bisect(self._begins, moment) - 1
        return 0.0 if index < 0 else self._before[index] + min(moment, self._ends[index]) - self._begins[index]
