"""What may go wrong, or begin late, while requests are served."""

from __future__ import annotations

import re
from typing import NamedTuple

from cxlemu.errors import ArgumentError
from cxlemu.topology import Topology

CRASH, LOSE_CARD, COLD = "crash", "lose-card", "cold-start"


class Incident(NamedTuple):
    """Something that happens to a host or a card at a time."""

    kind: str
    number: int
    at_ns: int

    def __str__(self) -> str:
        return f"--{self.kind} {self.number}@{self.at_ns / 1e9:g}"

    @classmethod
    def parse(cls, kind: str, text: str, topology: Topology) -> Incident:
        """Read ``NUMBER@SECONDS``."""
        match = re.fullmatch(r"([0-9]{1,6})@([0-9]{1,7}(?:\.[0-9]{1,9})?)", text)
        if match is None:
            raise ArgumentError(f"--{kind} {text!r} should be NUMBER@SECONDS, such as 0@12.5")
        number = int(match[1])
        if kind == LOSE_CARD:
            what, there = "card", sum(group.count for group in topology.cards if group.owner is None)
        else:
            what, there = "host", topology.host_count
        if number >= there:
            raise ArgumentError(f"--{kind} {text}: {topology.name} has {there} {what}s in all, numbered from 0")
        return cls(kind, number, round(float(match[2]) * 1e9))
