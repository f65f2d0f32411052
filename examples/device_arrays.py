"""Four ranks whose arrays live on a fake device: copies are queued, late, and in an order that a seed chooses."""

import numpy as np

from collectives import Communicator
from cxlemu import RankContext, launch
from cxlemu.accelerator.arrays import FakeArray
from cxlemu.accelerator.fake import FakeDevice


def main(context: RankContext) -> float:
    device = FakeDevice(seed=context.rank, dma_writes=context.topology.hosts.dma_writes)
    with Communicator.world(context) as comm:
        x = FakeArray.of(device, np.full(1000, comm.rank, np.float32))  # queued, not done yet
        comm.all_reduce(x)  # comes after it
        everyone = comm.all_gather(x)  # an array on the device
        return float(everyone.get().sum())  # waits for what was queued


if __name__ == "__main__":
    print(launch(main, ranks=4, topology="six-cards", how="processes"))
