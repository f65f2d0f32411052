"""The programs that ``cxlemu explore`` searches: a protocol in a user's file, or calls of plans."""

from dataclasses import replace

from collectives.choices import is_plan
from cxlemu import userfile
from cxlemu.errors import ArgumentError
from faults.cli.searchable import Calls, Searchable
from faults.explore.automaton import RankThread
from faults.explore.check import judge_ends
from faults.explore.programs import NOTHING_ASSERTED, RankProtocol
from faults.explore.result import Exploration
from faults.machine.steps import Machine
from faults.verdict import Verdict

FLAGS = {
    "total_bytes": "--minbytes",
    "variant": "--variant",
    "number": "--calls",
    "cluster": "--cluster",
    "dtype": "--datatype",
    "op": "--op",
    "root": "--root",
    "in_place": "--in-place",
}
STORE_BUFFERS = "ranks of one host see each other's stores at once: store buffers are not modelled"


def searchable(spec: str, ranks: int, calls: Calls) -> Searchable:
    """Find the program to search, and compile it."""
    found, file, name = (
        (None, "", "") if is_plan(spec) or ":" not in spec else userfile.load(spec, "explore", _is_meant)
    )
    if isinstance(found, RankProtocol):
        if given := [flag for name, flag in FLAGS.items() if getattr(calls, name) != getattr(Calls, name)]:
            raise ArgumentError(f"{', '.join(given)}: only for a collective, not for a protocol of your own")
        machine = Machine(found.program(ranks))
        note = STORE_BUFFERS if len(set(found.hosts(ranks))) < ranks else ""
        return Searchable(name, ranks, machine, lambda explored: _judged(found, machine, explored), note=note)
    from faults.cli.explore_calls import own_calls, shipped_calls  # a protocol needs no collectives, which load long

    return own_calls(found, name, spec, file, ranks, calls) if file else shipped_calls(spec, ranks, calls)


def _is_meant(value: object) -> bool:
    from collectives.builder.recipes import recipes_of  # only where a name is not there

    return isinstance(value, RankProtocol) or bool(recipes_of(value))


def _judged(protocol: RankProtocol, machine: Machine, exploration: Exploration) -> Exploration:
    """Judge the ends of a search; a protocol that asserts nothing is not right."""
    judged = judge_ends(protocol, machine, exploration)
    threads = [thread for thread in machine.program.threads if isinstance(thread, RankThread)]
    if judged.verdict == Verdict.OK and not (protocol.judges and (judged.followed or protocol.judged(threads))):
        return replace(judged, verdict=Verdict.UNKNOWN, reason=NOTHING_ASSERTED)
    return judged
