"""What COMPUTE costs in virtual time: the table of a plan's kernels as tiles on an accelerator's multiprocessors.

Every rank has an accelerator of its own. A COMPUTE is a number of equal tiles, each on the first multiprocessor that is
free, and its stream goes on as soon as the last of them has begun: COMPUTEs that follow each other share waves, as the
tiles of one kernel do. RECORD, and whatever else reads what was computed, waits until they are over; so a COMPUTE that
needs the result of another waits for an event between them. `costs.call_ns` includes the time that launching kernels
takes.

All tiles of a rank share its memory: together they take no less than what their waves load. Tiles of a product that is
computed in many COMPUTEs also share the machine with the copies between them: each takes `slowed_by_copies` longer, and
all together as much as is `held_by_copies` of the time that these take on the rank's link.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cxlemu.cost.gemm import GemmTiling, Product, fastest, in_company, moved_bytes, slowed
from cxlemu.errors import ArgumentError, PlanError
from cxlemu.plan import Frame, Kernel, Kind, Op, RankPart
from cxlemu.plan.instructions import Records
from cxlemu.plan.kernels import KERNELS
from cxlemu.topology import Accelerator

COST_DTYPE = np.dtype([("tiles", "<i8"), ("tile_ns", "<i8")])  # kernel_cost in virtual/virtual.h
TILES_MAX = 1 << 20  # of one COMPUTE
TILE_NS_MAX = 1 << 40
SIZE_MAX = 1 << 40  # of a product, in each direction


def kernel_costs(
    accelerator: Accelerator | None, frame: Frame, part: RankPart, link_gbytes_per_s: float = math.inf
) -> Records:
    """Return one row of COST_DTYPE per kernel of a plan: the tiles of one COMPUTE, and the nanoseconds of each.

    Args:
        accelerator: What computes.
        frame: The plan's frame.
        part: A rank's part of the plan.
        link_gbytes_per_s: The rate of the rank's way to others, over which it copies.
    """
    if not frame.kernels:
        return np.zeros(0, COST_DTYPE)
    costs = np.zeros(len(frame.kernels), COST_DTYPE)
    products = [_product(kernel) for kernel in frame.kernels]
    if accelerator is None:
        raise ArgumentError(
            f"{frame.kernels[0].name} needs an accelerator: give the topology one, such as accelerator: a100-sxm"
        )
    records = np.concatenate([stream.records for stream in part.streams])
    copied = _copied_bytes(records)
    held_ns = accelerator.held_by_copies * copied / link_gbytes_per_s
    known = (records["arg"] >= 0) & (records["arg"] < len(products))  # the engine reports others
    records = records[(records["op"] == Op.COMPUTE) & known]
    times = np.bincount(records["arg"], minlength=len(products)).tolist()
    tilings = [
        fastest(accelerator, product) if many == 1 else in_company(accelerator, product, max(many, 1))
        for product, many in zip(products, times, strict=True)
    ]
    total_ns = _moved_bytes(accelerator, products, tilings, records) / accelerator.memory_bytes_per_s * 1e9
    flops = sum(many * product.flops for product, many in zip(products, times, strict=True))
    for row, product, tiling, many in zip(costs, products, tilings, times, strict=True):
        share_ns = total_ns * many * product.flops / flops if many else 0.0
        tiling = slowed(tiling, share_ns, max(many, 1) * tiling.tiles, accelerator.multiprocessors)
        if many > 1 and copied:
            tiling = _beside_copies(accelerator, tiling, held_ns * many * product.flops / flops, many * tiling.tiles)
        if tiling.tiles > TILES_MAX or tiling.tile_ns > TILE_NS_MAX:
            raise ArgumentError(
                f"a GEMM of {product.m} x {product.n} x {product.k} in one COMPUTE is too large: cut it into tiles"
            )
        row["tiles"], row["tile_ns"] = tiling.tiles, tiling.tile_ns
    return costs


def _copied_bytes(records: Records) -> int:
    """Count the bytes that a rank copies over its link in the direction in which it copies more."""
    regions = {name: records[name]["kind"] == Kind.REGION for name in ("dst", "a", "b", "c")}
    written = records["nbytes"][regions["dst"] & np.isin(records["op"], (Op.WRITE, Op.WRITE_NT))].sum()
    read = np.isin(records["op"], (Op.READ, Op.REDUCE))
    return max(int(written), sum(int(records["nbytes"][regions[name] & read].sum()) for name in "abc"))


def _beside_copies(accelerator: Accelerator, tiling: GemmTiling, held_ns: float, tiles: int) -> GemmTiling:
    """Lengthen tiles that are computed while copies are under way."""
    each_ns = tiling.tile_ns * (1 + accelerator.slowed_by_copies)
    return replace(tiling, tile_ns=math.ceil(each_ns + held_ns * min(tiles, accelerator.multiprocessors) / tiles))


def _product(kernel: Kernel) -> Product:
    kernel_kind = KERNELS.get(kernel.name)
    if kernel_kind is None or not kernel_kind.product or len(kernel.parameters) < 3:
        raise PlanError(f"the kernel {kernel.name} has no cost in this model")
    m, n, k = kernel.parameters[:3]
    if not all(0 < size <= SIZE_MAX for size in (m, n, k)):
        raise ArgumentError(f"a GEMM has sizes from 1 to {SIZE_MAX}, not {m} x {n} x {k}")
    return Product(m, n, k, kernel_kind.product)


def _moved_bytes(
    accelerator: Accelerator, products: Sequence[Product], tilings: Sequence[GemmTiling], records: Records
) -> float:
    """Count the bytes that all COMPUTEs, in this order, move through memory.

    What a wave of tiles loads, it loads once; the next wave loads anew.
    """
    multiprocessors, kernels = accelerator.multiprocessors, records["arg"]
    tiles = np.array([tiling.tiles for tiling in tilings])[kernels]
    whole = [moved_bytes(product, tiling, multiprocessors) for product, tiling in zip(products, tilings, strict=True)]
    total = float(np.array(whole, float)[kernels[tiles >= multiprocessors]].sum())
    records, kernels = (rows[tiles < multiprocessors] for rows in (records, kernels))
    tiles = tiles[tiles < multiprocessors]
    wave = (np.cumsum(tiles) - tiles) // multiprocessors
    for name in ("dst", "a", "b"):
        nbytes = np.array([_side_bytes(product, name) for product in products], float)
        operand = records[name]
        place = (operand["offset"] << 18) | (operand["id"].astype(np.int64) << 2) | operand["kind"]
        _, number = np.unique(place, return_inverse=True)
        _, first = np.unique(wave * (len(number) + 1) + number, return_index=True)
        total += float(nbytes[kernels[first]].sum())
    return total


def _side_bytes(product: Product, name: str) -> int:
    elements = {"dst": product.m * product.n, "a": product.m * product.k, "b": product.k * product.n}[name]
    return elements * product.itemsize
