"""The target of a command: collectives by name, an algorithm of one's own, or a plan that was saved.

An algorithm says which collective it is. A plan file says more: of how many ranks, of which size, dtype, operation and
root, and on which ring. A flag that says otherwise is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import click

from collectives import sizes
from collectives.builder.recipes import Recipe
from collectives.choices import is_plan
from collectives.contracts import COLLECTIVES
from collectives.sweep.sweep import load_algorithm
from cxlemu.choices import DTYPE_NAMES, REDOPS
from cxlemu.cli.params import given_flags
from cxlemu.cli.vocabulary import ConceptOption
from cxlemu.errors import ArgumentError
from cxlemu.plan import Plan
from cxlemu.units import counted

NO_VARIANT = "--variant does not go with --algorithm: your own algorithm has none"
SIZES = ("minbytes", "maxbytes", "stepfactor", "stepbytes")  # words of the vocabulary
NEVER = object()  # for `check_options`: whatever the flag says, the plan says otherwise


@dataclass(frozen=True)
class Target:
    """What a command works on.

    ``collectives`` is () where the command's default is asked for; ``source`` is FILE.py:function or FILE.plan.
    """

    collectives: tuple[str, ...]
    source: str | None = None
    own: Recipe | None = None

    @property
    def plan(self) -> Plan | None:
        return None if self.own is None else self.own.plan

    @property
    def size_bytes(self) -> int:
        """The size of a plan's call, as nccl-tests counts it."""
        assert self.plan is not None
        call = self.plan.call
        return sizes.size_bytes(call.collective, call.nbytes, call.ranks)

    def refuse(self, flag: str) -> NoReturn:
        """Refuse a flag that does not go with the plan file."""
        assert self.plan is not None
        call = self.plan.call
        raise ArgumentError(
            f"{self.source} is the plan of [{call}] with {counted(call.ranks, 'rank')}: leave out {flag}"
        )


def target(named: Sequence[str], algorithm: str | None, *, variant: bool = False) -> Target:
    files = [name for name in named if is_plan(name)]
    if files and (len(named) > 1 or algorithm is not None):
        other = next((name for name in named if name != files[0]), "--algorithm")
        raise ArgumentError(f"a plan file names its own collective: leave out {files[0]} or {other}")
    source = files[0] if files else algorithm
    if source is None:
        return Target(tuple(named))
    own = load_algorithm(source)
    if variant:
        raise ArgumentError(f"--variant does not go with {source}, which is one plan" if own.plan else NO_VARIANT)
    for name in named:
        if not files and name != own.collective:
            raise ArgumentError(f"{source} is an algorithm for {own.collective}, not {name}")
    return Target((own.collective,), source, own)


def check_called(asked: Target, ranks: int) -> None:
    """Refuse one rank for an algorithm of one's own: a call of one rank is a copy, whatever the algorithm."""
    if ranks == 1 and asked.own is not None and asked.plan is None:
        raise ArgumentError(f"a call of one rank is a copy, and {asked.source} is not called: give 2 ranks or more")


def check_options(ctx: click.Context, asked: Target, fixed: Mapping[str, object]) -> None:
    """Check that no given flag contradicts a plan file; ``fixed`` has each parameter's right value, or `NEVER`."""
    if asked.plan is None:
        return
    for name, flag in given_flags(ctx).items():
        if name in fixed and (fixed[name] is NEVER or ctx.params[name] != fixed[name]):
            asked.refuse(flag)


def check_applies(ctx: click.Context, collectives: Sequence[str]) -> None:
    contracts = [COLLECTIVES[name] for name in collectives if name in COLLECTIVES]
    moves_data = ("moves data", any(contract.moves_data for contract in contracts))
    having = dict.fromkeys((*SIZES, "datatype", "in_place", "integrity"), moves_data) | {
        "op": ("reduces", any(contract.reduces for contract in contracts)),
        "root": ("has a root", any(contract.rooted for contract in contracts)),
    }
    words = {param.name: param.word for param in ctx.command.params if isinstance(param, ConceptOption)}
    for name, flag in given_flags(ctx).items() if contracts else ():
        word, value = words.get(name, name), ctx.params.get(name)
        what, applies = having.get(word, ("", True))
        every = not str(value).isdecimal() if word == "root" else value in (REDOPS, DTYPE_NAMES)
        if not applies and not every:
            names = " and ".join(collectives)
            raise ArgumentError(f"{flag} does nothing here, because no collective of {names} {what}: leave it out")
