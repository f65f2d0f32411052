"""Machines around a fabric that a few lines describe."""

from cxlemu.topology import Topology

LEAF_SPINE = """
kind: leaf_spine
leaves: 4
spines: 2
port_latency_ns: 100
host_link: {gbytes_per_s: 64, latency_ns: 20}
card_link: {gbytes_per_s: 32, latency_ns: 20}
trunk: {gbytes_per_s: 128, latency_ns: 50}
"""
CLOS = """
kind: clos
levels:
  - {down: 2, up: 2, trunk: {gbytes_per_s: 64, latency_ns: 50}}
  - {down: 3, up: 3, trunk: {gbytes_per_s: 32, latency_ns: 70}}
port_latency_ns: 100
host_link: {gbytes_per_s: 64, latency_ns: 20}
card_link: {gbytes_per_s: 32, latency_ns: 20}
"""
TORUS = """
kind: torus
dimensions: [4, 3, 2]
port_latency_ns: 100
host_link: {gbytes_per_s: 64, latency_ns: 20}
card_link: {gbytes_per_s: 32, latency_ns: 20}
trunk: {gbytes_per_s: 50, latency_ns: 30}
"""
DRAGONFLY = """
kind: dragonfly
groups: 7
routers: 3
port_latency_ns: 100
host_link: {gbytes_per_s: 64, latency_ns: 20}
card_link: {gbytes_per_s: 32, latency_ns: 20}
local_link: {gbytes_per_s: 50, latency_ns: 30}
global_link: {gbytes_per_s: 25, latency_ns: 200}
"""
KINDS = {"leaf_spine": LEAF_SPINE, "clos": CLOS, "torus": TORUS, "dragonfly": DRAGONFLY}


def machine_text(fabric: str, hosts: int = 8, cards: int = 4, *, name: str = "cxl", more: str = "") -> str:
    """``fabric``: the lines of one fabric but its name. ``more``: further lines of the file."""
    lines = [f"  - name: {name}"] + [f"    {line}" for line in fabric.strip().splitlines()]
    return f"""
name: hierarchy
hosts: {{count: {hosts}, memory: {{latency_ns: 100, read_gbytes_per_s: 100, write_gbytes_per_s: 100}}}}
cards: {{count: {cards}, capacity_bytes: 128GiB, latency_ns: 300, read_gbytes_per_s: 30, write_gbytes_per_s: 30,
        total_gbytes_per_s: 60}}
spaces: [{{name: pool, kind: cxl_pool, coherent: false, interleave_bytes: 64KiB}}]
emulation: {{card_bytes: 1MiB}}
{more}
fabrics:
""" + "\n".join(lines)


def machine(fabric: str, hosts: int = 8, cards: int = 4, *, more: str = "") -> Topology:
    return Topology.parse(machine_text(fabric, hosts, cards, more=more).encode(), "hierarchy.yaml")
