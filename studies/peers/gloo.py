"""Gloo through torch.distributed, on tensors that share NumPy's memory.

torch reduces in place only, also on ranks that are not the root: a call that must leave ``x`` as it is copies it first,
and that is part of its time.
"""

from datetime import timedelta
from typing import Any

from studies.peers.worker import Call, Prepared, Repeated, allocate, die_with_parent, serve


class Gloo:
    backend = "gloo"

    def __init__(self, rank: int, ranks: int, store: str, deadline_s: float) -> None:
        import torch
        from torch import distributed

        self.rank = rank
        self._from_numpy = torch.from_numpy
        self._distributed = distributed
        torch.set_num_threads(1)  # a rank has one core, as with every other peer
        distributed.init_process_group(
            self.backend,
            init_method=f"file://{store}",
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=deadline_s),
        )
        self.version = f"torch {torch.__version__}"

    def prepare(self, command: dict[str, Any]) -> dict[str, Prepared]:
        """Prepare a call, and make it once; see `studies.peers.worker.Implementation`."""
        buffers = allocate(command)
        x, out = (None if array is None else self._from_numpy(array) for array in buffers)
        call = self._bound(command["collective"], x, out, command["root"], command["ranks"])
        try:
            call()
        except RuntimeError as error:  # ProcessGroupGloo says so on every rank, before it sends anything
            if "support" not in str(error):
                raise
            raise NotImplementedError(str(error).splitlines()[0]) from error
        return {"call": Repeated(call, buffers)}

    def _bound(self, collective: str, x: Any, out: Any, root: int, ranks: int) -> Call:
        d, is_root = self._distributed, self.rank == root

        def all_reduce() -> None:
            out.copy_(x)
            d.all_reduce(out)

        def reduce() -> None:
            target.copy_(x)
            d.reduce(target, dst=root)

        target = x.clone() if collective == "reduce" and not is_root else out
        received = list(out.chunk(ranks)) if collective == "gather" and is_root else None
        sent = list(x.chunk(ranks)) if collective == "scatter" and is_root else None
        calls: dict[str, Call] = {
            "all_reduce": all_reduce,
            "reduce": reduce,
            "broadcast": lambda: d.broadcast(out, src=root),
            "all_gather": lambda: d.all_gather_into_tensor(out, x),
            "gather": lambda: d.gather(x, received, dst=root),
            "scatter": lambda: d.scatter(out, sent, src=root),
            "reduce_scatter": lambda: d.reduce_scatter_tensor(out, x),
            "all_to_all": lambda: d.all_to_all_single(out, x),
        }
        return calls[collective]

    def barrier(self) -> None:
        self._distributed.barrier()


def main(socket_path: str, rank: str, ranks: str, store: str, deadline_s: str) -> None:
    """Run one rank until the coordinator ends it; all arguments are words of a command line."""
    die_with_parent()
    gloo = Gloo(int(rank), int(ranks), store, float(deadline_s))
    serve(gloo, socket_path, gloo.version)
