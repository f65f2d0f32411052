"""A layer of two products, shared by two ranks: communication goes on while tiles are multiplied."""

import numpy as np

from collectives import Communicator
from cxlemu import RankContext, launch


def main(context: RankContext) -> float:
    with Communicator.world(context) as comm:
        random = np.random.default_rng(comm.rank)
        x = random.standard_normal((128, 512), np.float32)  # this rank's rows of the activations
        up = random.standard_normal((512, 256), np.float32)  # its columns of the first weights
        down = random.standard_normal((256, 512), np.float32)  # its rows of the second
        hidden = np.maximum(comm.all_gather_matmul(x, up), 0)  # (256, 256): all rows
        y = comm.matmul_reduce_scatter(hidden, down, comm_tile_rows=32)  # (128, 512): its rows of the sum
        return float(abs(y - comm.reduce_scatter(hidden @ down)).max() / abs(y).max())


if __name__ == "__main__":
    print(launch(main, ranks=2, topology="laptop", how="processes"))
