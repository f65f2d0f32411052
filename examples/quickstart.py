"""Four ranks on four emulated hosts, each a process with a cache of its own, around a pool of six cards."""

import numpy as np

from collectives import Communicator
from cxlemu import RankContext, launch


def main(context: RankContext) -> float:
    with Communicator.world(context) as comm:
        x = np.full(1000, comm.rank, np.float32)
        comm.all_reduce(x)  # in place, the sum by default
        everyone = comm.all_gather(x[:2])  # shape (4, 2)
        pending = comm.all_reduce(x, op="avg", async_op=True)
        evens = comm.split(color=comm.rank % 2)
        evens.barrier()
        pending.wait()
        return float(x[0] + everyone.sum())


if __name__ == "__main__":
    print(launch(main, ranks=4, topology="six-cards", how="processes"))
