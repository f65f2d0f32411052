"""Calls on tensors of a GPU, in the order of its streams. CI has a fake device in place of a GPU.

A synchronous call works in the current stream: it comes after what is there, and before what comes there later. One
that runs in another thread works in a stream of its group's, which comes after what was in the current stream when the
call was made; it has ended when the GPU has done it, so that its memory is free then, and whatever stream is used next.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

cuda: Any = torch.cuda


class GroupStreams:
    """The streams of a group: one on each GPU, in which its asynchronous calls work."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, Any] = {}

    def later(self, run: Callable[[], None], tensors: Sequence[torch.Tensor]) -> Callable[[], None]:
        """Let a call that another thread may run come after what the current stream has now."""
        device = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
        if device is None:
            return run
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = cuda.Stream(device)
        before = cuda.Event()
        before.record(cuda.current_stream(device))

        def in_its_stream() -> None:
            with cuda.stream(stream):
                stream.wait_event(before)
                run()
                stream.synchronize()

        return in_its_stream


def settle(tensor: torch.Tensor) -> None:
    """Wait until the GPU has done what this thread has queued for a tensor; nothing for a tensor of the CPU."""
    if tensor.is_cuda:
        cuda.current_stream(tensor.device).synchronize()
