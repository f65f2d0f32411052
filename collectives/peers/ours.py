"""Our own collectives, through the ordinary call, and through a persistent handle where the communicator has them."""

from __future__ import annotations

import signal
from functools import partial
from typing import Any

from collectives.communicator import Communicator
from collectives.peers.worker import Buffers, Repeated, allocate, die_with_parent, serve
from cxlemu import __version__
from cxlemu.memory import MemorySpec
from cxlemu.world import RankContext, launch


class Ours:
    def __init__(self, comm: Communicator) -> None:
        self.rank = comm.rank
        self._comm = comm

    def prepare(self, command: dict[str, Any]) -> tuple[Buffers, dict[str, Repeated]]:
        x, out = buffers = allocate(command)
        name = command["collective"]
        if name == "broadcast":
            arrays: tuple[Any, ...] = (out,)
            arguments: dict[str, Any] = {"root": command["root"]}
        else:
            arrays, arguments = (x,), {"out": out}
            if name in ("reduce", "gather", "scatter"):
                arguments["root"] = command["root"]
        paths: dict[str, Repeated] = {
            "call": Repeated(partial(getattr(self._comm, name), *arrays, **arguments), buffers.x)
        }
        make_handle = getattr(self._comm, f"{name}_init", None)
        if make_handle is not None:
            paths["handle"] = Repeated(make_handle(*arrays, **arguments), buffers.x)
        return buffers, paths

    def barrier(self) -> None:
        self._comm.barrier()


def _rank_main(context: RankContext, socket_path: str) -> None:
    with Communicator.world(context, engine="native") as comm:
        serve(Ours(comm), socket_path, f"cxlemu {__version__}")


def main(socket_path: str, ranks: str, config: str, deadline_s: str) -> None:
    """The parent of all ranks: it owns the pool, and is told to stop by SIGTERM."""
    die_with_parent(signal.SIGTERM)
    launch(
        partial(_rank_main, socket_path=socket_path),
        ranks=int(ranks),
        topology=config,
        memory=MemorySpec("shm"),
        how="processes",
        deadline_s=float(deadline_s),
    )
