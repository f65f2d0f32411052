"""A machine for serving whose times can be worked out by hand, and iterations that take a microsecond a token."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from cxlemu.topology import Topology
from studies.serving.requests import BLOCK_TOKENS, ServingRequest

TOKEN_BYTES = 1000
BLOCK_BYTES = TOKEN_BYTES * BLOCK_TOKENS
TOKEN_NS = 1000

MACHINE = """
name: by-hand
hosts:
  count: {hosts}
  memory: {{latency_ns: 0, read_gbytes_per_s: 100, write_gbytes_per_s: 100}}
cards:
  - {{count: 2, capacity_bytes: 1GiB, latency_ns: 0, read_gbytes_per_s: 100, write_gbytes_per_s: 100,
     total_gbytes_per_s: 100}}
  - {{owner: hosts, count: 1, capacity_bytes: 1GiB, latency_ns: 0, read_gbytes_per_s: 1, write_gbytes_per_s: 1,
     total_gbytes_per_s: 1}}
costs: {{}}
switches:
  - {{name: cxl, level: 1, port_latency_ns: 0}}
  - {{name: net, level: 1, port_latency_ns: 0}}
links:
  - {{name: host, ends: [hosts, cxl], gbytes_per_s: {rate}, latency_ns: 0}}
  - {{name: card, ends: [cards, cxl], gbytes_per_s: 100, latency_ns: 0}}
  - {{name: nic, ends: [hosts, net], gbytes_per_s: 0.5, latency_ns: 0}}
spaces:
  - {{name: pool, kind: cxl_pool, coherent: false, interleave_bytes: 256}}
  - {{name: dram, kind: peer_memory, coherent: true, over: [net]}}
emulation: {{card_bytes: 1MiB}}
"""


def machine(hosts: int = 1, rate: float = 1) -> Topology:
    """A machine on which a block takes BLOCK_BYTES / rate ns from or to the pool."""
    return Topology.parse(MACHINE.format(hosts=hosts, rate=rate).encode(), "by-hand.yaml")


def iterations(blocks: int = 100, token_ns: int = TOKEN_NS) -> Any:
    """Iterations that take some ns for each token of a prompt and of an answer."""
    return SimpleNamespace(
        model=SimpleNamespace(kv_bytes=TOKEN_BYTES, name="by-hand"),
        tensor=1,
        ranks=1,
        blocks=blocks,
        block_bytes=BLOCK_BYTES,
        weight_bytes=3 * BLOCK_BYTES,
        ns=lambda tokens, pairs, context, ends: tokens * token_ns,
    )


def request(at_us: int, blocks: Sequence[int], tokens: int | None = None, answer: int = 1) -> ServingRequest:
    """A request for whole blocks, or for the first ``tokens`` of them."""
    return ServingRequest(at_us * 1000, BLOCK_TOKENS * len(blocks) if tokens is None else tokens, answer, tuple(blocks))
