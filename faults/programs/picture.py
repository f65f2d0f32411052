"""The picture of a finding: its chain in an execution that goes wrong, on the abstract machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from faults.campaign.explain import Held, Signalled, Story, StoryEvent
from faults.campaign.picture import svg
from faults.explore.exhaustive import ENGINES
from faults.explore.result import Budget
from faults.litmus import run as litmus_run
from faults.litmus.language import Litmus, parse
from faults.machine.program import Do
from faults.machine.schedule import Act, MachineMove, Schedule
from faults.machine.state import MachineState
from faults.machine.steps import Machine, replay
from faults.machine.text import rows
from faults.programs.chain import Chain

_BUDGET = Budget(states=100_000, seconds=10.0)
_WRITER, _LINE = 0, 0
# The role of a step of the writer, A, and of the reader, B.
_ROLES = (
    {Do.STORE: "store", Do.FLUSH: "flush", Do.FENCE: "fence", Do.SIGNAL: "published"},
    {Do.WAIT: "told", Do.INVALIDATE: "drop", Do.FLUSH: "drop", Do.LOAD: "access", Do.STORE: "access"},
)


def picture(chain: Chain, line: str, hosts: Sequence[str], positions: Mapping[str, str]) -> str | None:
    """Draw how a chain goes wrong, as SVG; None if no execution has the chain's outcome."""
    litmus = parse(chain.broken.encode(), "a finding's chain")
    schedule = litmus_run.run(litmus, _BUDGET, ENGINES[0]).witness(litmus.condition(chain.outcome))
    return None if schedule is None else svg(_Teller(litmus, schedule, chain.outcome, positions).story(line, hosts))


class _Teller:
    def __init__(self, litmus: Litmus, schedule: Schedule, outcome: str, positions: Mapping[str, str]) -> None:
        self.machine, self.schedule, self.outcome, self.positions = (
            Machine(litmus.program),
            schedule,
            outcome,
            positions,
        )
        self.states = replay(self.machine, schedule)
        self.words = [k for k, word in enumerate(litmus.program.words) if word.line == _LINE]
        self.versions: dict[tuple[int, ...], int] = {}
        self.names: list[str] = []
        self._version(
            tuple(word.initial for word in litmus.program.words if word.line == _LINE), "as the pool was at first"
        )

    def story(self, line: str, hosts: Sequence[str]) -> Story:
        moves = list(self._events())
        last = max((k for k, (_, move) in enumerate(moves) if self._does(move) == Do.LOAD), default=len(moves) - 1)
        wrong = "reads the old version" if self.outcome == "B.r == 0" else f"ends with {self.outcome}"
        events = [event for event, _ in moves]
        events[last] = StoryEvent(**{**vars(events[last]), "wrong": wrong})
        signals = [k for k, (_, move) in enumerate(moves) if self._does(move) == Do.SIGNAL]
        waits = [k for k, (_, move) in enumerate(moves) if self._does(move) == Do.WAIT]
        pairs = [
            Signalled(signal, next(k for k in waits if k > signal))
            for signal in signals
            if waits and waits[-1] > signal
        ]
        return Story(line, tuple(hosts), tuple(self.names), tuple(events), tuple(pairs))

    def _events(self) -> Iterator[tuple[StoryEvent, tuple[int, MachineMove]]]:
        before = self._held(self.states[0], "")
        events = list(rows(self.machine, self.schedule))
        for number, (move, row) in enumerate(zip(self.schedule, events, strict=True)):
            role = self._role(number, move)
            held = self._held(self.states[number + 1], self.positions.get(role, row.text))
            own = move.act is Act.STEP and not row.text.endswith("begun")
            if held != before or own:
                place = "nature" if row.thread < 0 else self.positions.get(role, "")
                yield StoryEvent(row.host, row.text, place, *held), (number, move)
            before = held

    def _does(self, event: tuple[int, MachineMove]) -> Do | None:
        number, move = event
        if move.act is not Act.STEP:
            return None
        step = self.machine.step_of(self.states[number], move.who)
        return step.do if step else None

    def _role(self, number: int, move: MachineMove) -> str:
        does = self._does((number, move))
        return _ROLES[min(move.who, 1)].get(does, "") if does is not None else ""

    def _version(self, values: tuple[int, ...], author: str) -> int:
        if values not in self.versions:
            self.versions[values] = len(self.versions)
            self.names.append(author)
        return self.versions[values]

    def _held(self, state: MachineState, author: str) -> tuple[tuple[Held, ...], int]:
        caches = []
        for host in range(self.machine.program.hosts):
            cached, posted = state.caches[host][_LINE], state.posted[host][_LINE]
            caches.append(
                Held(
                    self._version(cached.values, author) if cached else None,
                    bool(cached and cached.dirty),
                    self._version(posted[-1].values, author) if posted else None,
                )
            )
        return tuple(caches), self._version(tuple(state.pool[k] for k in self.words), author)
