"""Two tenants of one pool: each gets capacity while the other runs, and no plan of one touches what the other holds."""

from concurrent.futures import ThreadPoolExecutor
from mmap import mmap

import numpy as np

from collectives.algorithms import catalog
from collectives.layouts import layout_for
from cxlemu.capacity import FabricManager, GuardedEngine
from cxlemu.engines.streams import Binding, Running
from cxlemu.errors import AccessError, CapacityError
from cxlemu.plan import Call

CARDS = [np.frombuffer(mmap(-1, 16 << 20), np.uint8) for _ in range(2)]  # whole pages, as real cards have them
manager = FabricManager(card_bytes=16 << 20, cards=2, block_bytes=1 << 20, memory=CARDS)
red, blue = manager.add("red", 4 << 20), manager.add("blue", 8 << 20)  # of each card

layout = layout_for(ranks=2, cards=2, card_bytes=red.nbytes, interleave_bytes=64 << 10)
call = Call("all_gather", "all", ranks=2, nbytes=4096)
plan = catalog.build(catalog.recipe("all_gather", "all"), layout, call)


def run(rank: int) -> np.ndarray:
    """One rank's part of the plan, inside red's grant."""
    part = plan.part(rank)
    buffers = [np.full(buffer.nbytes, rank, np.uint8) for buffer in part.buffers]
    running = Running(plan.call, plan.frame, part, Binding(layout, red.at, epoch=1, tag=plan.call.tag()))
    GuardedEngine(manager, red).run(running, buffers, deadline_s=10)
    return buffers[1]


if __name__ == "__main__":
    manager.check("red", plan, red.at)  # it may touch nothing but red's bytes
    with ThreadPoolExecutor(2) as ranks:
        print([int(result.sum()) for result in ranks.map(run, range(2))])
    for attempt in (
        lambda: manager.check("red", plan, blue.at),  # in blue's bytes
        lambda: manager.add("green", 5 << 20),  # more than is left
        lambda: manager.force("red") and run(0),  # of what was taken away
    ):
        try:
            attempt()
        except (AccessError, CapacityError) as error:
            print(error)
