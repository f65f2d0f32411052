"""A program whose ranks a launcher starts: mpirun -np 3 python examples/under_a_launcher.py"""

import numpy as np

from collectives import Communicator
from cxlemu.world import from_environment

with from_environment(topology="laptop") as context, Communicator.world(context) as comm:
    x = comm.all_reduce(np.full(4, comm.rank, np.float32))
    if comm.rank == 0:
        print(x)
