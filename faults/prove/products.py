"""Fused products as the prover wants them: small matrices that stand for all, on rings that take one round and several.

What is proved of an element does not depend on how many there are, nor on the tiles that it lies in (collectives/fused/
products.py): so shapes are small, and tilings such that tiles of either kind are larger, smaller and cut short.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import NamedTuple

from collectives.fused import ORDERS, STYLES, TRANSPORTS, build
from collectives.fused.plans import fused_call
from cxlemu.plan import Call, Layout
from faults.prove.proof import Proof
from faults.prove.sequences import Progress, prove
from faults.verdict import Verdict

SHARD_ROWS = 5
TILINGS = (
    (3, (2, 5)),
    (2, (3, 4)),
    (5, (1, 7)),
    (2, (10, 5)),
)  # rows of a communication tile, and a compute tile; the last one spans two shards


class ProductCase(NamedTuple):
    """All cases of a fused product in one style."""

    call: Call  # one of the cases' calls
    cases: list[tuple[Layout, Call]]  # each case's ring and call

    @property
    def size_bytes(self) -> int:
        """Bytes that move between ranks."""
        return self.call.nbytes * self.call.ranks

    @property
    def in_place(self) -> bool:
        """Always false: a product's result replaces nothing."""
        return False

    def prove(self, *, progress: Progress | None = None) -> Proof:
        """Prove all cases; return the first proof that is not OK, else the last, with all instructions and seconds."""
        instructions, seconds = 0, 0.0
        proof = Proof(Verdict.OK, None, "", 0, 0.0)
        for number, (layout, call) in enumerate(self.cases):
            proof = prove(build(layout, call))
            instructions, seconds = instructions + proof.instructions, seconds + proof.seconds
            if progress is not None:
                progress(number + 1, len(self.cases))
            if proof.verdict is not Verdict.OK:
                break
        return replace(proof, instructions=instructions, seconds=seconds)


def product_case(kind: str, style: str, ranks: int) -> ProductCase:
    """Collect all cases of a fused product in one style; arguments and errors are those of `product_cases`."""
    cases = list(product_cases(kind, style, ranks))
    return ProductCase(cases[0][1], cases)


def product_cases(kind: str, style: str, ranks: int) -> Iterator[tuple[Layout, Call]]:
    """Yield every tiling, order and transport of a style, in one round and in several."""
    m, n, k = SHARD_ROWS * ranks, 7, 6 * ranks
    if kind == "all_gather_gemm":
        n *= ranks
    doorbells = 5 * (ranks + 1)
    for slot_lines in (3 * doorbells, ranks + 1):  # lines of a slot, for every rank
        layout = Layout(ranks, 2, 2, slot_lines * 64 * ranks, doorbells, 64)
        for transport in TRANSPORTS.get(kind, ("",)):
            if style != STYLES[0]:
                yield layout, fused_call(kind, style, ranks, m, n, k, transport=transport)
                continue
            for (comm, (rows, columns)), order in product(TILINGS, ORDERS):
                tile = min(rows, m), columns
                cut: dict[str, str] = {"order": order, "transport": transport}
                yield layout, fused_call(kind, style, ranks, m, n, k, comm_tile_rows=comm, compute_tile=tile, **cut)
