"""From times to rows: medians, ratios to the best peer and to the machine's limit, and their geometric means."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from collectives import sizes
from cxlemu.plan import Call
from studies.peers import bounds as limits


class Lane(NamedTuple):
    """One way to make a call, of one implementation."""

    name: str
    path: str


OURS, LIMIT = "cxlemu", "limit"
NO_PEERS = (OURS, LIMIT, "nccl")  # of our call on arrays of the host
ON_DEVICE = {Lane(OURS, "device"), Lane(OURS, "hand"), Lane("nccl", "call")}  # no limit of cores is theirs
LEAST_US = 1e-3  # below the timer's resolution
IMPOSSIBLE = 0.5  # of the machine's limit, measured in the same minute: less is no time of a call
SIZE_CLASSES = (("<= 1 KiB", 0, 1 << 10), ("<  1 MiB", (1 << 10) + 1, (1 << 20) - 1), (">= 1 MiB", 1 << 20, 1 << 62))


@dataclass(frozen=True, slots=True)
class RatioRow:
    """One cell, with sources rewritten before each call or not. Ratios are time by time: below 1 we are faster."""

    collective: str
    ranks: int
    bytes: int
    rewritten: bool
    ours_us: float
    handle_us: float | None
    pool_us: float | None  # a handle, on arrays that live in the pool; None where they have no room
    process_us: float | None  # a handle, from process to process; None where that is not asked for
    peers_us: dict[str, float]
    limit_us: float
    best_peer: str | None
    ratio_to_best_peer: float | None
    ratio_to_limit: float
    moves_us: float
    round_trip_us: float
    iterations: dict[str, int]
    spread_us: dict[str, tuple[float, float]]  # the least and the greatest of each median's times
    wrong: dict[str, int]  # elements, for each implementation
    absent: dict[str, str]  # peers that have no such collective
    impossible: tuple[str, ...] = ()  # ways to call whose time lies far below the limit: the row says nothing
    measured: int = 1  # how many times the cell was measured, because times were impossible
    device_us: float | None = None  # a handle, on arrays of a device
    hand_us: float | None = None  # the same by hand: copied to pinned memory, called, copied back
    nccl_us: float | None = None


class Timing(NamedTuple):
    calls_us: float  # the call, with the rewriting of its source, if there was any
    rewrite_us: float  # the rewriting alone


@dataclass
class Samples:
    """One lane's timings, by whether the source was rewritten."""

    iterations: int
    taken: dict[bool, list[Timing]] = field(default_factory=dict)

    def us(self, rewritten: bool) -> list[float]:
        """Return each timing without the rewriting.

        The least of all rewriting times is subtracted: other load adds to both.
        """
        taken = self.taken[rewritten]
        rewrite_us = min(timing.rewrite_us for timing in taken)
        return [max(timing.calls_us - rewrite_us, LEAST_US) for timing in taken]


def row(
    call: Call,
    samples: Mapping[Lane, Samples],
    rewritten: bool,
    wrong: Mapping[str, int],
    absent: Mapping[str, str],
    measured: int = 1,
) -> RatioRow:
    taken = {lane: each.us(rewritten) for lane, each in samples.items()}
    us = {lane: statistics.median(each) for lane, each in taken.items()}
    moves_us, round_trip_us = us[Lane(LIMIT, "moves")], us[Lane(LIMIT, "line")]
    bound_us = limits.limit_us(moves_us, round_trip_us)
    ours_us = us[Lane(OURS, "call")]
    peers_us = {lane.name: time_us for lane, time_us in us.items() if lane.name not in NO_PEERS}
    best = min(peers_us, key=peers_us.__getitem__, default=None)
    return RatioRow(
        collective=call.collective,
        ranks=call.ranks,
        bytes=sizes.size_bytes(call.collective, call.nbytes, call.ranks),
        rewritten=rewritten,
        ours_us=ours_us,
        handle_us=us.get(Lane(OURS, "handle")),
        pool_us=us.get(Lane(OURS, "pool")),
        process_us=us.get(Lane(OURS, "process")),
        peers_us=peers_us,
        limit_us=bound_us,
        best_peer=best,
        ratio_to_best_peer=ours_us / peers_us[best] if best else None,
        ratio_to_limit=ours_us / bound_us,
        moves_us=moves_us,
        round_trip_us=round_trip_us,
        iterations={"/".join(lane): each.iterations for lane, each in samples.items()},
        spread_us={"/".join(lane): (min(each), max(each)) for lane, each in taken.items()},
        wrong=dict(wrong),
        absent=dict(absent),
        impossible=tuple("/".join(lane) for lane, time_us in us.items() if _is_impossible(lane, time_us, bound_us)),
        measured=measured,
        device_us=us.get(Lane(OURS, "device")),
        hand_us=us.get(Lane(OURS, "hand")),
        nccl_us=us.get(Lane("nccl", "call")),
    )


def _is_impossible(lane: Lane, time_us: float, bound_us: float) -> bool:
    if lane in ON_DEVICE:
        return time_us <= LEAST_US
    return lane.name != LIMIT and (time_us <= LEAST_US or time_us < IMPOSSIBLE * bound_us)


class Mean(NamedTuple):
    """Geometric means of a size class's ratios; None where the class has no such ratio."""

    size_class: str
    rewritten: bool
    rows: int
    to_best_peer: float | None
    handle_to_best_peer: float | None
    pool_to_best_peer: float | None
    process_to_best_peer: float | None
    to_limit: float | None
    device_to_hand: float | None = None
    device_to_nccl: float | None = None


def means(rows: Sequence[RatioRow]) -> list[Mean]:
    """Return the means by size class and overall, for each mode, of the rows without impossible times."""
    averages, rows = [], [row for row in rows if not row.impossible]
    for rewritten in sorted({row.rewritten for row in rows}):
        for name, least, most in (*SIZE_CLASSES, ("all sizes", 0, 1 << 62)):
            chosen = [row for row in rows if row.rewritten == rewritten and least <= row.bytes <= most]
            if chosen:
                handles, pools, direct = (
                    [us / row.peers_us[row.best_peer] for row in chosen if (us := of(row)) and row.best_peer]
                    for of in (attrgetter("handle_us"), attrgetter("pool_us"), attrgetter("process_us"))
                )
                averages.append(
                    Mean(
                        name,
                        rewritten,
                        len(chosen),
                        _mean([row.ratio_to_best_peer for row in chosen]),
                        _mean(handles),
                        _mean(pools),
                        _mean(direct),
                        _mean([row.ratio_to_limit for row in chosen]),
                        _mean([_ratio(row.device_us, row.hand_us) for row in chosen]),
                        _mean([_ratio(row.device_us, row.nccl_us) for row in chosen]),
                    )
                )
    return averages


def _ratio(us: float | None, other_us: float | None) -> float | None:
    return us / other_us if us is not None and other_us is not None else None


def _mean(ratios: Sequence[float | None]) -> float | None:
    known = [ratio for ratio in ratios if ratio is not None]
    return statistics.geometric_mean(known) if known else None
