"""Matrix products fused with communication, tile by tile, as plans: FLUX (arXiv 2406.06858) over a pool.

    plan = fused_plan("all_gather_gemm", "fused", layout, m=512, n=1024, k=1024, comm_tile_rows=64)

Three operators, each in three styles: ``fused``; ``medium``, in which whole shards are multiplied while the next ones
are on their way; and ``unfused``, the collective and then the product, or the product and then the collective.

  shapes.py    which rank has which part of the matrices      operators.py  the operators, a page each
  builder.py   the words they are written in                 plans.py      calls and their plans
"""

from collectives.choices import KINDS, ORDERS, STYLES
from collectives.fused.plans import build, fused_plan, roomy_layout
from collectives.fused.shapes import TRANSPORTS

__all__ = ["KINDS", "ORDERS", "STYLES", "TRANSPORTS", "build", "fused_plan", "roomy_layout"]
