"""How long steps of training take on a modelled fabric: what each call took, beside what the virtual engine says."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from collectives.communicator.arrays import dtype_name
from collectives.communicator.calls.planner import CallArguments
from collectives.communicator.communicator import Communicator
from collectives.contracts import COLLECTIVES
from cxlemu.cost import CostModel
from cxlemu.engines.virtual import VirtualCall, simulate
from cxlemu.errors import CxlemuError

Key = tuple[str, str, int, str, int]  # collective, op, root, dtype, elements


class PacedSteps:
    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell = tell
        self._changed = threading.Lock()
        self._model_us: dict[Key, float | None] = {}  # by the virtual engine
        self._now: list[tuple[Key, float]] = []  # calls since the last step, and what they took, in modelled us
        self._steps: list[dict[str, Any]] = []
        self._begin = time.perf_counter()
        register_optimizer_step_post_hook(self._stepped)

    def around(self, comm: Communicator) -> TimedVerbs:
        return TimedVerbs(comm, self)

    def leave(self) -> None:
        with self._changed:
            steps, self._steps = self._steps, []
        if steps:
            self._tell("steps", steps=steps)

    def made(self, comm: Communicator, key: Key, arguments: CallArguments, seconds: float) -> None:
        pacer = comm._context.pacer
        assert pacer is not None
        with self._changed:
            if key not in self._model_us:
                self._model_us[key] = _virtual_us(comm, arguments)
            self._now.append((key, seconds * 1e6 / pacer.time_scale))

    def _stepped(self, optimizer: Any, given: Any, named: Any) -> None:
        now = time.perf_counter()
        with self._changed:
            calls, self._now = self._now, []
            virtual = [self._model_us[key] for key, _ in calls]
            known = [(took, times) for (_, took), times in zip(calls, virtual, strict=True) if times is not None]
            self._steps.append(
                {
                    "wall_s": now - self._begin,
                    "calls": len(calls),
                    "not_modelled": len(calls) - len(known),
                    "paced_us": sum(took for took, _ in known),
                    "virtual_us": sum(virtual_us for _, virtual_us in known),
                }
            )
            self._begin = now


class TimedVerbs:
    """A communicator's verbs, which note how long they take; everything else is the communicator's."""

    def __init__(self, comm: Communicator, steps: PacedSteps) -> None:
        self._comm, self._steps = comm, steps

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._comm, name)
        if name not in COLLECTIVES or name.endswith("v"):
            return member
        signature = inspect.signature(member)
        if "x" not in signature.parameters:  # a barrier, a message
            return member

        def timed(*given: Any, **named: Any) -> Any:
            bound = signature.bind(*given, **named)
            bound.apply_defaults()
            its_own = bound.arguments
            x, out = its_own["x"], its_own.get("out")
            any_array: Any = x if x is not None else out
            op, root = its_own.get("op", "none"), its_own.get("root", 0)
            key = (name, op, root, dtype_name(any_array, reduces=False), any_array.size)
            begin = time.perf_counter()
            result = member(*given, **named)
            seconds = time.perf_counter() - begin
            if out is None and (COLLECTIVES[name].one_buffer or "root" not in its_own):
                out = x  # in place
            arguments = CallArguments(name, x, out, op, root, "auto")
            self._steps.made(self._comm, key, arguments, seconds)
            return result

        return timed


def _virtual_us(comm: Communicator, arguments: CallArguments) -> float | None:
    try:
        plan = comm._planner.collective(arguments).plan
        model = CostModel.of(comm._context.topology, comm.size)
        return simulate(model, [VirtualCall(plan)], warm=True).time_ns / 1000
    except CxlemuError:  # a call that no plan of its own has: the table counts it
        return None
