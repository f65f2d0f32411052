"""faults is the machine's adversary and its judge.

    machine/    the memory model as an abstract machine: the definition, in plain Python
    litmus/     small programs in YAML, and all their outcomes
    explore/    every execution of a protocol or a small plan, in C; or some, by strategies
    prove/      plans of any size: happens-before, in all executions at once
    mutate/     every mistake in a plan's synchronization, to be found by all of these
    lockstep/   all ranks of a world in one thread, on real bytes; which rank is next, what caches do, counterexamples
    protocols/  a user's protocol, executed by real ranks on any memory
    inject/     what may break, what a run then owes (model), scripts of faults, and their effects
    campaign/   sweeps of many faults, with findings shrunk; replay/: a finding, seen again elsewhere
    testing/    the same for a user's own tests
    cli/        the commands

Verdicts have three values (verdict): a search that ran out of budget says unknown.

`protocol` and its words describe a protocol of your own (docs/protocols.md); `Verdict` is every judge's answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from faults.explore.programs import (
        Crash,
        Fence,
        Flush,
        Invalidate,
        Load,
        RankProtocol,
        Signal,
        Steps,
        Store,
        StoreNT,
        Wait,
        protocol,
    )
    from faults.verdict import Verdict

__all__ = [
    "Crash",
    "Fence",
    "Flush",
    "Invalidate",
    "Load",
    "RankProtocol",
    "Signal",
    "Steps",
    "Store",
    "StoreNT",
    "Verdict",
    "Wait",
    "protocol",
]


def __getattr__(name: str) -> Any:
    from cxlemu.lazy import imported_when_asked_for  # only here: pytest imports this package wherever it is installed

    programs = [each for each in __all__ if each != "Verdict"]
    return imported_when_asked_for(__name__, explore__programs=programs, verdict=["Verdict"])(name)
