"""A workload replayed on a modelled fabric, in virtual time: its collectives as our plans, its computing as recorded.

Every rank computes one thing at a time, on its processor and on its accelerator, and is in one collective at a time. A
collective begins when all its ranks may and takes what its plan takes between just these ranks in the virtual engine;
so ranks that come late make the others wait. Collectives of several groups that begin at the same moment share the
fabric, in one run of the virtual engine. A message takes what the plan `send` takes between its two ranks. It is sent
when its sender is ready, and received when it has come and its receiver, if ready later, has read it from the pool; a
rank sends one message at a time and receives one at a time. A memory node is a load from the pool or a store to it, one
at a time for each rank. Nodes begin in the order in which they may begin, and those that may begin at the same moment
in the order of ranks and nodes. Not modelled: that collectives slow down others which began earlier, and are slowed
down by them.
"""

from cxlemu.chakra.workload import ChakraWorkload
from cxlemu.topology import Accelerator, Topology
from studies.traces.outcome import Called, Computed, Replay
from studies.traces.schedule import Schedule

__all__ = ["Called", "Computed", "Replay", "replay"]


def replay(workload: ChakraWorkload, topology: Topology, accelerator: Accelerator | None = None) -> Replay:
    """Replay a workload on a modelled fabric, in virtual time."""
    return Schedule(workload, topology, accelerator).run()
