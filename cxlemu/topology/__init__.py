"""What the emulated machine is made of: hosts, cards, switches, links and spaces, from a YAML file.

``document`` reads untrusted YAML and remembers lines, ``provenance`` takes out how figures came about, ``fields``
and ``parts`` say what may stand in it, ``checks`` what the parts must be to each other, ``fabric`` finds routes,
``shipped`` the files that come with cxlemu, and ``accelerator`` what those of accelerators hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cxlemu.lazy import imported_when_asked_for

if TYPE_CHECKING:
    from cxlemu.topology.accelerator import Accelerator
    from cxlemu.topology.fabric import Fabric, Route
    from cxlemu.topology.fields import Cards, Costs, Emulation, Hosts, Item, Link, LocalMemory, Protocol, Space, Switch
    from cxlemu.topology.model import Topology
    from cxlemu.topology.shipped import shipped_accelerators, shipped_configs

__all__ = [
    "Accelerator",
    "Cards",
    "Costs",
    "Emulation",
    "Fabric",
    "Hosts",
    "Item",
    "Link",
    "LocalMemory",
    "Protocol",
    "Route",
    "Space",
    "Switch",
    "Topology",
    "shipped_accelerators",
    "shipped_configs",
]

__getattr__ = imported_when_asked_for(
    __name__,
    accelerator=["Accelerator"],
    fabric=["Fabric", "Route"],
    fields=["Cards", "Costs", "Emulation", "Hosts", "Item", "Link", "LocalMemory", "Protocol", "Space", "Switch"],
    model=["Topology"],
    shipped=["shipped_accelerators", "shipped_configs"],
)
