"""Why a communicator was given up: as an error where it happens, as a notice on the board, as an error of the peers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from cxlemu.errors import (
    CardLostError,
    DeadlineError,
    FaultError,
    IntegrityError,
    LinkDownError,
    MismatchError,
    PeerLostError,
    PoisonError,
    RevokedError,
    RunError,
    name_ranks,
)
from cxlemu.pool.board import Board, Cause, Notice
from cxlemu.pool.session import Session

_FAULTS: dict[Cause, Callable[..., FaultError]] = {
    Cause.POISON: PoisonError,
    Cause.CARD_LOST: CardLostError,
    Cause.LINK_DOWN: LinkDownError,
    Cause.INTEGRITY: IntegrityError,
}
_CAUSES: tuple[tuple[type[RunError], Cause], ...] = (  # PeerLostError comes first: it is also a DeadlineError
    (PoisonError, Cause.POISON),
    (CardLostError, Cause.CARD_LOST),
    (LinkDownError, Cause.LINK_DOWN),
    (IntegrityError, Cause.INTEGRITY),
    (PeerLostError, Cause.PEER_LOST),
    (MismatchError, Cause.MISMATCH),
    (DeadlineError, Cause.DEADLINE),
    (RevokedError, Cause.REVOKED),
)


def publish(board: Board, session: Session, rank: int, error: BaseException) -> None:
    """Post the notice of ``error``, unless another rank told us of it.

    Where the pool is out of reach nothing can be told, and peers notice by their own deadlines.
    """
    if isinstance(error, RunError) and error.reported_by is not None:
        return
    with suppress(RunError):
        session.beat()  # raises when the pool is another run's by now
        board.post(rank, _notice_of(error))


def _notice_of(error: BaseException) -> Notice:
    cause = next((cause for kind, cause in _CAUSES if isinstance(error, kind)), Cause.FAILED)
    if isinstance(error, FaultError):
        return Notice(cause, error.where)
    return Notice(cause, error.ranks if isinstance(error, PeerLostError | MismatchError) else ())


def poll(board: Board) -> tuple[int, Notice] | None:
    """Return the rank that gave the communicator up and its notice, or None; of several the one that says most."""
    notices = board.notices()
    return min(notices.items(), key=lambda item: item[1].cause, default=None)


def lost(board: Board) -> frozenset[int]:
    """Return the ranks that any rank reports as lost."""
    notices = board.notices().values()
    return frozenset(rank for notice in notices if notice.cause == Cause.PEER_LOST for rank in notice.numbers)


def as_error(reporter: int, notice: Notice, waits: str, me: int | None = None, calls: str = "") -> RunError:
    """Make the error that a peer raises for a notice: of the cause's type, ``reported_by`` the reporter."""
    error: RunError
    reports = f"as rank {reporter} reports; {waits}"
    if notice.cause in _FAULTS:
        return _FAULTS[notice.cause](*notice.numbers, reported_by=reporter)
    match notice.cause:
        case Cause.PEER_LOST if me in notice.numbers:
            error = PeerLostError(f"rank {reporter} declared this rank, {me}, lost; {waits}", notice.numbers)
        case Cause.PEER_LOST if notice.numbers:
            ranks = notice.numbers
            error = PeerLostError(f"{name_ranks(ranks)} {'are' if len(ranks) > 1 else 'is'} lost, {reports}", ranks)
        case Cause.MISMATCH:
            error = MismatchError(f"{calls or 'ranks called different things'}, {reports}", notice.numbers)
        case Cause.DEADLINE:
            error = DeadlineError(f"a peer missed the deadline, {reports}")
        case Cause.REVOKED:
            error = RevokedError(f"rank {reporter} revoked this communicator; {waits}")
        case _:
            error = RevokedError(f"rank {reporter} failed in a call of this communicator; {waits}")
    error.reported_by = reporter
    return error
