"""Our own collectives: the ordinary call, a persistent handle, and the same in the pool or from process to process."""

import shutil
import signal
import sys
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from collectives.algorithms.choose import ZERO_COPY_MIN_BYTES
from collectives.builder import PUSH, ZERO_COPY
from collectives.communicator.calls.operations import Operation
from collectives.communicator.calls.transport import PROCESS
from collectives.communicator.communicator import Communicator
from collectives.defaults import REGION_BYTES
from cxlemu.accelerator.device import ComputeDevice
from cxlemu.accelerator.named import device_named, name_for_rank
from cxlemu.errors import ArgumentError, InputError
from cxlemu.memory import MemorySpec
from cxlemu.rounding import round_up
from cxlemu.topology import Topology
from cxlemu.units import format_bytes
from cxlemu.version import __version__
from cxlemu.world import RankContext, launch
from studies.peers.group import REFUSED
from studies.peers.on_device import device_paths
from studies.peers.worker import Buffers, Call, Prepared, Repeated, allocate, die_with_parent, serve

PAGE_BYTES = 4096
ROOTED = ("reduce", "gather", "scatter")
BOTH_IN_POOL = ("all_reduce",)  # a result that is published again need not be copied for that, either


class OurPeer:
    """One rank of ours, on a communicator of the whole world."""

    def __init__(
        self, comm: Communicator, device: ComputeDevice | None = None, direct: Communicator | None = None
    ) -> None:
        self.rank = comm.rank
        self._comm, self._device, self._direct = comm, device, direct

    def prepare(self, command: dict[str, Any]) -> dict[str, Prepared]:
        """Prepare a call's paths: "call", "handle", "process", where the heap has room "pool", and those of a device.

        "process" and those of a device are there if they are asked for.
        """
        private = allocate(command)
        paths: dict[str, Prepared] = {
            "call": Repeated(self._call(command, private), private),
            "handle": Repeated(self._handle(command, private, "auto"), private),
        }
        if self._direct is not None:
            paths["process"] = Repeated(self._handle(command, private, "auto", self._direct), private)
        if (pooled := self._in_pool(command, private)) is not None:
            own = Buffers(pooled.x if private.x is not None else None, pooled.out)
            paths["pool"] = Repeated(self._handle(command, pooled, _asked_in_pool(command)), own)
        if self._device is not None:
            paths |= device_paths(private, self._device, lambda buffers: self._handle(command, buffers, "auto"))
        return paths

    def _call(self, command: dict[str, Any], buffers: Buffers) -> Call:
        """Bind the call as a program writes it.

        A partial, or ** in the call, would copy what is given by name every time.
        """
        name, root, (x, out) = command["collective"], command["root"], buffers
        call = getattr(self._comm, name)
        if name == "broadcast":
            return lambda: call(out, root=root)
        if name in ROOTED:
            return lambda: call(x, out=out, root=root)
        return lambda: call(x, out=out)

    def _handle(
        self, command: dict[str, Any], buffers: Buffers, variant: str, comm: Communicator | None = None
    ) -> Operation:
        name, (x, out) = command["collective"], buffers
        root = {"root": command["root"]} if name in ROOTED else {}
        init = getattr((comm or self._comm).persistent, name)
        operation: Operation
        if name == "broadcast":
            operation = init(out, root=command["root"], variant=variant)
        else:
            operation = init(x, out=out, variant=variant, **root)
        return operation

    def _in_pool(self, command: dict[str, Any], private: Buffers) -> Buffers | None:
        """Allocate the same arrays in the pool, as far as they are wanted there; None where its heap has no room.

        Zero copy wants x there; where peers write the result, that one, and not x. Every rank makes the root's array.
        """
        name, input_bytes, output_bytes = command["collective"], command["input_bytes"], command["output_bytes"]
        block = output_bytes // command["ranks"]
        pushes = not command["in_place"] and self._comm.choice(name, block, out_in_pool=True).variant == PUSH.name
        if name == "scatter":
            input_bytes = command["ranks"] * output_bytes
        if _asked_in_pool(command) == PUSH.name:
            pushes, output_bytes = True, command["ranks"] * input_bytes
        try:
            if pushes:
                return Buffers(private.x, self._make(output_bytes))
            x = self._make(output_bytes if command["in_place"] else input_bytes)
            out = self._make(output_bytes) if name in BOTH_IN_POOL else private.out
        except ArgumentError:  # on every rank: the heap is symmetric
            return None
        return Buffers(x, x if command["in_place"] else out)

    def _make(self, nbytes: int) -> Any:
        return self._comm.heap.zeros(nbytes // 4, np.float32)

    def barrier(self) -> None:
        self._comm.barrier()


def _asked_in_pool(command: dict[str, Any]) -> str:
    """Say which variant a call with arrays in the pool asks for: with a root, `auto` takes none of theirs."""
    if command["collective"] == "scatter" and command["output_bytes"] >= ZERO_COPY_MIN_BYTES:
        return ZERO_COPY.name
    if command["collective"] == "gather" and not command["in_place"] and command["input_bytes"] >= ZERO_COPY_MIN_BYTES:
        return PUSH.name
    return "auto"


def _rank_main(
    context: RankContext, socket_path: str, heap_bytes: int | None, accelerator: str, transport: str
) -> None:
    device = device_named(name_for_rank(accelerator, context.rank), context.rank) if accelerator else None
    with ExitStack() as stack:
        comm = stack.enter_context(Communicator.world(context, heap_bytes=heap_bytes, engine="native"))
        direct = None
        if transport == PROCESS:
            direct = stack.enter_context(Communicator.world(context, heap_bytes=0, transport=transport))
        heap, peer = format_bytes(comm.heap.nbytes), OurPeer(comm, device, direct)
        serve(peer, socket_path, f"cxlemu {__version__}, {heap} of the pool for each rank's arrays")


def main(
    socket_path: str, ranks: str, config: str, deadline_s: str, heap_bytes: str, accelerator: str, transport: str
) -> None:
    """Run the parent of all ranks: it owns the pool, and is told to stop by SIGTERM.

    All arguments are words of a command line.
    """
    die_with_parent(signal.SIGTERM)
    topology, heap = _with_room(Topology.load(config), int(ranks), int(heap_bytes))
    if transport == PROCESS:
        hosts = topology.hosts.model_copy(update={"ranks_per_host": int(ranks)})
        topology = topology.model_copy(update={"hosts": hosts})
    try:
        launch(
            partial(_rank_main, socket_path=socket_path, heap_bytes=heap, accelerator=accelerator, transport=transport),
            ranks=int(ranks),
            topology=topology,
            memory=MemorySpec("shm"),
            how="processes",
            deadline_s=float(deadline_s),
            heap_bytes="cards",
        )
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(REFUSED)


def _with_room(topology: Topology, ranks: int, heap_bytes: int) -> tuple[Topology, int | None]:
    """Enlarge cards so that every rank's arrays fit, where this machine has the memory; pages are backed as touched."""
    sharers = -(-ranks // topology.pool_card_count)
    card_bytes = round_up(2 * (sharers * heap_bytes + REGION_BYTES) + (4 << 20), PAGE_BYTES)
    if card_bytes <= topology.card_bytes or 2 * card_bytes * topology.card_count > shutil.disk_usage("/dev/shm").free:
        return topology, None
    emulation = topology.emulation.model_copy(update={"card_bytes": card_bytes})
    return topology.model_copy(update={"emulation": emulation}), round_up(heap_bytes, PAGE_BYTES)
