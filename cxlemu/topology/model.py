"""Topology: the whole machine, as read from its file."""

from __future__ import annotations

import warnings
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import PrivateAttr, model_validator

from cxlemu.errors import ArgumentError, ConfigError
from cxlemu.suggest import with_choices
from cxlemu.topology.checks import defects
from cxlemu.topology.document import Document, Key, read_bytes, shown
from cxlemu.topology.fields import validated
from cxlemu.topology.hardware import with_hardware
from cxlemu.topology.parts import Parts
from cxlemu.topology.provenance import Provenances, check_systems, figures, take_provenance, with_provenance
from cxlemu.topology.shipped import shipped_configs
from cxlemu.units import counted


class Topology(Parts):
    """The whole machine. Topologies are immutable, and equal if their files state the same."""

    _provenance: Provenances = PrivateAttr(default_factory=dict)

    @property
    def provenance(self) -> Provenances:
        """The origin of each figure, by its key in the file."""
        return self._provenance

    @property
    def standings(self) -> Provenances:
        """The old name of `provenance`."""
        warnings.warn(
            "topology.standings is topology.provenance now: 0.3.0 removes it", DeprecationWarning, stacklevel=2
        )
        return self.provenance

    @property
    def title(self) -> str:
        """The name, and the description if there is one."""
        return f"{self.name}: {self.description}" if self.description else self.name

    def bare_figures(self) -> list[Key]:
        """List the keys of the figures without provenance, in the file's order."""
        return [key for key in figures(self.plain()) if key not in self._provenance]

    def document(self) -> dict[str, Any]:
        """Return every value, defaults included, with its provenance, as in a file."""
        return with_provenance(self.plain(), self._provenance)

    def plain(self) -> dict[str, Any]:
        """Return every value, defaults included, without provenance."""
        data = self.model_dump(mode="json", exclude_none=True)
        alone = len(data["cards"]) == 1 and not any(key[:2] == ("cards", 0) for key in self._provenance)
        for index, group in enumerate(data["cards"]):
            said = ("cards", "count") if alone else ("cards", index, "count")
            if "owner" in group and said not in self._provenance:
                del group["count"]  # one each: the file does not say it
        if alone:
            (data["cards"],) = data["cards"]  # one group, written without the list around it
        return data

    @classmethod
    def load(cls, path_or_name: str | Path) -> Topology:
        """Read a topology from a file, or a shipped one by its name.

        Args:
            path_or_name: The path of a YAML file or a name of `shipped_configs`, with or without ``.yaml``. A file
                takes precedence over a shipped topology.

        Raises:
            ConfigError: The topology does not exist, or its file is wrong; one sentence, ``FILE:LINE: KEY what is wrong
                and what would be right``.
        """
        shipped, wanted = shipped_configs(), str(path_or_name)
        try:
            path = Path(path_or_name)
            if not path.is_file():
                path = shipped.get(wanted.removesuffix(".yaml"), path)
            exists = path.exists()
        except OSError:  # a name that no file can have, such as one that is too long
            exists = False
        if not exists:
            raise ConfigError(
                with_choices(f"{shown(wanted)} is neither a file nor a shipped topology", wanted, shipped, " ({})")
            )
        return _loaded(path) or cls._keep(path)

    @classmethod
    def _keep(cls, path: Path) -> Topology:
        document = Document.read(path)
        library = with_hardware(document)
        topology = cls._from_document(document)
        if len(_LOADED) == LOADED_MAX:
            _LOADED.clear()
        _LOADED[document.file] = topology, [its for its in (document, library) if its]
        return topology

    @classmethod
    def parse(cls, raw: bytes, file: str) -> Topology:
        """Read a topology from the bytes of a file.

        Args:
            raw: The file's content: YAML, in UTF-8.
            file: The file's name in errors; a hardware file that it names may lie in the same folder.

        Raises:
            ConfigError: As for `load`.
        """
        document = Document(raw, file)
        with_hardware(document)
        return cls._from_document(document)

    @classmethod
    def _from_document(cls, document: Document) -> Topology:
        data, provenance = take_provenance(document)
        topology = validated(cls, document, data)
        check_systems(document, provenance, topology.name)
        topology._provenance = provenance
        return topology

    @model_validator(mode="after")
    def _is_one_machine(self) -> Topology:
        for defect in defects(self):
            raise defect
        return self

    def load_latency_ns(self, host: int, card: int) -> int:
        """Return how long an idle 64-byte load takes, in ns: the way to the card and back, and the card itself.

        Args:
            host: The number of the host that loads.
            card: The number of the card, those with owners included.

        Raises:
            ArgumentError: The host does not reach the card.
        """
        route = self.fabric().route(host, card)
        if route is None or not 0 <= host < self.host_count:
            raise ArgumentError(f"host{host} does not reach card{card} in {self.name}")
        return 2 * route.latency_ns + self.card(card).latency_ns

    def place(self, ranks: int) -> tuple[int, ...]:
        """Place ranks on hosts: blocks of consecutive ranks, ``ranks_per_host`` each while they fit.

        More ranks than that are spread over all hosts as evenly as possible, lower hosts first, as mpirun's
        --oversubscribe does.

        Args:
            ranks: How many ranks the world has.

        Returns:
            The host of each rank.

        Raises:
            ArgumentError: ``ranks`` is less than 1.
        """
        if ranks < 1:
            raise ArgumentError(f"a world has at least one rank, not {ranks}")
        if ranks <= self.host_count * self.hosts.ranks_per_host:
            return tuple(rank // self.hosts.ranks_per_host for rank in range(ranks))
        share, more = divmod(ranks, self.host_count)
        return tuple(host for host in range(self.host_count) for _ in range(share + (host < more)))

    def describe_placement(self, ranks: int) -> str:
        """Describe for people how `place` places ``ranks`` ranks: ``4 ranks on 3 hosts (2+1+1)``."""
        counts = list(Counter(self.place(ranks)).values())
        each = "+".join(map(str, counts))
        if len(counts) > 8:
            each = f"{counts[0]} each" if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)} each"
        where = f" ({each})" if len(counts) > 1 else ""
        return f"{counted(ranks, 'rank')} on {counted(len(counts), 'host')}{where}"


# By path, with the files that each was made of: to parse and check them again takes 20 ms, and a world's start 50.
_LOADED: dict[str, tuple[Topology, list[Document]]] = {}
LOADED_MAX = 32


def _loaded(path: Path) -> Topology | None:
    """What was loaded from there, if its files still have the same content."""
    topology, documents = _LOADED.get(str(path), (None, []))
    with suppress(ConfigError):
        if all(its.raw == read_bytes(Path(its.file)) for its in documents):
            return topology
    return None
