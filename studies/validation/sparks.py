"""What is known of the network of two DGX Sparks (GB10), whose small all_reduces were measured.

- A port of 200 Gb/s is two adapters of 100 Gb/s, each on four PCIe lanes, and a channel of NCCL takes one of them
  (NVIDIA/dgx-spark-playbooks issue 102).
- No adapter reaches the GPU's memory: NCCL copies through the host's (local-inference-lab/b12x pull request 294). Over
  a way through the host NCCL takes no LL128: only where adapter and GPU are no further from each other than a PCIe
  switch or, from Hopper on, another GPU's adapter (NCCL src/graph/tuning.cc, typeInter up to PATH_PXN).

What a copy through the host costs is not published, so a step has NCCL's own latency here, too.
"""

from cxlemu.topology import Topology

ADAPTERS = 2
NOT_TAKEN = "ll128"


def of_sparks(topology: Topology) -> Topology:
    """Return a machine whose hosts have the adapters and protocols of DGX Sparks."""
    links = (link.model_copy(update={"gbytes_per_s": link.gbytes_per_s / ADAPTERS}) for link in topology.links)
    spaces = (
        space.model_copy(
            update={"protocols": tuple(protocol for protocol in space.protocols if protocol.name != NOT_TAKEN)}
        )
        if space.protocols
        else space
        for space in topology.spaces
    )
    return topology.model_copy(update={"links": tuple(links), "spaces": tuple(spaces)})
