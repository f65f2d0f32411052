"""From a finding to litmus tests: the chain as a small program of the abstract machine, as it was and repaired."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from faults.programs.findings import KINDS, ProgramFinding

_WRITER = ["store x 1", "flush x", "fence", "signal f 1"]
_READER = ["wait f 1", "invalidate x", "load x r"]


class _Shape(NamedTuple):
    """A litmus test of a kind of mistake: the steps of the hosts A and B, and outcomes, of which one can happen."""

    a: list[str]
    b: list[str]
    outcomes: tuple[str, ...]
    together: bool = False  # x and y share a line


_STALE = ("B.r == 0",)
_NOT_FLUSHED = _Shape(["store x 1", "fence", "signal f 1"], _READER, _STALE)
_TWO = _Shape(["store x 1", "flush x", "fence"], ["store y 1", "flush y", "fence"], ("x == 0", "y == 0"), True)
_ORDERED = _Shape(
    ["store x 1", "flush x", "fence", "signal f 1"],
    ["wait f 1", "invalidate y", "store y 1", "flush y", "fence"],
    _TWO[2],
    True,
)
_MESSAGE = _Shape(_WRITER, _READER, _STALE)

# kind -> the mistake, and its repair
_SHAPES: Mapping[str, tuple[_Shape, _Shape]] = {
    "not-flushed": (_NOT_FLUSHED, _MESSAGE),
    "msync": (_NOT_FLUSHED, _MESSAGE),
    "flush-outside": (_Shape(["store x 1", "flush y", "fence", "signal f 1"], _READER, _STALE), _MESSAGE),
    "not-fenced": (_Shape(["store x 1", "flush x", "signal f 1"], _READER, _STALE), _MESSAGE),
    "fence-too-late": (_Shape(["store x 1", "flush x", "signal f 1", "fence"], _READER, _STALE), _MESSAGE),
    "no-invalidate": (_Shape(_WRITER, ["load x before", "wait f 1", "load x r"], _STALE), _MESSAGE),
    "invalidated-early": (_Shape(_WRITER, ["invalidate x", "wait f 1", "load x r"], _STALE), _MESSAGE),
    "invalidate-unfenced": (_Shape(_WRITER, ["load x before", "wait f 1", "flush x", "load x r"], _STALE), _MESSAGE),
    "two-writers": (_TWO, _ORDERED),
    "lost-update": (_TWO, _ORDERED),
    "residue": (
        _Shape(
            ["store y 1", "signal f 1", "wait g 1", "flush y", "fence"],
            ["wait f 1", "store x 1", "flush x", "fence", "signal g 1"],
            ("x == 0",),
            True,
        ),
        _Shape(
            ["store y 1", "flush y", "fence", "signal f 1", "wait g 1"],
            ["wait f 1", "invalidate x", "store x 1", "flush x", "fence", "signal g 1"],
            ("x == 0", "y == 0"),
            True,
        ),
    ),
    "older-write": (
        _Shape(["store x 2", "flush x", "signal f 1"], ["wait f 1", "store x 1", "flush x", "fence"], ("x == 2",)),
        _Shape(
            ["store x 2", "flush x", "fence", "signal f 1"], ["wait f 1", "store x 1", "flush x", "fence"], ("x == 2",)
        ),
    ),
    "stale-allocate": (
        _Shape(_WRITER, ["load y before", "wait f 1", "store y 1", "flush y", "fence"], ("x == 0",), True),
        _ORDERED,
    ),
    "locked-across-hosts": (
        _Shape(
            ["load x r", "store x 1", "flush x", "fence"],
            ["load x r", "store x 1", "flush x", "fence"],
            ("A.r == 0 and B.r == 0",),
        ),
        _Shape(
            ["load x r", "store x 1", "flush x", "fence", "signal f 1"],
            ["wait f 1", "invalidate x", "load x r", "store x 2", "flush x", "fence"],
            ("A.r == 0 and B.r == 0",),
        ),
    ),
    "dirty-at-exit": (
        _Shape(["store x 1"], ["fence"], ("x == 0",)),
        _Shape(["store x 1", "flush x", "fence"], ["fence"], ("x == 0",)),
    ),
}


class Chain(NamedTuple):
    """Two litmus tests."""

    broken: str  # YAML of the mistake: the outcome in question is allowed
    fixed: str  # YAML of its repair: that outcome is forbidden
    outcome: str  # the outcome: a condition of `faults.litmus.condition`


def chain(finding: ProgramFinding, positions: Mapping[str, str] | None = None) -> Chain | None:
    """Write a finding as litmus tests; None for what the abstract machine lacks."""
    kind = KINDS[finding.kind]
    shapes = _SHAPES.get(kind.name)
    if shapes is None:
        return None
    broken, fixed = shapes
    if kind.name == "not-flushed" and finding.flush_late:
        broken = broken._replace(a=["store x 1", "signal f 1", "flush x", "fence"])
    sites = "; ".join(f"{role}: {where}" for role, where in (positions or {}).items())
    what = f"{kind.title}. {sites}" if sites else f"{kind.title}."
    return Chain(
        _yaml(kind.name, what, broken, "allowed"),
        _yaml(f"{kind.name}-fixed", kind.missing, fixed, "forbidden"),
        broken.outcomes[0],
    )


def _yaml(name: str, doc: str, shape: _Shape, expected: str) -> str:
    import yaml  # only here: most programs are right

    head = yaml.safe_dump({"name": name, "doc": re.sub(r"[^\x20-\x7e]", "?", doc)}, sort_keys=False, width=110)
    lines = "lines: {L: [x, y]}\n" if shape.together else ""
    steps = "".join(f"  {host}: [{', '.join(letters)}]\n" for host, letters in (("A", shape.a), ("B", shape.b)))
    outcomes = "".join(f"  - {outcome}\n" for outcome in shape.outcomes)
    return f"{head}{lines}hosts:\n{steps}{expected}:\n{outcomes}"
