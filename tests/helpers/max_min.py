"""Max-min fair sharing, as an oracle: every flow under way gets its fair share of each resource, all the time."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Flow(NamedTuple):
    nbytes: float
    rates: Mapping[str, float]  # of every resource on its way, in GB/s


def _shares(flows: Mapping[int, Flow]) -> dict[int, float]:
    """Progressive filling: all rates grow together until a resource is full; its flows keep what they have."""
    left = {name: rate for flow in flows.values() for name, rate in flow.rates.items()}
    share: dict[int, float] = {}
    while len(share) < len(flows):
        users = {name: [k for k in flows if k not in share and name in flows[k].rates] for name in left}
        fullest = min((name for name in users if users[name]), key=lambda name: left[name] / len(users[name]))
        each = left[fullest] / len(users[fullest])
        for k in users[fullest]:
            share[k] = each
            for name in flows[k].rates:
                left[name] -= each
    return share


def max_min_ends_ns(sequences: Sequence[Sequence[Flow]]) -> list[float]:
    """When each sequence ends, if its flows go one after another and all sequences begin at 0."""
    at, ends, now = [0] * len(sequences), [0.0] * len(sequences), 0.0
    left = [its[0].nbytes for its in sequences]
    while under_way := {k: its[at[k]] for k, its in enumerate(sequences) if at[k] < len(its)}:
        share = _shares(under_way)
        step = min(left[k] / share[k] for k in under_way)
        now += step
        for k in under_way:
            left[k] -= step * share[k]
            if left[k] < 1e-6:
                at[k] += 1
                ends[k] = now
                left[k] = sequences[k][at[k]].nbytes if at[k] < len(sequences[k]) else 0
    return ends
