"""Two ranks whose arrays live in the pool: collectives on them copy nothing to publish it."""

import numpy as np

from collectives import Communicator
from cxlemu import RankContext, launch


def main(context: RankContext) -> tuple[float, str]:
    with Communicator.world(context) as comm:
        x = comm.heap.empty((256, 256), np.float32)
        x[:] = comm.rank + 1
        comm.all_reduce(x)  # in place: rank k folds slice k, which its peers read in x itself
        total = float(x[0, 0])
        del x  # when all ranks have let it go, its place is free again
        return total, comm.choice("all_reduce", 256 << 10, in_pool=True).reason


if __name__ == "__main__":
    print(launch(main, ranks=2, topology="laptop", how="processes"))
