"""What COMPUTE costs in virtual time: the table of a plan's kernels as tiles on an accelerator's multiprocessors.

Every rank has an accelerator of its own. A COMPUTE is a number of equal tiles, each on the first multiprocessor that is
free, and its stream goes on as soon as the last of them has begun: COMPUTEs that follow each other share waves, as the
tiles of one kernel do. RECORD, and whatever else reads what was computed, waits until they are over; so a COMPUTE that
needs the result of another waits for an event between them. `costs.call_ns` includes the time that launching kernels
takes.

All tiles of a rank share its memory: together they take no less than what their waves load.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cxlemu.cost.gemm import GemmTiling, Product, fastest, in_company, moved_bytes, slowed
from cxlemu.errors import ArgumentError, PlanError
from cxlemu.plan import Frame, Kernel, Op, RankPart
from cxlemu.plan.instructions import Records
from cxlemu.plan.kernels import KERNELS
from cxlemu.topology import Accelerator

COST_DTYPE = np.dtype([("tiles", "<i8"), ("tile_ns", "<i8")])  # kernel_cost in virtual/virtual.h
TILES_MAX = 1 << 20  # of one COMPUTE
TILE_NS_MAX = 1 << 40
SIZE_MAX = 1 << 40  # of a product, in each direction


def kernel_costs(accelerator: Accelerator | None, frame: Frame, part: RankPart) -> Records:
    """Return one row of COST_DTYPE per kernel of a plan: the tiles of one COMPUTE, and the nanoseconds of each."""
    if not frame.kernels:
        return np.zeros(0, COST_DTYPE)
    costs = np.zeros(len(frame.kernels), COST_DTYPE)
    products = [_product(kernel) for kernel in frame.kernels]
    if accelerator is None:
        raise ArgumentError(
            f"{frame.kernels[0].name} needs an accelerator: give the topology one, such as accelerator: a100-sxm"
        )
    records = np.concatenate([stream.records for stream in part.streams])
    known = (records["arg"] >= 0) & (records["arg"] < len(products))  # the engine reports others
    records = records[(records["op"] == Op.COMPUTE) & known]
    times = np.bincount(records["arg"], minlength=len(products)).tolist()
    tilings = [
        fastest(accelerator, its) if many == 1 else in_company(accelerator, its, max(many, 1))
        for its, many in zip(products, times, strict=True)
    ]
    total_ns = _moved_bytes(accelerator, products, tilings, records) / accelerator.memory_bytes_per_s * 1e9
    flops = sum(many * its.flops for its, many in zip(products, times, strict=True))
    for row, its, tiling, many in zip(costs, products, tilings, times, strict=True):
        share_ns = total_ns * many * its.flops / flops if many else 0.0
        tiling = slowed(tiling, share_ns, max(many, 1) * tiling.tiles, accelerator.multiprocessors)
        if tiling.tiles > TILES_MAX or tiling.tile_ns > TILE_NS_MAX:
            raise ArgumentError(f"a GEMM of {its.m} x {its.n} x {its.k} in one COMPUTE is too large: cut it into tiles")
        row["tiles"], row["tile_ns"] = tiling.tiles, tiling.tile_ns
    return costs


def _product(kernel: Kernel) -> Product:
    its = KERNELS.get(kernel.name)
    if its is None or not its.product or len(kernel.parameters) < 3:
        raise PlanError(f"the kernel {kernel.name} has no cost in this model")
    m, n, k = kernel.parameters[:3]
    if not all(0 < size <= SIZE_MAX for size in (m, n, k)):
        raise ArgumentError(f"a GEMM has sizes from 1 to {SIZE_MAX}, not {m} x {n} x {k}")
    return Product(m, n, k, its.product)


def _moved_bytes(
    accelerator: Accelerator, products: Sequence[Product], tilings: Sequence[GemmTiling], records: Records
) -> float:
    """Count the bytes that all COMPUTEs, in this order, move through memory.

    What a wave of tiles loads, it loads once; the next wave loads anew.
    """
    multiprocessors, kernels = accelerator.multiprocessors, records["arg"]
    tiles = np.array([tiling.tiles for tiling in tilings])[kernels]
    whole = [moved_bytes(its, tiling, multiprocessors) for its, tiling in zip(products, tilings, strict=True)]
    total = float(np.array(whole, float)[kernels[tiles >= multiprocessors]].sum())
    records, kernels = (its[tiles < multiprocessors] for its in (records, kernels))
    tiles = tiles[tiles < multiprocessors]
    wave = (np.cumsum(tiles) - tiles) // multiprocessors
    for name in ("dst", "a", "b"):
        nbytes = np.array([_side_bytes(its, name) for its in products], float)
        operand = records[name]
        place = (operand["offset"] << 18) | (operand["id"].astype(np.int64) << 2) | operand["kind"]
        _, number = np.unique(place, return_inverse=True)
        _, first = np.unique(wave * (len(number) + 1) + number, return_index=True)
        total += float(nbytes[kernels[first]].sum())
    return total


def _side_bytes(product: Product, name: str) -> int:
    elements = {"dst": product.m * product.n, "a": product.m * product.k, "b": product.k * product.n}[name]
    return elements * product.itemsize
