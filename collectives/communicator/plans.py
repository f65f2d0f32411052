"""Plans that were made, kept for the next call that is the same, whichever communicator makes it."""

from __future__ import annotations

from binascii import crc_hqx
from functools import lru_cache

from collectives.algorithms.catalog import build
from collectives.builder.recipes import Recipe
from collectives.contracts import COLLECTIVES, buffers
from collectives.fused.plans import build as build_product
from cxlemu.errors import ArgumentError
from cxlemu.plan import Call, Layout, Plan, rules

PLANS_KEPT = 256


@lru_cache(maxsize=PLANS_KEPT)
def plan_of(chosen: Recipe, layout: Layout, call: Call, rank: int) -> tuple[Plan, int]:
    """A plan that breaks no rule, and 16 bits of what its ranks must agree on. Raises PlanError.

    Of an algorithm that is not ours all ranks' parts are checked: its ranks may step on each other.
    """
    plan = build(chosen, layout, call)
    if chosen.plan is not None:
        _check_arrays(chosen, call, rank)
    else:
        rules.check(plan, None if chosen.source else [rank])
    return plan, crc_hqx(repr(plan.frame).encode(), call.tag())


def _check_arrays(saved: Recipe, call: Call, rank: int) -> None:
    """A saved plan says whether arrays lie in each other. Where there is one array by contract, it stands for both."""
    assert saved.plan is not None
    if not COLLECTIVES[call.collective].one_buffer and buffers(call, rank) != saved.plan.part(rank).buffers[:2]:
        how = "in place" if saved.plan.call.in_place else "not in place"
        raise ArgumentError(f"{saved.source} is the plan of a call that is {how}: pass x and out accordingly")


@lru_cache(maxsize=PLANS_KEPT)
def product_plan_of(layout: Layout, call: Call, rank: int) -> tuple[Plan, int]:
    """As plan_of."""
    plan = build_product(layout, call)
    rules.check(plan, [rank])
    return plan, crc_hqx(repr(plan.frame).encode(), call.tag())
