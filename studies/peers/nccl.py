"""NCCL through torch.distributed, on tensors of one GPU for each rank, beside ours on arrays of the same GPUs.

NOT TESTED on a GPU: tests put Gloo in its place.
"""

from typing import Any

from studies.peers.gloo import Gloo
from studies.peers.worker import Buffers, Call, OnADevice, Prepared, allocate, die_with_parent, serve


class OnTensors(OnADevice):
    """A call on tensors of a GPU, repeated by Python. A time ends when the GPU has done it."""

    def __init__(self, call: Call, tensors: tuple[Any, Any], buffers: Buffers, torch: Any) -> None:
        super().__init__(call, buffers)
        self._tensors, self._torch = tensors, torch

    def once(self) -> None:
        """Copy the source there, make the call, and copy the result back."""
        (x, out), held = self._tensors, self.buffers
        if x is not None:
            x.copy_(self._torch.from_numpy(held.x))
        self._call()
        if out is not None:
            held.out[:] = out.cpu().numpy()  # type: ignore[index]

    def _fill(self) -> None:
        if self._tensors[0] is not None:
            self._tensors[0].fill_(1.0)

    def _wait(self) -> None:
        if self._torch.cuda.is_available():
            self._torch.cuda.synchronize()


class NcclPeer(Gloo):
    """One rank of NCCL, with the GPU of its number; arguments as of `Gloo`."""

    backend = "nccl"

    def __init__(self, rank: int, ranks: int, store: str, deadline_s: float) -> None:
        import torch

        self._torch, self._place = torch, "cpu"
        if self.backend == "nccl":
            torch.cuda.set_device(rank)
            self._place = f"cuda:{rank}"
        super().__init__(rank, ranks, store, deadline_s)

    def prepare(self, command: dict[str, Any]) -> dict[str, Prepared]:
        """Prepare a call; see `studies.peers.worker.Implementation`."""
        buffers = allocate(command)
        out = self._tensor(buffers.out)
        x = out if buffers.x is buffers.out else self._tensor(buffers.x)
        call = self._bound(command["collective"], x, out, command["root"], command["ranks"])
        return {"call": OnTensors(call, (x, out), buffers, self._torch)}

    def _tensor(self, array: Any) -> Any:
        return None if array is None else self._torch.from_numpy(array.copy()).to(self._place)


def main(socket_path: str, rank: str, ranks: str, store: str, deadline_s: str) -> None:
    """Run one rank until the coordinator ends it; arguments as of `studies.peers.gloo.main`."""
    die_with_parent()
    nccl = NcclPeer(int(rank), int(ranks), store, float(deadline_s))
    serve(nccl, socket_path, nccl.version)
