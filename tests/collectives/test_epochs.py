"""The last epochs of a communicator: calls are right up to the end, and then all ranks are told in the same call."""

from typing import Any

import numpy as np
import pytest

from collectives import Communicator
from collectives.communicator.calls.runner import EPOCHS_END
from cxlemu.errors import RunError
from cxlemu.memory import MemorySpec
from cxlemu.plan.layout import doorbell_word
from cxlemu.topology import Topology
from cxlemu.world import RankContext, launch
from tests.helpers.tiers import PATIENT_S

LAPTOP = Topology.load("laptop")
RANKS = 3


def jump(context: RankContext, comm: Communicator, epoch: int) -> None:
    """As if every round up to ``epoch`` had been: this rank is done with all of them. All ranks do this."""
    layout = comm.layout
    card, offset = layout.doorbell_address(layout.done(comm.rank), epoch)
    context.memory.signal(card, comm._base + offset, doorbell_word(epoch - 1, 0))
    comm._runner.sequencer.epoch = epoch
    context.session.barrier(PATIENT_S)


def test_an_hour_is_left_when_calls_are_refused() -> None:
    assert 2**47 - EPOCHS_END > 3600 / 64e-9
    assert doorbell_word(2**47 + 2**46, 65535).bit_length() <= 64


@pytest.mark.parametrize("how", ["call", "persistent", "async"])
@pytest.mark.parametrize("kind", ["shm", "emulated"])
def test_calls_are_right_up_to_the_last_epoch_and_then_refused(kind: str, how: str) -> None:
    def main(context: RankContext) -> tuple[int, str, float]:
        comm = Communicator.world(context)
        x = np.ones(16, np.float32)
        operation = comm.persistent.all_reduce(x)
        jump(context, comm, EPOCHS_END - 5)
        calls: dict[str, Any] = {
            "call": lambda: comm.all_reduce(x),
            "persistent": operation,
            "async": lambda: comm.all_reduce(x, async_op=True).wait(),
        }
        made = 0
        with pytest.raises(RunError) as caught:
            for _ in range(100):
                x[:] = 1
                calls[how]()
                assert (x == RANKS).all()
                made += 1
        with pytest.raises(RunError, match="has used up its"):
            calls[how]()
        again = comm.shrink()
        x[:] = 2
        again.all_reduce(x)
        return made, str(caught.value), float(x[0])

    found = launch(main, ranks=RANKS, topology=LAPTOP, memory=MemorySpec(kind), deadline_s=PATIENT_S)
    (made, said, total), *_ = found
    assert found == [found[0]] * RANKS and total == 2 * RANKS
    assert made == 5  # each takes an epoch
    assert (
        said == f"this communicator has used up its {EPOCHS_END} rounds: shrink() makes another one of the same ranks"
    )
