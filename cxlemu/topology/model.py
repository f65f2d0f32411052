"""Topology: the whole machine, as read from its file."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from pydantic import PrivateAttr, model_validator

from cxlemu.errors import ArgumentError, ConfigError
from cxlemu.topology.checks import defects
from cxlemu.topology.document import Document, Key, shown
from cxlemu.topology.fields import listed, validated
from cxlemu.topology.hardware import with_hardware
from cxlemu.topology.parts import Parts
from cxlemu.topology.provenance import Provenances, figures, take_provenance, with_provenance
from cxlemu.topology.shipped import shipped_configs


class Topology(Parts):
    """The whole machine. Immutable; equal where the files say the same."""

    _provenance: Provenances = PrivateAttr(default_factory=dict)

    @property
    def provenance(self) -> Provenances:
        """How its figures came about, by their keys in the file."""
        return self._provenance

    @property
    def standings(self) -> Provenances:
        """The old name of `provenance`."""
        warnings.warn("topology.standings is called topology.provenance now", DeprecationWarning, stacklevel=2)
        return self.provenance

    def bare_figures(self) -> list[Key]:
        """List the keys of the figures without provenance, in the file's order."""
        return [key for key in figures(self._plain()) if key not in self._provenance]

    def document(self) -> dict[str, Any]:
        """Return every value, defaults included, with its provenance: as a file says it."""
        return with_provenance(self._plain(), self._provenance)

    def _plain(self) -> dict[str, Any]:
        data = self.model_dump(mode="json", exclude_none=True)
        alone = len(data["cards"]) == 1 and not any(key[:2] == ("cards", 0) for key in self._provenance)
        for index, group in enumerate(data["cards"]):
            said = ("cards", "count") if alone else ("cards", index, "count")
            if "owner" in group and said not in self._provenance:
                del group["count"]  # one each, as nobody says
        if alone:
            (data["cards"],) = data["cards"]  # one group, written without the list around it
        return data

    @classmethod
    def load(cls, path_or_name: str | Path) -> Topology:
        """From a file, or by the name of a shipped config.

        Raises ConfigError, one sentence: ``FILE:LINE: KEY what is wrong and what would be right``.
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
            raise ConfigError(f"{shown(wanted)} is neither a file nor a shipped topology ({listed(shipped)})")
        return cls._from_document(Document.read(path))

    @classmethod
    def parse(cls, raw: bytes, file: str) -> Topology:
        """From the bytes of a file; ``file`` is its name in errors. Raises ConfigError as ``load`` does."""
        return cls._from_document(Document(raw, file))

    @classmethod
    def _from_document(cls, document: Document) -> Topology:
        with_hardware(document)
        data, provenance = take_provenance(document)
        topology = validated(cls, document, data)
        topology._provenance = provenance
        return topology

    @model_validator(mode="after")
    def _is_one_machine(self) -> Topology:
        for defect in defects(self):
            raise defect
        return self

    def load_latency_ns(self, host: int, card: int) -> int:
        """An idle 64-byte load: the way to the card and back, and the card itself.

        Raises ArgumentError where the host does not reach the card.
        """
        route = self.fabric().route(host, card)
        if route is None or not 0 <= host < self.host_count:
            raise ArgumentError(f"host{host} does not reach card{card} in {self.name}")
        return 2 * route.latency_ns + self.card(card).latency_ns

    def place(self, ranks: int) -> tuple[int, ...]:
        """The host of each rank: blocks of consecutive ranks, ``ranks_per_host`` each while they fit.

        More ranks than that are spread over all hosts as evenly as possible, lower hosts first, as mpirun's
        --oversubscribe does. Raises ArgumentError without ranks.
        """
        if ranks < 1:
            raise ArgumentError(f"a world has at least one rank, not {ranks}")
        if ranks <= self.host_count * self.hosts.ranks_per_host:
            return tuple(rank // self.hosts.ranks_per_host for rank in range(ranks))
        share, more = divmod(ranks, self.host_count)
        return tuple(host for host in range(self.host_count) for _ in range(share + (host < more)))

    def describe_placement(self, ranks: int) -> str:
        """For people: ``4 ranks on 3 hosts (2+1+1)``."""
        counts = list(Counter(self.place(ranks)).values())
        each = "+".join(map(str, counts))
        if len(counts) > 8:
            each = f"{counts[0]} each" if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)} each"
        where = f" ({each})" if len(counts) > 1 else ""
        return f"{_plural(ranks, 'rank')} on {_plural(len(counts), 'host')}{where}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")
