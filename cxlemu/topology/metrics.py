"""What a generated fabric offers: its parts, how many switches lie between hosts, how much its middle carries."""

from collections import Counter, deque
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from cxlemu.topology.endpoints import members
from cxlemu.topology.fields import Link
from cxlemu.topology.hierarchies import AnyHierarchy
from cxlemu.topology.parts import Parts

Capacities = dict[str, dict[str, int]]  # switch -> neighbour -> bandwidth of that direction, in MB/s


class FabricMetrics(NamedTuple):
    """What one fabric offers; of several domains, hops, bisection and oversubscription are the first one's."""

    name: str
    kind: str  # how it is generated: ``leaf_spine``, ``torus``
    switches: dict[str, int]  # count of switches by role, such as ``leaf`` and ``spine``
    links: dict[str, int]  # count of links by what they join: ``host``, ``card`` or ``trunk``
    hosts: int
    cards: int
    # fewest switches on a shortest path between two hosts; None where there is one host
    switches_between_hosts_min: int | None
    switches_between_hosts_mean: float | None  # the mean over all pairs of hosts
    switches_between_hosts_max: int | None  # over all pairs of hosts
    # how much the lower half of the hosts can send to the upper half at once, over all paths together; None where there
    # is one host
    bisection_gbytes_per_s: float | None
    # what that half's own links could send, divided by the bisection; None where there is one host
    oversubscription: float | None


def fabric_metrics(topology: Parts, fabric: AnyHierarchy) -> FabricMetrics:
    prefix = f"{fabric.name}-"
    switches = [switch for switch in topology.expanded.switches if switch.name.startswith(prefix)]
    links = [link for link in topology.expanded.links if link.name.startswith(prefix)]
    ports = {"host": dict[int, tuple[str, int]](), "card": dict[int, tuple[str, int]]()}
    trunks: Capacities = {switch.name: {} for switch in switches}
    kinds: Counter[str] = Counter()
    for link in links:
        some = members(link.ends[0])
        if some is None:
            kinds["trunk"] += 1
            for one, other in (link.ends, link.ends[::-1]):
                trunks[one][other] = trunks[one].get(other, 0) + _mbytes(link)
        else:
            kinds[some.kind] += len(some.numbers)
            ports[some.kind].update(dict.fromkeys(some.numbers, (link.ends[1], _mbytes(link))))
    hosts = dict(sorted(ports["host"].items()))
    first = _reached(trunks, next(iter(hosts.values()))[0])
    near = [port for port in hosts.values() if port[0] in first]
    half = len(near) // 2
    apart = _between(trunks, Counter(switch for switch, _ in near))
    middle = _most(trunks, near[:half], near[half:]) if half else 0
    count = sum(apart.values())
    return FabricMetrics(
        fabric.name,
        fabric.kind,
        dict(Counter(noun(fabric, switch.name) for switch in switches)),
        dict(kinds),
        len(hosts),
        len(ports["card"]),
        min(apart, default=None),
        sum(switches * pairs for switches, pairs in apart.items()) / count if count else None,
        max(apart, default=None),
        middle / 1000 if half else None,
        sum(mbytes for _, mbytes in near[:half]) / middle if middle else None,
    )


def noun(fabric: AnyHierarchy, switch: str) -> str:
    """Return what kind of part a switch is, such as ``leaf``: its name without fabric and number."""
    return {"torus": "switch", "dragonfly": "router", "xlink": "domain"}.get(
        fabric.kind, switch.removeprefix(f"{fabric.name}-").rstrip("0123456789").rstrip(".")
    )


def _mbytes(link: Link) -> int:
    return round(link.gbytes_per_s * 1000)


def _reached(trunks: Capacities, start: str) -> dict[str, int]:
    """How many links that carry something away from ``start`` each switch is, breadth first."""
    depths, waiting = {start: 0}, deque([start])
    while waiting:
        here = waiting.popleft()
        for there, mbytes in trunks[here].items():
            if mbytes and there not in depths:
                depths[there] = depths[here] + 1
                waiting.append(there)
    return depths


def _between(trunks: Capacities, edges: Mapping[str, int]) -> Counter[int]:
    """Count the ordered pairs of hosts by how many switches lie between them."""
    counts: Counter[int] = Counter()
    for switch, hosts in edges.items():
        for other, links in _reached(trunks, switch).items():
            others = edges.get(other, 0)
            counts[links + 1] += hosts * (others - 1) if other == switch else hosts * others
    return +counts


def _most(trunks: Capacities, senders: list[tuple[str, int]], receivers: list[tuple[str, int]]) -> int:
    """The maximum flow, in MB/s (Dinic): as much as can be sent at once, in any parts over any ways."""
    left: Capacities = {name: dict(to) for name, to in trunks.items()}
    source, sink = "", " "
    left[source], left[sink] = {}, {}
    for switch, mbytes in senders:
        left[source][switch] = left[source].get(switch, 0) + mbytes
        left[switch].setdefault(source, 0)
    for switch, mbytes in receivers:
        left[switch][sink] = left[switch].get(sink, 0) + mbytes
        left[sink].setdefault(switch, 0)
    flow = 0
    while True:
        distance = _reached(left, source)
        if sink not in distance:
            return flow
        ways = {name: iter(list(to)) for name, to in left.items()}  # each way on is tried once a phase
        path = [source]
        while path:
            here = path[-1]
            if here == sink:
                steps = list(pairwise(path))
                sent = min(left[one][other] for one, other in steps)
                for one, other in steps:
                    left[one][other] -= sent
                    left[other][one] += sent
                flow += sent
                path = [source]
                ways[source] = iter(list(left[source]))
                continue
            for there in ways[here]:
                if left[here][there] and distance.get(there) == distance[here] + 1:
                    path.append(there)
                    break
            else:
                path.pop()
