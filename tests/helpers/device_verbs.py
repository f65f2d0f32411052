"""Every verb that takes arrays of a device, for arrays that live wherever a test puts them."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from collectives import Communicator

RANKS = 3


def values(rank: int, count: int = 3000) -> Any:
    return np.random.default_rng(rank).standard_normal(count).astype(np.float32)


def verbs(comm: Communicator, put: Callable[[Any], Any], get: Callable[[Any], Any]) -> list[Any]:
    """Results of every verb that a device takes, for arrays that ``put`` makes; what a rank does not get is None."""
    mine, many = values(comm.rank), values(comm.rank, RANKS * 700).reshape(RANKS, 700)
    some, whole = [100, 0, 200][comm.rank], put(many)
    found = [
        comm.all_reduce(put(mine)),
        comm.all_reduce(put(mine), op="max", out=put(np.zeros_like(mine))),
        comm.all_reduce(put(mine.astype(ml_dtypes.bfloat16)), op="avg"),
        comm.reduce(put(mine), root=1),
        comm.broadcast(put(mine), root=2),
        comm.all_gather(put(mine)),
        comm.gather(put(mine), root=1),
        comm.scatter(put(many) if comm.rank == 1 else None, put(np.zeros(700, np.float32)), root=1),
        comm.scatter(put(many), put(np.zeros(700, np.float32)), root=0),
        comm.reduce_scatter(put(many), op="prod"),
        comm.all_to_all(put(many)),
        comm.scan(put(mine)),
        comm.exscan(put(mine), op="min", out=put(np.zeros_like(mine))),
        comm.all_reduce(put(mine[:7])),
        comm.all_gatherv(put(mine[: 100 * comm.rank])),
        comm.all_gatherv(put(mine[:some]), put(np.zeros(700, np.float32)), [100, 0, 200], [50, 9, 150]),
        comm.all_gatherv(whole[comm.rank], whole),
        comm.gatherv(put(mine[: 7 + comm.rank]), root=2),
        comm.scatterv(put(mine[:24]) if comm.rank == 0 else None, put(np.zeros(7 + comm.rank, np.float32))),
        comm.reduce_scatterv(put(mine[:600]), counts=[100, 200, 300]),
        comm.all_to_allv(put(mine[:600]), None, [100, 200, 300], None if comm.rank else [100] * RANKS),
        *comm.all_reduce_many([put(mine[:700]), put(many), put(mine[:0]), put(mine[:9].astype(np.int32))]),
        *comm.broadcast_many([put(mine[:5]), put(many)], root=1),
        *comm.all_gather_many([put(mine[:5]), put(mine[:9].astype(np.int64)), put(many)]),
        *comm.reduce_scatter_many([put(many), put(mine[:6])], "max"),
    ]
    comm.barrier()
    return [None if each is None else get(each) for each in found]
