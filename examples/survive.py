"""Three of four ranks go on when one is killed in the middle of a stream of all-reduces."""

import os
import signal

import numpy as np

from collectives import Communicator
from cxlemu.errors import PeerLostError
from cxlemu.world import RankContext, launch_survivors


def main(context: RankContext) -> tuple[list[int], float]:
    comm = Communicator.world(context, deadline_s=3.0)
    for step in range(2000):
        if context.rank == 1 and step == 1000:
            os.kill(os.getpid(), signal.SIGKILL)
        x = np.full(1000, 1.0)
        try:
            comm.all_reduce(x)
        except PeerLostError:
            comm = comm.shrink()
            x.fill(1.0)
            comm.all_reduce(x)  # once more
    return list(comm.members), float(x[0])


if __name__ == "__main__":
    ended = launch_survivors(main, ranks=4, topology="six-cards", how="processes")
    print(ended.results, ended.failures)
