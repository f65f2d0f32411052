"""Tensors in the pool, as torch asks a group for them: FSDP2's staging buffers, and whatever a program wants there.

model.set_allocate_memory_from_process_group_for_comm(True)    # of FSDP2
group._get_backend(device).allocate_tensor(1 << 20, dtype=torch.float32, device=device)
"""

import warnings
from typing import Any

import numpy as np
import torch

from cxlemu.errors import ArgumentError


class PoolTensors:
    """Makes tensors in the heap of a group's communicator. A rank makes them alone, whenever it likes."""

    comm: Any
    _full = False  # whether a warning said so

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        return bool(torch.device(device).type == "cpu")

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Make a tensor whose memory is this rank's part of the pool; its room comes back when it is dropped.

        Where the heap is full the tensor is an ordinary one, and a warning says so once: calls are as right with it.
        """
        if not self.supports_tensor_alloc(device):
            raise ValueError(f"cxl: the pool has memory for tensors of the CPU, not of {device}")
        try:
            memory = self.comm.heap.local.empty(int(size) * dtype.itemsize, np.uint8)
        except ArgumentError as error:
            if not self._full:
                self._full = True
                warnings.warn(f"cxl: a tensor is not in the pool: {error}", RuntimeWarning, stacklevel=2)
            return torch.empty(int(size), dtype=dtype)
        return torch.from_numpy(memory).view(dtype)
