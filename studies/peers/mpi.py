"""Open MPI and MPICH, through mpi4py's upper-case methods, which take NumPy's buffers as they are.

Run by mpirun: ``mpi.main(SOCKET)`` is one rank.
"""

from typing import Any

from studies.peers.worker import Call, Prepared, Repeated, allocate, die_with_parent, serve


class Mpi:
    """One rank of the MPI library that mpi4py was built for."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self._comm = MPI.COMM_WORLD
        self.rank: int = self._comm.Get_rank()
        self.version = MPI.Get_library_version().strip("\0").splitlines()[0]

    def prepare(self, command: dict[str, Any]) -> dict[str, Prepared]:
        """Prepare a call; see `studies.peers.worker.Implementation`."""
        x, out = buffers = allocate(command)
        return {"call": Repeated(self._bound(command["collective"], x, out, command["root"]), buffers)}

    def _bound(self, collective: str, x: Any, out: Any, root: int) -> Call:
        comm = self._comm
        calls: dict[str, Call] = {
            "all_reduce": lambda: comm.Allreduce(x, out),
            "reduce": lambda: comm.Reduce(x, out, root=root),
            "broadcast": lambda: comm.Bcast(out, root=root),
            "all_gather": lambda: comm.Allgather(x, out),
            "gather": lambda: comm.Gather(x, out, root=root),
            "scatter": lambda: comm.Scatter(x, out, root=root),
            "reduce_scatter": lambda: comm.Reduce_scatter_block(x, out),
            "all_to_all": lambda: comm.Alltoall(x, out),
        }
        return calls[collective]

    def barrier(self) -> None:
        self._comm.Barrier()


def main(socket_path: str) -> None:
    """Run one rank until the coordinator, which listens at ``socket_path``, ends it."""
    die_with_parent()
    mpi = Mpi()
    serve(mpi, socket_path, mpi.version)
