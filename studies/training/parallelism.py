"""Which rank holds what of a model: data, tensor, pipeline, fully sharded data parallelism; and what is recomputed."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from cxlemu.errors import ArgumentError

RECOMPUTE = ("none", "selective", "full")
DEGREES = {"dp": "data", "tp": "tensor", "pp": "pipeline", "ep": "expert", "cp": "context"}
FLAGS = {"fsdp": "sharded", "sp": "sequence", "overlap": "overlap", "serial": "overlap", "ring": "ring"}


@dataclass(frozen=True, slots=True)
class Parallelism:
    """How ranks divide a model.

    There are ``data`` x ``context`` x ``tensor`` x ``pipeline`` ranks; tensor ranks are neighbours, then context, then
    data, then pipeline. ``expert`` of the data and context ranks share the experts of a block.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1  # ranks that share a block's experts, and send each other's tokens there
    context: int = 1  # ranks that share a sequence, each with a part of its tokens
    ring: bool = False  # keys and values go round among context ranks behind the scores, instead of being gathered
    # parameters are gathered block by block and dropped again (FSDP, ZeRO-3). Without it every data rank holds all
    # parameters of its stage, and only the optimizer is sharded (ZeRO-1)
    sharded: bool = False
    sequence: bool = False  # what tensor parallelism leaves whole is divided by tokens (arXiv 2205.05198)
    overlap: bool = True  # communication between data ranks goes on behind the computation

    @property
    def ranks(self) -> int:
        return self.replicas * self.tensor * self.pipeline

    @property
    def replicas(self) -> int:
        """The ranks that hold, or share, the same weights: data and context ranks."""
        return self.data * self.context

    @classmethod
    def parse(cls, text: str, ranks: int | None) -> Parallelism:
        """Read ``--parallel``: ``fsdp``, ``tp=8,pp=64,dp=6,sp`` or ``fsdp,tp=12,serial``."""
        given: dict[str, Any] = {}
        for word in text.split(","):
            name, _, value = word.strip().partition("=")
            if (FLAGS | DEGREES).get(name) in given:
                raise ArgumentError(f"--parallel {text}: {name} is named twice")
            if name in FLAGS and not value:
                given[FLAGS[name]] = name != "serial"
            elif name in DEGREES and re.fullmatch(r"[1-9][0-9]{0,5}", value):
                given[DEGREES[name]] = int(value)
            else:
                raise ArgumentError(
                    f"--parallel does not take {word.strip()!r}: write fsdp, sp, serial, ring, dp=N, tp=N, pp=N, "
                    f"ep=N or cp=N, with commas between them"
                )
        ways = cls(**given)
        if ways.sharded and ways.pipeline > 1:
            raise ArgumentError("--parallel: fsdp does not go with pp: it would gather every stage for each microbatch")
        if "data" not in given and ranks is not None:
            data, rest = divmod(ranks, ways.ranks)
            words = "tp x pp" + " x cp" * (ways.context > 1)
            if rest or not data:
                raise ArgumentError(f"--parallel {text}: {ranks} ranks are not a multiple of {words}, {ways.ranks}")
            ways = replace(ways, data=data)
        if ranks is not None and ways.ranks != ranks:
            words = "dp x tp x pp" + " x cp" * (ways.context > 1)
            raise ArgumentError(f"--parallel {text}: {words} is {ways.ranks}, but there are {ranks} ranks")
        if ways.replicas % ways.expert:
            raise ArgumentError(
                f"--parallel {text}: ep={ways.expert} does not divide the {ways.replicas} ranks that hold the same "
                f"weights, which share the experts"
            )
        if ways.ring and ways.context == 1:
            raise ArgumentError(f"--parallel {text}: ring goes with cp=N, whose keys and values travel in a ring")
        return ways

    def __str__(self) -> str:
        kind = "fsdp" if self.sharded else "dp"
        words = [f"{kind}={self.data}", f"tp={self.tensor}", f"pp={self.pipeline}"]
        words += [f"ep={self.expert}"] * (self.expert > 1) + [f"cp={self.context}"] * (self.context > 1)
        return " ".join(words + ["ring"] * self.ring + ["sp"] * self.sequence + ["serial"] * (not self.overlap))
