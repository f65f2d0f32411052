"""Calls on arrays that live on a device: planned by their addresses alone, and run by the device's queues.

A call comes after what its user queued for its arrays, and before what is queued for them later, as the array API
standard has it. The host does not wait for the result, unless an array is lent by DLPack alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from collectives.algorithms.catalog import PLANS_KEPT
from collectives.builder import SCRATCH
from collectives.communicator.calls.operations import Planned
from collectives.communicator.calls.planner import CallArguments, CallPlanner
from collectives.communicator.calls.products import result_shape
from cxlemu.accelerator.arrays import address_array, device_view, same_device
from cxlemu.accelerator.device import ComputeDevice, DeviceBuffer, DeviceView, Event, come_after, hand_back
from cxlemu.accelerator.plan import device_part
from cxlemu.accelerator.runner import DeviceEngine
from cxlemu.engines import Engine
from cxlemu.engines.native import NativeEngine
from cxlemu.engines.streams import Running, Watch
from cxlemu.errors import ArgumentError, RunError
from cxlemu.memory.protocol import Bytes, HostMemory
from cxlemu.plan import Plan, RankPart


@dataclass
class _OneDevice:
    """A device, and what the calls on it share: queues, scratch memory, and the events with which the last one ends.

    ``reach`` keeps the communicator's slots registered with the device.
    """

    device: ComputeDevice
    engine: DeviceEngine
    scratch: DeviceBuffer
    reach: object
    last: Sequence[Event] = ()


@dataclass(frozen=True)
class DeviceCall:
    """A planned call on a device, ready to run."""

    planned: Planned  # the call, with this rank's part of the device's plan
    # runs it, given the call under way, how long a wait may take in seconds, and who watches the peers
    run: partial[None]


@dataclass
class DeviceCalls:
    """Plans and runs the calls of one rank of a communicator whose arrays live on devices."""

    memory: HostMemory  # the rank's view of the pool
    # the communicator's slots on each card, as this host maps them: a device takes the memory of all that it registers,
    # and cards have more than this machine
    slots: Sequence[Bytes]
    planner: CallPlanner  # plans calls on arrays of the host
    engine: Engine  # what executes calls on arrays of the host; where it has a pace, no call is for arrays of a device
    _devices: dict[int, _OneDevice] = field(default_factory=dict)
    _parts: OrderedDict[int, tuple[Plan, RankPart]] = field(default_factory=OrderedDict)

    def prepare(self, asked: CallArguments) -> DeviceCall | None:
        """Check and plan a call on arrays of a device; None where all arrays are the host's."""
        x = None if asked.x is None else device_view(asked.x, "x")
        out = x if asked.out is asked.x else None if asked.out is None else device_view(asked.out, "out")
        if x is None and out is None:
            return None
        views = [view for array, view in ((asked.x, x), (asked.out, out)) if array is not None]
        device = self._device_of(views, asked.collective)
        offset = None if x is None else address_array(x)
        to = offset if out is x else None if out is None else address_array(out)
        planned = self.planner.collective(asked._replace(x=offset, out=to), on_host=False)
        return self._call(planned, [view for view in views if view is not None], device)

    def prepare_product(
        self, kind: str, a: Any, b: Any, out: Any, style: str, **cut: Any
    ) -> tuple[DeviceCall, Any] | None:
        """Check and plan a fused product on a device, as `CallPlanner.product`; None where no matrix is on a device."""
        given = [(a, "a"), (b, "b")] + ([] if out is None else [(out, "out")])
        views = [None if isinstance(each, np.ndarray) else device_view(each, role) for each, role in given]
        if all(view is None for view in views):
            return None
        device = self._device_of(views, kind)
        mine = [view for view in views if view is not None]
        left, right = map(address_array, mine[:2])
        if out is None:
            out = mine[0].kin.like(result_shape(kind, self.planner.size, left, right, style, **cut))
            made = device_view(out, "out")
            assert made is not None, "it is of the kind of a"
            mine.append(made)
        planned, _ = self.planner.product(kind, left, right, address_array(mine[2]), style, **cut)
        return self._call(planned, mine, device), out

    def _device_of(self, views: list[DeviceView | None], what: str) -> ComputeDevice:
        device = same_device(views, what)
        if isinstance(self.engine, NativeEngine) and self.engine.pacer is not None:
            raise ArgumentError(f"{what}: calls on a device take no modelled time: pass paced=False")
        return device

    def _call(self, planned: Planned, views: Sequence[DeviceView], device: ComputeDevice) -> DeviceCall:
        planned = planned._replace(part=self._lowered(planned.plan))
        buffers = [
            None if number == SCRATCH else _buffer(array, views, device) for number, array in enumerate(planned.buffers)
        ]
        return DeviceCall(planned, partial(self._run, self._on(device), views, buffers))

    def end(self) -> None:
        """Let go of devices, once their queues are empty: this host may unmap the pool from now on."""
        for device in self._devices.values():
            with suppress(RunError):  # which calls have raised
                device.engine.synchronize()
            device.reach = None
        self._devices.clear()

    def _run(
        self,
        request: _OneDevice,
        views: Sequence[DeviceView],
        buffers: Sequence[DeviceBuffer | None],
        running: Running,
        deadline_s: float,
        watch: Watch,
    ) -> None:
        device, need = request.device, running.part.buffers[SCRATCH].nbytes
        if request.scratch.nbytes < need:
            request.scratch = device.allocate(need)
        come_after(views)
        queues = {id(view.queue): view.queue for view in views}.values()
        # the call before uses the same queues and scratch memory, but not each queue for the same things
        after = [*request.last, *(device.record(queue) for queue in queues)]
        mine = [request.scratch if buffer is None else buffer for buffer in buffers]
        request.last = request.engine.run(running, mine, deadline_s=deadline_s, watch=watch, after=after)
        for queue in queues:
            for event in request.last:
                device.wait(queue, event)
        hand_back(views)

    def _on(self, device: ComputeDevice) -> _OneDevice:
        if id(device) not in self._devices:
            reach, engine = device.register(self.slots), DeviceEngine(self.memory, device)
            self._devices[id(device)] = _OneDevice(device, engine, device.allocate(0), reach)
        return self._devices[id(device)]

    def _lowered(self, plan: Plan) -> RankPart:
        """Return this rank's part of the device's plan; made once for each plan that the planner keeps."""
        kept = self._parts.get(id(plan))
        if kept is None:
            kept = self._parts[id(plan)] = plan, device_part(plan.frame, plan.layout, plan.part(self.planner.rank))
            if len(self._parts) > PLANS_KEPT:
                self._parts.popitem(last=False)
        return kept[1]


def _buffer(stand_in: Bytes, views: Sequence[DeviceView], device: ComputeDevice) -> DeviceBuffer:
    """Return the memory for which the planner's bytes stand, by their address."""
    for view in views:
        offset = stand_in.ctypes.data - view.buffer.address
        if stand_in.nbytes and 0 <= offset <= view.buffer.nbytes - stand_in.nbytes:
            return view.buffer.part(offset, stand_in.nbytes)
    assert not stand_in.nbytes, "the planner's bytes are those of an argument"
    return device.allocate(0)
