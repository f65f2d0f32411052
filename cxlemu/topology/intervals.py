"""Answers as intervals: a figure of a topology lies in a range, so what follows from it does as well.

The range of a figure is the one that its file states. Without one, an assumed time, of which only the order is known,
may be half or twice as long, an assumed rate or share a quarter less or more, and what has a source or was fitted is
taken as it stands. Every answer is computed

- with all figures as they stand, which is its middle;
- with each figure alone at both ends of its range: which one moves the answer most, alone;
- with all figures at once, ``SAMPLES`` times in a Latin hypercube: the range of each figure is cut into as many parts,
  and every part is met once. Half of the parts lie below the figure's value. Which one moves the answer most, jointly,
  is the one whose rank correlates best with the answer's.

A figure that several topologies take from one entry, or state alike, has the same value in all of them in every run.

Its interval reaches from the least to the largest of all these. The same figures give the same interval everywhere.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from cxlemu.topology.document import Key, dotted
from cxlemu.topology.provenance import Provenances

SAMPLES = 200
SHARE = 0.25  # by which an assumed rate or share without a range may be less or more
TIMES = 2  # as long, or as short, may an assumed time be
UNITS = ("gbytes_per_s", "_efficiency")  # bytes are not varied: blocks and granules are powers of two
OTHERS = ("half_rate_tile", "share_of_rate")
SEED = 43

Described = TypeVar("Described")  # a Topology, an Accelerator, or a tuple of them: a key begins with a number then


class Uncertain(NamedTuple):
    """A figure that may have another value."""

    key: Key  # where it stands
    name: str  # the same for people
    low: float
    value: float  # as the file has it
    high: float
    twins: tuple[Key, ...] = ()  # where else it stands: other topologies have the same figure

    @property
    def keys(self) -> tuple[Key, ...]:
        return (self.key, *self.twins)

    def at(self, share: float) -> float:
        """Return the figure at a share of its range, from 0 to 1; at 0.5 it has its value."""
        if share < 0.5:
            return self.low + 2 * share * (self.value - self.low)
        return self.value + (2 * share - 1) * (self.high - self.value)


class Interval(NamedTuple):
    """An answer, from where to where it goes, and by what."""

    low: float
    middle: float  # with all figures as they stand
    high: float
    alone: str  # the figure that moves it most while the others keep their values; "" where nothing moves it
    alone_low: float  # the answer's ends then
    alone_high: float
    jointly: str  # the figure that moves it most while all are varied; "" where nothing moves it
    correlation: float  # of its rank with the answer's, from -1 to 1

    def holds(self, low: float, high: float) -> bool:
        """Whether a measured range meets the interval."""
        return low <= self.high and self.low <= high

    def describe(self, unit: str) -> str:
        """Describe the interval for people, with its ``unit``: ``83.1 to 118.4 us, moved most by costs.call_ns``."""
        digits = ".1f" if unit == "us" else ".3g"
        if not self.alone and not self.jointly:
            return f"{self.middle:{digits}} {unit}, moved by nothing"
        alone = f"{self.alone} ({self.alone_low:{digits}} to {self.alone_high:{digits}} alone"
        jointly = f"{self.correlation:+.2f} jointly)"
        most = f"{alone}, {jointly}" if self.alone == self.jointly else f"{alone}) and {self.jointly} ({jointly}"
        return f"{self.low:{digits}} to {self.high:{digits}} {unit}, moved most by {most}"


def uncertain(described: Any) -> list[Uncertain]:
    """List the figures of a topology or an accelerator, or of several in a tuple, that have a range.

    Figures of several are one where name, value and range are the same, and what they are taken from.
    """
    if isinstance(described, tuple):
        alike: dict[object, tuple[Uncertain, list[int], list[Key]]] = {}
        for index, part in enumerate(described):
            for figure in uncertain(part):
                its = alike.setdefault((figure[1:], _origin(part, figure.key)), (figure, [], []))
                its[1].append(index)
                its[2].append((index, *figure.key))
        return [
            figure._replace(
                key=keys[0],
                name=f"{' and '.join(described[index].name for index in indices)}: {figure.name}",
                twins=tuple(keys[1:]),
            )
            for figure, indices, keys in alike.values()
        ]
    found = []
    provenance: Provenances = described.provenance
    for key, source in provenance.items():
        if key[0] == "cards" and isinstance(key[1], str):  # one group, written without the list around it
            key = ("cards", 0, *key[1:])
        value, last = value_at(described, key), str(key[-1])
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if source.range is not None:
            low, high = source.range
        elif source.kind == "assumed" and last.endswith("_ns"):
            low, high = (value / TIMES, value * TIMES)
        elif source.kind == "assumed" and (last.endswith(UNITS) or last in OTHERS):
            low, high = (value * (1 - SHARE), value * (1 + SHARE))
        else:
            continue
        if last.endswith("_efficiency") or last == "share_of_rate":
            high = min(high, 1.0)
        if low < high:
            found.append(Uncertain(key, named(described, key), low, value, high))
    return found


def changed(described: Described, figures: Mapping[Key, float]) -> Described:
    """Return a topology or an accelerator, or a tuple of them, with other values of some figures.

    Times and sizes stay whole.
    """
    for key, value in figures.items():
        whole = isinstance(value_at(described, key), int) or str(key[-1]).endswith("_ns")
        described = _with(described, key, round(value) if whole else value)
    return described


def variations(figures: Sequence[Uncertain], samples: int = SAMPLES) -> list[dict[Key, float]]:
    """Return what to change in each run: nothing, then each figure alone at its ends, then all of them at once."""
    alone = [dict.fromkeys(figure.keys, end) for figure in figures for end in (figure.low, figure.high)]
    draw = random.Random(SEED)
    strata = [sorted(range(samples), key=lambda _: draw.random()) for _ in figures]
    joint = [
        {
            key: figure.at((parts[number] + 0.5) / samples)
            for figure, parts in zip(figures, strata, strict=True)
            for key in figure.keys
        }
        for number in range(samples if figures else 0)
    ]
    return [{}, *alone, *joint]


def interval(figures: Sequence[Uncertain], answers: Sequence[float], runs: Sequence[Mapping[Key, float]]) -> Interval:
    """Sum up the answers of the runs that `variations` lists."""
    middle, (alone, jointly) = answers[0], np.split(np.asarray(answers[1:], float), [2 * len(figures)])
    low, high = min(answers), max(answers)
    if not figures or low == high:
        return Interval(low, middle, high, "", middle, middle, "", 0.0)
    ends = alone.reshape(-1, 2)
    most = int(np.ptp(ends, axis=1).argmax())
    its_low, its_high = min(*ends[most], middle), max(*ends[most], middle)
    joint = np.array([[run[figure.key] for figure in figures] for run in runs[1 + 2 * len(figures) :]])
    correlations = [_correlation(column, jointly) for column in joint.T]
    best = int(np.abs(correlations).argmax())
    alone_by, jointly_by = figures[most].name, figures[best].name
    return Interval(low, middle, high, alone_by, float(its_low), float(its_high), jointly_by, correlations[best])


def intervals(figures: Sequence[Uncertain], answers: Sequence[Mapping[str, float]]) -> dict[str, Interval]:
    """Sum up several answers, by their names, of the runs that `variations` lists."""
    runs = variations(figures, len(answers) - 1 - 2 * len(figures))
    return {name: interval(figures, [answer[name] for answer in answers], runs) for name in answers[0]}


def _correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Spearman's coefficient; 0 where one of the two does not change."""
    if len(one) < 2 or not np.ptp(one) or not np.ptp(other):
        return 0.0
    ranks = np.array([np.unique(answers, return_inverse=True)[1] for answers in (one, other)], float)
    return float(np.corrcoef(ranks)[0, 1])


def _origin(described: Any, key: Key) -> object:
    """What says how a figure came about."""
    single = (key[0], *key[2:]) if key[:2] == ("cards", 0) else key  # one group, written without the list around it
    return described.provenance.get(key) or described.provenance.get(single)


def value_at(node: Any, key: Key) -> Any:
    """Return what stands at a key; None where the key leads nowhere."""
    for part in key:
        node = node[part] if isinstance(part, int) else getattr(node, part, None)
        if node is None:
            return None
    return node


def _with(node: Any, key: Key, value: Any) -> Any:
    if not key:
        return value
    first, rest = key[0], key[1:]
    if isinstance(first, int):
        return (*node[:first], _with(node[first], rest, value), *node[first + 1 :])
    return node.model_copy(update={first: _with(getattr(node, first), rest, value)})


def named(described: Any, key: Key) -> str:
    """Write a key with the names that list entries have: ``links.nic.latency_ns``, not ``links[0].latency_ns``."""
    words: list[str] = []
    for end, part in enumerate(key, 1):
        entry = value_at(described, key[:end])
        words.append(str(getattr(entry, "name", part)) if isinstance(part, int) else dotted((part,)))
    return ".".join(words)
