"""Chakra traces of a small training step, one for each of three ranks: python examples/fsdp_trace.py traces/fsdp

Two layers with fully sharded parameters: each is gathered before it is used, the next one while this one computes, and
its gradients are reduced and scattered while the layer before computes.

cxlemu simulate trace traces/fsdp -c titan2-6xcz120
"""

import sys
from pathlib import Path

from cxlemu.chakra.files import Node, write
from cxlemu.chakra.schema import COLLECTIVES, NodeType

RANKS, LAYERS = 3, 2
SHARD_BYTES = 16 << 20  # of a layer's parameters, on each rank
FORWARD_US, BACKWARD_US = 2000, 4000


def nodes() -> list[Node]:
    made: list[Node] = []

    def add(name: str, kind: NodeType, *after: int, duration_us: int = 0, **attributes: int | str | bool) -> int:
        made.append(Node(len(made), name, kind, after, duration_us, {"is_cpu_op": False, **attributes}))
        return made[-1].id

    def collective(name: str, kind: str, nbytes: int, *after: int) -> int:
        return add(name, NodeType.COMM_COLL, *after, comm_type=COLLECTIVES[kind], comm_size=nbytes)

    gathered = [collective(f"gather layer {k}", "all_gather", SHARD_BYTES) for k in range(LAYERS)]
    computed: tuple[int, ...] = ()
    for k in range(LAYERS):
        computed = (add(f"forward {k}", NodeType.COMP, gathered[k], *computed, duration_us=FORWARD_US),)
    for k in reversed(range(LAYERS)):
        computed = (add(f"backward {k}", NodeType.COMP, *computed, duration_us=BACKWARD_US),)
        collective(f"scatter gradients {k}", "reduce_scatter", RANKS * SHARD_BYTES, *computed)
    return made


if __name__ == "__main__":
    for path in write(Path(sys.argv[1]), [nodes()] * RANKS):
        print(path)
