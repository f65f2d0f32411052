"""Two tenants, each a world of two processes in one pool. Red tries to reach blue's bytes, and is then thrown out."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np

from collectives import Communicator
from collectives.algorithms.catalog import recipe
from collectives.communicator.calls.planner import plan_of
from cxlemu import RankContext, launch
from cxlemu.capacity import PoolManager
from cxlemu.engines.native import NativeEngine
from cxlemu.engines.streams import Binding, Running
from cxlemu.errors import AccessError, PlanError
from cxlemu.plan import Call
from cxlemu.pool.arena import Arena
from cxlemu.pool.shm import ShmPool


def reach_out(context: RankContext, comm: Communicator, there: int) -> list[str]:
    """What becomes of a communicator, a plan and records for the engine that say ``there``, a neighbour's bytes."""
    call = Call("barrier", "line", comm.size, 0)
    plan, _ = plan_of(recipe("barrier", "line"), comm.layout, call, comm.rank)
    running = Running(call, plan.frame, plan.part(comm.rank), Binding(comm.layout, there, epoch=1, tag=call.tag()))
    refused = []
    for attempt in (
        lambda: Communicator.world(replace(context, arena=Arena(there, there + (4 << 20)))),
        lambda: context.tenancy.require(call, comm.layout, plan.frame, there),  # as before every plan of a communicator
        lambda: NativeEngine(context.pool.cards).run(running, [], deadline_s=1),  # nobody asked: its bounds refuse it
    ):
        try:
            attempt()
        except (AccessError, PlanError) as error:
            refused.append(f"{type(error).__name__}: {error}")
    return refused


def main(context: RankContext, there: int = 0) -> None:
    with Communicator.world(context) as comm:
        x = np.full(1000, comm.rank + 1, np.float32)
        comm.all_reduce(x)
        if comm.rank == 0:
            context.emit([f"{context.tenancy.lease.grant.tenant} got {x[0]:g}"])
        if there:
            if comm.rank == 0:
                context.emit(reach_out(context, comm, there))
            while True:
                comm.all_reduce(x)


if __name__ == "__main__":
    with ShmPool.create(cards=2, card_bytes=32 << 20, interleave_bytes=4096, hosts=0, max_ranks=1) as pool:
        manager = PoolManager.begin(pool, block_bytes=1 << 20)
        red, blue = manager.add("red", 8 << 20), manager.add("blue", 8 << 20)

        def told(lines: list[str]) -> None:
            print(*lines, sep="\n")
            if len(lines) > 1:
                manager.force("red")

        start = partial(launch, ranks=2, how="processes", pool_name=pool.name, on_message=told)
        with ThreadPoolExecutor() as worlds:
            hers = worlds.submit(start, partial(main, there=blue.at - red.at), tenant="red")
            worlds.submit(start, main, tenant="blue").result()
            print(repr(hers.exception()))
