"""Pairs of ranks make communicators of their own, again and again, while the other ranks do something else."""

import numpy as np

from collectives import Communicator
from cxlemu import RankContext, launch


def main(context: RankContext) -> tuple[int, ...]:
    pair = [context.rank // 2 * 2, context.rank // 2 * 2 + 1]
    for _ in range(context.rank // 2 * 100):  # ranks 0 and 1 make none
        with Communicator.of(context, pair) as comm:
            comm.barrier()
    one, two = (Communicator.of(context, pair, key=key) for key in ("one", "two"))
    x, y = np.full(10, context.rank), np.full(10, 10 * context.rank)
    first, second = (one, x), (two, y)
    pending = [comm.all_reduce(z, async_op=True) for comm, z in (first, second)[:: 1 - 2 * (context.rank % 2)]]
    for handle in pending:  # ranks of a pair call them in different orders
        handle.wait()
    return int(x[0]), int(y[0])


if __name__ == "__main__":
    print(launch(main, ranks=4, topology="laptop", how="processes"))
