"""What an error says, and that it says the same in another process."""

import pickle

import pytest

from cxlemu.errors import (
    CardLostError,
    CutOffError,
    FaultError,
    IntegrityError,
    LinkDownError,
    PeerLostError,
    PoisonError,
)

FAULTS = {
    PoisonError(2, 4096): "card 2 is poisoned at byte 4096",
    CardLostError(1, reported_by=3): "card 1 is lost, as rank 3 reports",
    LinkDownError(0): "the link of host 0 is down",
    CutOffError(
        1, 4, ": switch leaf-2 failed", reported_by=2
    ): "host 1 has no route to card 4: switch leaf-2 failed, as rank 2 reports",
    IntegrityError(
        2, 5, reported_by=0
    ): "data that rank 2 published, from card 5 on, did not arrive as sent, as rank 0 reports",
}


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
def test_a_fault_says_where_and_who_saw_it_in_any_process(error: FaultError) -> None:
    told = pickle.loads(pickle.dumps(error))
    assert str(told) == str(error) == FAULTS[error]
    assert type(told) is type(error) and vars(told) == vars(error)
    assert error.exit_code == 1


def test_a_lost_peer_is_named_in_any_process() -> None:
    told = pickle.loads(pickle.dumps(PeerLostError("rank 3 left", (3,))))
    assert (type(told), str(told), told.ranks) == (PeerLostError, "rank 3 left", (3,))
