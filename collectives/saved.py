"""Plans that `cxlemu plan save` wrote, for every tool that takes plans."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from collectives.catalog import check
from collectives.contracts import buffers
from cxlemu.errors import ArgumentError, PlanFileError
from cxlemu.plan import Buffer, Plan
from cxlemu.plan import file as plan_file

SUFFIX = ".plan"


def load(path: Path) -> Plan:
    """A plan that obeys every rule, of a call that means something and with the buffers that it takes.

    Raises PlanFileError for a file that holds none, PlanError for a plan that breaks a rule.
    """
    plan = plan_file.load(path)
    try:
        check(plan.call)
    except ArgumentError as error:
        raise PlanFileError(f"{path}: {error}") from error
    for part in plan.parts:
        found, right = part.buffers[:2], buffers(plan.call, part.rank)
        if found != right:
            raise PlanFileError(f"{path}: rank {part.rank} has {_named(found)}; its call takes {_named(right)}")
    return plan


def _named(found: Sequence[Buffer]) -> str:
    texts = (f"{b.name} of {b.nbytes} B" + (f" at {b.at} of {b.inside}" if b.inside else "") for b in found)
    return ", ".join(texts) or "no buffers"
