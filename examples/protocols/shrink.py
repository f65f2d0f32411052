"""Ranks decide which of them go on without the others, while each may take any other for dead, at any time.

That is how a communicator shrinks. What each rank decides for itself, by looking at all votes, may be taken back: rank
0 sees that rank 1 has not voted, and begins again, while rank 1 votes and goes on. ``fixed`` is cxlemu/pool/ballots.py,
the code that communicators run.

cxlemu explore examples/protocols/shrink.py:broken -n 3
cxlemu explore examples/protocols/shrink.py:fixed -n 3
cxlemu explore examples/protocols/shrink.py:hosts_crash -n 3
"""

from cxlemu.pool.ballots import BallotAction, BallotStep, agree
from cxlemu.pool.board import Stage, Vote
from faults.explore.programs import Crash, Fence, Invalidate, Load, Signal, Steps, protocol

RANKS, BALLOTS = 4, 16  # at most; higher ballots are not explored
READY, JOINS_AGAIN = 1, 2
FAILED = -1


def one_group(memory, results):
    groups = {memory[f"group{rank}"] for rank in range(RANKS)} - {0}
    assert len(groups) <= 1, f"ranks went on with those that {sorted(groups)} named"


LINES = [f"{word}{rank}" for word in ("vote", "group", "fate") for rank in range(RANKS)]


@protocol(*LINES, final=one_group)
def broken(rank: int, ranks: int) -> Steps[None]:
    yield Signal(f"vote{rank}", READY)
    while True:
        votes = []
        for other in range(ranks):
            yield Invalidate(f"vote{other}")
            votes.append((yield Load(f"vote{other}")))
        if all(vote == READY for vote in votes):
            yield Signal(f"group{rank}", 1 + ranks)
            return
        if JOINS_AGAIN in votes or (rank == 0 and votes[1] == 0):  # rank 1 gave no sign of life for a deadline
            break
    yield Signal(f"vote{rank}", JOINS_AGAIN)
    yield Signal(f"group{rank}", 1 + rank)  # with those that join rank 0 again


def coded(vote: Vote) -> int:
    assert vote.promised < BALLOTS
    return ((vote.stage * BALLOTS + vote.promised) * BALLOTS + vote.accepted) * (RANKS + 1) + (vote.value or 0)


def decoded(word: int) -> Vote:
    rest, value = divmod(word, RANKS + 1)
    rest, accepted = divmod(rest, BALLOTS)
    stage, promised = divmod(rest, BALLOTS)
    return Vote(Stage(stage), promised, accepted, value or None)


def does(rank: int, step: BallotStep) -> Steps[object]:
    """A step of the ballots, as steps of memory."""
    if step.do == BallotAction.VOTE:
        yield Signal(f"vote{rank}", coded(step.vote))
    elif step.do == BallotAction.FENCE:
        yield Fence()
    elif step.do == BallotAction.LOOK:
        yield Invalidate(f"vote{step.rank}")
        vote = yield Load(f"vote{step.rank}")
        return decoded(vote)
    return rank + 1  # PROPOSE: who goes on is what this rank says


def decides(rank: int, ranks: int, ballots: int, fails: bool = False) -> Steps[int]:
    """A rank that leads as soon as it is asked, whatever the others do, until it has led ``ballots``.

    Whether a rank leads is all that depends on whom it takes for dead. One that waits instead looks, and may take long.
    """
    steps, result = agree(rank, ranks), None
    while True:
        try:
            step = steps.send(result)
        except StopIteration as end:
            return end.value
        if fails and (yield Load(f"fate{rank}")):
            return FAILED
        if step.do == BallotAction.LEAD:
            if not ballots:
                return 0  # its deadline is over
            ballots -= 1
            result = True
        else:
            result = yield from does(rank, step)


def goes_on(rank: int, ranks: int, ballots: int) -> Steps[None]:
    decided = yield from decides(rank, ranks, ballots)
    yield Signal(f"group{rank}", decided)


@protocol(*LINES, final=one_group)
def fixed(rank: int, ranks: int) -> Steps[None]:
    """The first rank and the last one lead, each of which takes the other for dead."""
    return goes_on(rank, ranks, ballots=int(rank in (0, ranks - 1)))


@protocol(*LINES, final=one_group)
def all_lead(rank: int, ranks: int) -> Steps[None]:
    """Every rank takes all others for dead."""
    return goes_on(rank, ranks, ballots=1)


@protocol(*LINES, final=one_group)
def all_lead_twice(rank: int, ranks: int) -> Steps[None]:
    return goes_on(rank, ranks, ballots=2)


def fails(rank: int, ranks: int, failing: range, *, crash: bool) -> Steps[None]:
    """The last rank is fate: of the others, those of ``fixed``, some fail before any of their steps, or never."""
    if rank == ranks - 1:
        for other in failing:
            yield Signal(f"fate{other}", 1)
        return
    ballots = int(rank in (0, ranks - 2))
    decided = yield from decides(rank, ranks - 1, ballots, fails=rank in failing)
    if decided == FAILED:
        if crash:
            yield Crash()
        decided = yield from decides(rank, ranks - 1, ballots)
    yield Signal(f"group{rank}", decided)


@protocol(*LINES, final=one_group)
def hosts_crash(rank: int, ranks: int) -> Steps[None]:
    return fails(rank, ranks, range(ranks - 1), crash=True)


@protocol(*LINES, final=one_group)
def leader_crashes(rank: int, ranks: int) -> Steps[None]:
    return fails(rank, ranks, range(1), crash=True)


@protocol(*LINES, final=one_group)
def ranks_begin_again(rank: int, ranks: int) -> Steps[None]:
    """An error ends a rank's part in the middle, and its program calls shrink once more."""
    return fails(rank, ranks, range(ranks - 1), crash=False)


@protocol(*LINES, final=one_group)
def leader_begins_again(rank: int, ranks: int) -> Steps[None]:
    return fails(rank, ranks, range(1), crash=False)
