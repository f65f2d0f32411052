"""Fused calls and their plans, made from shapes and tiles."""

from dataclasses import replace

from collectives.choices import KINDS
from collectives.fused.builder import STYLE_OF, FusedBuilder
from collectives.fused.operators import OPERATORS
from collectives.fused.shapes import TRANSPORTS, check, moved_columns, shapes
from collectives.layouts import MIN_DOORBELLS_PER_RANK, SLOTS_MIN
from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import DTYPES, Call, Frame, Gemm, Layout, Plan, RankPart
from cxlemu.rounding import round_down, round_up

COMM_TILE_ROWS, TILE_ROWS, TILE_COLS = 128, 128, 256  # at most, where none are given


def fused_call(
    kind: str,
    style: str,
    ranks: int,
    m: int,
    n: int,
    k: int,
    dtype: str = "f32",
    *,
    comm_tile_rows: int | None = None,
    compute_tile: tuple[int, int] | None = None,
    order: str = "shifted",
    transport: str | None = None,
) -> Call:
    """Describe a product of A (m x k) and B (k x n), which ranks share as shapes.py says."""
    if (style == "medium" and comm_tile_rows is not None) or (style != "fused" and compute_tile is not None):
        raise ArgumentError(f"{kind} {style} does not take this tile size: leave it out")
    transport = transport or TRANSPORTS.get(kind, ("",))[0]
    whole = Gemm(m, n, k, order=order, transport=transport)
    itemsize = DTYPES[dtype].itemsize if dtype in DTYPES else 0
    nbytes = m // max(ranks, 1) * moved_columns(kind, n, k) * itemsize
    redop = "none" if kind == "all_gather_gemm" else "sum"
    call = Call(kind, style, ranks, nbytes, dtype, redop, gemm=replace(whole, tile_rows=1, tile_cols=1))
    if kind in KINDS and ranks > 0:
        rows, columns = m // ranks, shapes(call).n
        comm, tile = {
            "unfused": (comm_tile_rows or 0, (m, columns)),
            "medium": (rows, (rows, columns)),
        }.get(style, (comm_tile_rows or min(rows, COMM_TILE_ROWS), compute_tile or _default_tile(rows, columns)))
        call = replace(call, gemm=replace(whole, comm_tile_rows=comm, tile_rows=tile[0], tile_cols=tile[1]))
    check(call)
    return call


def _default_tile(rows: int, columns: int) -> tuple[int, int]:
    return min(rows, TILE_ROWS), min(columns, TILE_COLS)


def fused_plan(
    kind: str,
    style: str,
    layout: Layout,
    m: int,
    n: int,
    k: int,
    dtype: str = "f32",
    *,
    comm_tile_rows: int | None = None,
    compute_tile: tuple[int, int] | None = None,
    order: str = "shifted",
    transport: str | None = None,
) -> Plan:
    """Plan a fused product for as many ranks as the layout has.

    A rank's buffers are input (its part of A), output, scratch and weights (its part of B).
    """
    call = fused_call(
        *(kind, style, layout.ranks, m, n, k, dtype),
        comm_tile_rows=comm_tile_rows,
        compute_tile=compute_tile,
        order=order,
        transport=transport,
    )
    return build(layout, call)


def build(layout: Layout, call: Call) -> Plan:
    """Build the plan of a fused call. The function is pure: equal arguments give equal plans."""
    check(call)
    if layout.ranks != call.ranks:
        raise ArgumentError(f"a layout for {layout.ranks} ranks cannot carry a call of {call.ranks} ranks")

    def build_part(rank: int) -> tuple[Frame, RankPart]:
        builder = FusedBuilder(call, layout, STYLE_OF[call.algorithm], rank)
        if call.ranks == 1:
            builder.multiply(builder.output(), builder.input(), builder.gemm.m)
        else:
            OPERATORS[call.collective](builder)
        return builder.finish()

    return Plan(call, layout, build_part)


def roomy_layout(call: Call, cards: int, interleave_bytes: int, card_bytes: int) -> Layout:
    """Lay out a ring in which one round takes all of a call, or as much as the cards have room for."""
    assert call.gemm is not None
    rows = call.gemm.m // call.ranks
    tiles = -(-rows // call.gemm.comm_tile_rows) if call.gemm.comm_tile_rows else STYLE_OF["unfused"].chunks
    blocks = call.ranks + 1 if call.collective != "all_gather_gemm" or call.gemm.transport == "push" else 1
    bare = Layout(call.ranks, cards, SLOTS_MIN, 0, max(MIN_DOORBELLS_PER_RANK, blocks * tiles), interleave_bytes)
    area = blocks * (call.nbytes + tiles * LINE_BYTES)
    wanted = -(-area // max(1, cards // call.ranks)) * -(-call.ranks // cards) + 2 * interleave_bytes
    most = round_down((card_bytes - bare.data_offset) // SLOTS_MIN, interleave_bytes)
    slot_card_bytes = min(round_up(wanted, interleave_bytes), most)
    if slot_card_bytes * cards < blocks * call.ranks * LINE_BYTES:
        raise ArgumentError(f"cards of {card_bytes} bytes have no room for {call.ranks} ranks of [{call}]")
    return replace(bare, slot_card_bytes=slot_card_bytes)
