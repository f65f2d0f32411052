"""Which rank holds what of a model: data, tensor, pipeline, fully sharded data parallelism; and what is recomputed."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from cxlemu.errors import ArgumentError

RECOMPUTE = ("none", "selective", "full")
DEGREES = {"dp": "data", "tp": "tensor", "pp": "pipeline"}
FLAGS = {"fsdp": "sharded", "sp": "sequence", "overlap": "overlap", "serial": "overlap"}


@dataclass(frozen=True, slots=True)
class Parallelism:
    """How ranks divide a model.

    There are ``data`` x ``tensor`` x ``pipeline`` ranks; tensor ranks are neighbours, then data, then pipeline.

    Attributes:
        sharded: Parameters are gathered block by block and dropped again (FSDP, ZeRO-3). Without it every data rank
            holds all parameters of its stage, and only the optimizer is sharded (ZeRO-1).
        sequence: What tensor parallelism leaves whole is divided by tokens (arXiv 2205.05198).
        overlap: Communication between data ranks goes on behind the computation.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    sharded: bool = False
    sequence: bool = False
    overlap: bool = True

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return self.data * self.tensor * self.pipeline

    @classmethod
    def parse(cls, text: str, ranks: int | None) -> Parallelism:
        """Read ``--parallel``: ``fsdp``, ``tp=8,pp=64,dp=6,sp`` or ``fsdp,tp=12,serial``.

        Args:
            text: Words with commas between them.
            ranks: How many ranks there are, which gives dp where the text leaves it open; None: as the text says.

        Raises:
            ArgumentError: A word is unknown, or the degrees do not multiply to the ranks.
        """
        given: dict[str, Any] = {}
        for word in text.split(","):
            name, _, value = word.strip().partition("=")
            if name in FLAGS and not value:
                given[FLAGS[name]] = name != "serial"
            elif name in DEGREES and re.fullmatch(r"[1-9][0-9]{0,5}", value):
                given[DEGREES[name]] = int(value)
            else:
                raise ArgumentError(
                    f"--parallel {word.strip()!r} is not a word of it: write fsdp, sp, serial, dp=N, tp=N or pp=N, "
                    f"with commas between them"
                )
        found = cls(**given)
        if found.sharded and found.pipeline > 1:
            raise ArgumentError("--parallel: fsdp does not go with pp: it would gather every stage for each microbatch")
        if "data" not in given and ranks is not None:
            data, rest = divmod(ranks, found.tensor * found.pipeline)
            if rest or not data:
                raise ArgumentError(f"--parallel {text}: {ranks} ranks are no multiple of tp x pp, {found.ranks}")
            found = replace(found, data=data)
        if ranks is not None and found.ranks != ranks:
            raise ArgumentError(f"--parallel {text}: dp x tp x pp is {found.ranks}, but there are {ranks} ranks")
        return found

    def __str__(self) -> str:
        kind = "fsdp" if self.sharded else "dp"
        words = [f"{kind}={self.data}", f"tp={self.tensor}", f"pp={self.pipeline}"]
        return " ".join(words + ["sp"] * self.sequence + ["serial"] * (not self.overlap))
