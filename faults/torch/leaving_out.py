"""An engine that leaves out instructions: the mistake in an implementation that a comparison is to find."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

import numpy as np

from cxlemu import _native
from cxlemu.engines.native import NativeEngine
from cxlemu.engines.streams import Running
from cxlemu.plan import Op, RankPart


def without(part: RankPart, ops: frozenset[Op]) -> RankPart:
    """Return a rank's part without some kinds of instructions.

    Args:
        part: The part.
        ops: What is left out.
    """
    numbers = [int(op) for op in ops]
    streams = tuple(
        replace(stream, records=stream.records[~np.isin(stream.records["op"], numbers)]) for stream in part.streams
    )
    return replace(part, streams=streams)


@dataclass
class LeavingOut(NativeEngine):
    """The native engine, which executes every part without some kinds of instructions.

    Attributes:
        ops: What is left out.
    """

    ops: frozenset[Op] = frozenset()
    _cut: dict[int, tuple[RankPart, RankPart]] = field(default_factory=dict)

    @classmethod
    def like(cls, engine: NativeEngine, ops: frozenset[Op]) -> LeavingOut:
        """Make such an engine from an ordinary one."""
        given = {
            each.name: getattr(engine, each.name) for each in fields(NativeEngine) if not each.name.startswith("_")
        }
        return cls(**given, ops=ops)

    def program(self, running: Running) -> _native.Program:
        """Bind the part to the pool without what is left out. Raises PlanError as the native engine does."""
        part = running.part
        if id(part) not in self._cut:
            self._cut[id(part)] = (part, without(part, self.ops))  # the part keeps its id its own
        return super().program(replace(running, part=self._cut[id(part)][1]))
