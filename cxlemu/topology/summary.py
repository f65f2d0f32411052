"""What `cxlemu topology list` says of shipped topologies, read without loading them whole, which takes much longer."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from cxlemu.topology.shipped import shipped_configs, shipped_hardware

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Summary(NamedTuple):
    """One line of the list. Hosts and cards are counted: memory with owners included, as `Topology.card_count`."""

    name: str
    description: str
    hosts: int
    cards: int


def summaries() -> Iterator[Summary]:
    """Yield a summary of each shipped topology, in alphabetical order. Raises ConfigError for a file that is wrong."""
    for name, path in shipped_configs().items():
        try:
            yield _read(name, path)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError):
            yield _loaded(name)  # which says what is wrong


def _read(name: str, path: Path) -> Summary:
    data = yaml.load(path.read_bytes(), _Loader)
    shared = yaml.load(shipped_hardware()[data["hardware"]].read_bytes(), _Loader) if "hardware" in data else {}
    hosts = _whole(data["hosts"], shared)
    owners = {"hosts": hosts["count"], "ranks": hosts["count"] * hosts.get("ranks_per_host", 1)}
    groups = data["cards"] if isinstance(data["cards"], list) else [data["cards"]]
    counts = (
        owners.get(whole.get("owner", ""), whole.get("count", 1)) for whole in (_whole(each, shared) for each in groups)
    )
    return Summary(name, _plain(data.get("description", "")), hosts["count"], sum(counts))


def _whole(entry: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    """The entry together with the one that it is like, see hardware.py."""
    like = _whole(shared[entry["like"]], shared) if "like" in entry else {}
    return like | {key: _plain(value) for key, value in entry.items()}


def _plain(value: Any) -> Any:
    """A value without its provenance."""
    return value["value"] if isinstance(value, dict) and "value" in value else value


def _loaded(name: str) -> Summary:
    from cxlemu.topology.model import Topology

    topology = Topology.load(name)
    return Summary(name, topology.description, topology.host_count, topology.card_count)
