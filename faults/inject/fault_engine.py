"""A script on an ordinary rank: the engine that its communicator is made with, so that the faults happen to it."""

from __future__ import annotations

from cxlemu.engines import Engine, engine_for
from cxlemu.engines.reference import ReferenceEngine
from cxlemu.memory.protocol import HostMemory
from cxlemu.memory.shadow import ShadowMemory
from cxlemu.world import RankContext
from faults.inject.effects import add
from faults.inject.engine import Injected
from faults.inject.script import Script


def injected(context: RankContext, engine: str, script: Script) -> Injected:
    """``engine`` by name, with the script's faults from when it is armed. Raises ArgumentError as `engine_for`."""
    inner: Engine = engine_for(engine, context.backend, context.memory, context.pool.cards, context.pacer)
    memory: HostMemory = context.memory
    if isinstance(inner, ReferenceEngine):
        inner = ReferenceEngine(context.memory, context.session.clock)
    elif isinstance(memory, ShadowMemory):
        memory = memory.native
    return Injected(inner, context, memory, script, add)


def armed(context: RankContext, engine: str, script: Script) -> Injected:
    """The same for `Communicator.world`, whose own first call does not count."""
    made = injected(context, engine, script)
    made.arm()
    made.calls = -1
    return made
