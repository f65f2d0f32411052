"""What a plan has beyond plain moves. Each engine and judge declares in MODELS which of it it models; no other plan is
judged."""

from collections.abc import Callable, Collection, Iterable, Iterator
from enum import Enum

import numpy as np

from cxlemu.plan.instructions import Flag, Op
from cxlemu.plan.kernels import KERNELS
from cxlemu.plan.plan import UNIFORM_ORDER, Plan


class Feature(Enum):
    """Something that plans may have; its value names it for people."""

    CHECKSUMS = "checksums"
    EVENTS = "events between streams"
    FOLDS = "folds"
    HEAP = "arrays in the heap"
    MATRIX_PRODUCTS = "matrix products"
    NON_TEMPORAL = "non-temporal stores"
    OWN_MEMORIES = "memories of single ranks"
    PAYLOADS = "payloads in doorbells"
    PEER_WRITES = "results that peers write"
    PROCESS_ARRAYS = "arrays in the ranks' processes"
    TOLD_PLACES = "places of arrays in doorbells"
    UNEVEN_BLOCKS = "blocks of different sizes"
    UNIFORM_ORDER = "an order of its own in folds"


def declared(names: str) -> frozenset[Feature]:
    """Read the names of features, separated by spaces, as engines and judges write their MODELS."""
    return frozenset(Feature[name] for name in names.split())


OF_OPS: dict[Op, Feature | None] = {
    **dict.fromkeys((Op.WRITE, Op.FLUSH, Op.FENCE, Op.SIGNAL, Op.WAIT, Op.WAIT_ALL, Op.INVALIDATE, Op.READ, Op.COPY)),
    **dict.fromkeys((Op.REDUCE, Op.REDUCE_LOCAL), Feature.FOLDS),
    **dict.fromkeys((Op.SIGNAL_DATA, Op.WAIT_DATA), Feature.PAYLOADS),
    **dict.fromkeys((Op.RECORD, Op.AWAIT), Feature.EVENTS),
    Op.WRITE_NT: Feature.NON_TEMPORAL,
    Op.COMPUTE: None,  # its kernel says it
}
OF_FLAGS = {Flag.DIVIDE: Feature.FOLDS, Flag.PLACES: Feature.TOLD_PLACES}


def features(plan: Plan) -> frozenset[Feature]:
    """Find what a plan has, from its call, its tables and every record."""
    ops, flags = np.zeros(256, bool), 0
    for part in plan.each_part():
        for stream in part.streams:
            ops[stream.records["op"]] = True
            flags |= int(np.bitwise_or.reduce(stream.records["flags"], initial=0))
    names = {OF_OPS[Op(op)] for op in np.flatnonzero(ops).tolist()}
    names |= {feature for flag, feature in OF_FLAGS.items() if flags & flag}
    return frozenset(filter(None, names)) | features_of_tables(plan)


def features_of_tables(plan: Plan) -> frozenset[Feature]:
    """Find what a plan has, as far as its call and tables say. Raises KeyError for an unknown kernel."""
    return frozenset(_of_tables(plan))


def _of_tables(plan: Plan) -> Iterator[Feature]:
    for kernel in plan.frame.kernels:
        yield Feature.CHECKSUMS if KERNELS[kernel.name].checks else Feature.MATRIX_PRODUCTS
    if (heap := plan.call.heap) is not None:
        yield Feature.HEAP
        if heap.in_process:
            yield Feature.PROCESS_ARRAYS
        if heap.is_told:
            yield Feature.TOLD_PLACES
        if heap.is_written_by_peers:
            yield Feature.PEER_WRITES
    if plan.layout.owned:
        yield Feature.OWN_MEMORIES
    if plan.call.counts:
        yield Feature.UNEVEN_BLOCKS
    if plan.call.fold_order == UNIFORM_ORDER:
        yield Feature.UNIFORM_ORDER


def unmodelled(
    plans: Iterable[Plan],
    models: Collection[Feature],
    judge: str,
    *,
    of: Callable[[Plan], frozenset[Feature]] = features,
) -> str:
    """Say what plans have that a judge does not model."""
    for plan in {id(plan): plan for plan in plans}.values():
        if beyond := sorted(feature.value for feature in of(plan) - frozenset(models)):
            return f"{judge} does not model {' and '.join(beyond)}, which [{plan.call}] uses"
    return ""
