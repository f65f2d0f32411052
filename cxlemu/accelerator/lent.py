"""Arrays that other libraries lend by DLPack alone: CUDA's, and those of fake devices.

DLPack orders one way. Before a call, the library is told our queue and lets it come after what it has queued for the
array, as the array API standard says; this is asked again in each run of a handle. But nobody tells us in which queue
the array is used next, so the host waits for the end of a call on such an array. No GPU has run CUDA's part.
"""

from functools import partial
from typing import Any

from cxlemu.accelerator.device import ComputeDevice, DeviceView
from cxlemu.accelerator.fake import DLPACK_DEVICE as FAKE_DEVICE
from cxlemu.accelerator.fake import fake_device
from cxlemu.accelerator.kin import ArrayKin
from cxlemu.dlpack import device_of, from_device
from cxlemu.errors import ArgumentError

_CUDA_DEVICES = (2, 13)  # DLPack's numbers of CUDA's memory, and of memory that it manages


def lent_view(argument: Any, role: str) -> DeviceView | None:
    """View an array that its library lends by DLPack; None if it does not live on a device."""
    device = _device(*device_of(argument, role))
    if device is None:
        return None
    queue = device.lent
    lend = partial(from_device, argument, role, device.stream_of(queue))
    array = lend()
    if not array.flags.c_contiguous:
        raise ArgumentError(f"{role} of shape {array.shape} is not contiguous: pass a contiguous copy")
    kin, writeable = ArrayKin(argument), array.flags.writeable
    return DeviceView(device, device.adopt(array), array.shape, array.dtype, queue, kin, writeable, lend)


def _device(kind: int, number: int) -> ComputeDevice | None:
    if kind == FAKE_DEVICE:
        return fake_device(number)
    if kind not in _CUDA_DEVICES:
        return None
    from cxlemu.accelerator.cuda import cuda_device  # NVIDIA's packages are imported only for their arrays

    return cuda_device(number)
