"""Random programs on random worlds: whatever the ring, the memory and the order of steps, the bytes are right."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from expected import COLLECTIVES, OPS, REDUCTIONS, expected, input_bytes, same
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lockstep import Lockstep, Schedule, in_random_order, readers_first, round_robin, slow, writers_first

from collectives.registry import build, recipe, variants
from cxlemu.memory import AdversaryRates, MemorySpec
from cxlemu.memory.protocol import LINE_BYTES, Bytes
from cxlemu.plan import DTYPES, Call, Layout, Plan

QUICK = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
WILD = AdversaryRates(evict=0.3, prefetch=0.3, land=0.3)


class World(NamedTuple):
    layout: Layout
    hosts: tuple[int, ...]
    memory: MemorySpec
    schedule: Schedule


@st.composite
def worlds(draw: st.DrawFn) -> World:
    ranks, cards = draw(st.integers(1, 9)), draw(st.integers(1, 7))
    # at least what the most demanding placement needs: a line of each of ranks + 1 blocks of ranks writers
    need = 4 * -(-ranks // cards) * (ranks + 1)
    lines = 1 << need.bit_length() + draw(st.integers(-1, 1))
    interleave = draw(st.sampled_from([64, 256, 4096]))
    layout = Layout(ranks, cards, draw(st.integers(1, 4)), lines * LINE_BYTES, 2 * ranks + 2, interleave)
    ranks_per_host = draw(st.integers(1, 3))
    seed = draw(st.integers(0, 1 << 20))
    memory = draw(
        st.sampled_from([MemorySpec("ideal"), MemorySpec(), MemorySpec(seed=seed), MemorySpec(seed=seed, rates=WILD)])
    )
    schedule = draw(
        st.sampled_from(
            [in_random_order(seed), round_robin(), writers_first(), readers_first(), slow(seed % ranks)]
        )
    )
    return World(layout, tuple(rank // ranks_per_host for rank in range(ranks)), memory, schedule)


@st.composite
def plans(draw: st.DrawFn, layout: Layout) -> Plan:
    collective = draw(st.sampled_from(COLLECTIVES))
    variant = draw(st.sampled_from(variants(collective)))
    dtype = draw(st.sampled_from(list(DTYPES)))
    most = 0 if collective == "barrier" else (4000 if layout.ranks < 4 else 1000) // DTYPES[dtype].itemsize
    elements = draw(st.one_of(st.integers(0, most), st.sampled_from([n for n in (0, 1, 64, 65) if n <= most])))
    call = Call(
        collective,
        variant,
        layout.ranks,
        elements * DTYPES[dtype].itemsize,
        dtype,
        draw(st.sampled_from(OPS)) if collective in REDUCTIONS else "none",
        draw(st.integers(0, layout.ranks - 1)),
        draw(st.booleans()),
    )
    style = recipe(collective, variant)
    if style.style.overlap:
        style = replace(style, style=replace(style.style, chunks=draw(st.integers(1, 5))))
    return build(style, layout, call)


def inputs_of(call: Call, rng: np.random.Generator) -> list[Bytes]:
    """Half of them random bits, NaN and infinity among them; half of them numbers, so that sums mean something."""
    sizes = [input_bytes(call, rank) for rank in range(call.ranks)]
    if call.dtype in ("u8", "i8", "i32", "i64") or rng.random() < 0.5:
        return [rng.integers(0, 256, size, np.uint8) for size in sizes]
    counts = [size // DTYPES[call.dtype].itemsize for size in sizes]
    return [rng.normal(0, 100, count).astype(DTYPES[call.dtype]).view(np.uint8) for count in counts]


@settings(QUICK, max_examples=300)
@given(st.data())
def test_every_result_is_right_bit_for_bit(data: st.DataObject) -> None:
    world = data.draw(worlds())
    program = data.draw(st.lists(plans(world.layout), min_size=1, max_size=3))
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 20)))
    inputs = [inputs_of(plan.call, rng) for plan in program]
    from hypothesis import event
    for p in program: event(f"rounds {min(p.rounds,6)}"); event(f"{p.call.collective}"); event(f"v {p.call.algorithm}"); event(f"ranks {p.ranks}"); event("zero" if not p.call.nbytes else "data")
    event(str(world.memory)[:50])
    lockstep = Lockstep(world.layout, hosts=world.hosts, memory=world.memory, schedule=world.schedule)
    outputs = lockstep.calls(list(zip(program, inputs, strict=True)))
    for plan, given_bytes, got in zip(program, inputs, outputs, strict=True):
        wanted = expected(plan.call, given_bytes)
        for rank in range(plan.ranks):
            assert same(got[rank], wanted[rank], plan.call.dtype), f"{plan.call}, rank {rank}"
