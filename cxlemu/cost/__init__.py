"""The cost model: what moving bytes takes on a topology, in integer nanoseconds.

A transfer between a rank and a memory uses, in the direction of its data:

    to the pool      copy engine -> host's link -> ... -> card's link -> card's writes -> card (both directions)
    from the pool    card (both directions) -> card's reads -> card's link -> ... -> host's link -> copy engine

Each is a resource: a rate, and one transfer at a time in the order of requests. A transfer begins at a resource when
it has begun at the one before and the resource is free, keeps it for bytes / rate, and is over when the slowest is. A
link carries whole flits, of which payload is a part, and is kept for `message_ns` more; so the links of InfiniBand,
NVLink and UALink are links like others. With `request_bytes`, each flit that is read also takes so much of the link's
other direction, where its request passes between what else goes there. The copy engine is held until the transfer is
over; all others only for their own time, as queues before links and cards take in what comes. A link with
`buffer_bytes` takes in no more than that: a transfer that finds no room (whole, or an empty buffer if it is larger)
stands still in the link or card that it came over, and whatever comes behind it there waits as well, also on its way
elsewhere: credits, and head-of-line blocking. Bytes that are spread over several cards move at once: what their ways
share carries their sum.

Memory that a host or a rank owns is also a card. Its owner takes no link to it; others take their own links and then
the owner's, against the direction in which the owner takes them. Each space has costs and engines of its own where its
file says so. On a coherent space, flushes, fences and invalidates take no time, and no doorbell overtakes what its
rank wrote before, as on one RDMA connection or XLink; each access but the owner's pays for coherence what the space
says.

Latencies are added at the end: a read waits for the load latency (way, card, way back), a write lands after the way
there and back, which only FENCE waits for, and a doorbell is seen at the pool after the way there. Switches never
block. A waiting rank observes a doorbell one poll (a load, and the cost of observing) after it arrives or after the
rank starts polling, whichever is later. Where `doorbell_data_ns` says so, a doorbell with data is one store to each
peer (NCCL's LL): all have it that much later, and no lane waits for another. A stream's costs of its own (Costs) pass
one after another; streams of one rank slow each other only through its engines. Not modelled: headers (but for flits
and requests), answers to writes, a processor's limit of requests under way, refresh, caches of hosts, a phase of
polling, doorbells' bytes.

cxlemu/cost/compute.py says what COMPUTE costs.

Here a topology becomes the tables with which cxlemu/native/cost computes, in C.
"""

from cxlemu.cost.model import CostModel
from cxlemu.cost.resources import SERVICE_RATE_FIELDS, Resource, bytes_per_ms, duration_ns

__all__ = ["SERVICE_RATE_FIELDS", "CostModel", "Resource", "bytes_per_ms", "duration_ns"]
