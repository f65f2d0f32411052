"""Rank 0 hands out work and takes results from whichever rank has any; all exchange edges with their neighbours."""

import numpy as np

from collectives import ANY, Communicator
from cxlemu import RankContext, launch

WORK, RESULT, EDGE = 1, 2, 3


def main(context: RankContext) -> float:
    with Communicator.world(context) as comm:
        if comm.rank == 0:
            for rank in range(1, comm.size):
                comm.send(np.full(rank * 1000, rank, np.float32), rank, tag=WORK)
            total, out = 0.0, np.empty(1)
            for _ in range(comm.size - 1):
                status = comm.recv(out, source=ANY, tag=RESULT)
                total += out[0] * status.source
        else:
            x = np.empty(comm.probe(0, WORK).nbytes // 4, np.float32)
            comm.recv(x, 0, WORK)
            comm.send(np.array([x.sum()], np.float64), 0, tag=RESULT)
            total = 0.0
        left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
        edges = np.zeros((2, 100_000), np.int32)
        requests = [comm.irecv(edges[0], left, EDGE), comm.irecv(edges[1], right, EDGE)]
        requests += [comm.isend(np.full(100_000, comm.rank, np.int32), peer, EDGE) for peer in (left, right)]
        comm.waitall(requests)
        return float(total + edges[:, -1].sum())


if __name__ == "__main__":
    print(launch(main, ranks=4, topology="six-cards", how="processes"))
