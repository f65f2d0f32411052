"""What the emulated machine is made of: hosts, cards, switches, links and spaces, from a YAML file.

``document`` reads untrusted YAML and remembers lines, ``standing`` takes out how figures came about, ``fields``
and ``parts`` say what may stand in it, ``checks`` what the parts must be to each other, ``fabric`` finds routes,
``shipped`` the files that come with cxlemu, and ``accelerator`` what those of accelerators hold.
"""

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
