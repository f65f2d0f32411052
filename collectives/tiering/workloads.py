"""Memory-bound workloads: which pages are touched in which order, and how many bytes of each.

A working set of terabytes is modelled by a sample of its pages, in tiers that hold the same part of them (as SHARDS
does, Waldspurger et al., FAST 2015): pages and what is read of them keep their sizes, only there are fewer of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from collectives.workloads.described import Described
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.topology.fields import Misplaced, Name, Size

PAGE_BYTES_MAX = 1 << 30


class Workload(Described):
    """What is touched how. Some keys are for one kind only, which their description begins with."""

    noun: ClassVar[str] = "memory workload"
    folder: ClassVar[Path] = Path(__file__).parent / "shipped"

    name: Name = Field(description="the workload's name")
    description: Annotated[str, Field(max_length=200)] = Field(default="", description="one line for people")
    kind: Literal["chase", "zipf", "sessions"] = Field(description="chase, zipf or sessions")
    page_bytes: Size = Field(description="what is placed and moved as one, for example 4KiB")
    access_bytes: Size = Field(description="what one access reads of a page")
    skew: Annotated[float, Field(ge=0, le=4, allow_inf_nan=False)] | None = Field(
        default=None, description="zipf: the k-th most popular item is read as often as k to the power -skew"
    )
    session_pages: Annotated[int, Field(ge=1, le=1 << 16)] | None = Field(
        default=None, description="sessions: pages of one, read one after another for every token"
    )
    session_tokens: Annotated[int, Field(ge=1, le=1 << 16)] | None = Field(
        default=None, description="sessions: tokens in a row before the next session's turn"
    )

    @model_validator(mode="after")
    def _has_what_its_kind_needs(self) -> Workload:
        needs = {"chase": (), "zipf": ("skew",), "sessions": ("session_pages", "session_tokens")}
        for kind, keys in needs.items():
            for key in keys:
                if kind == self.kind and getattr(self, key) is None:
                    raise Misplaced((key,), f"is missing: a workload of kind {kind} has one")
                if kind != self.kind and getattr(self, key) is not None:
                    raise Misplaced((key,), f"does not apply to a workload of kind {self.kind}; leave it out")
        if self.page_bytes % LINE_BYTES or self.page_bytes > PAGE_BYTES_MAX:
            raise Misplaced(("page_bytes",), f"is {self.page_bytes} but should be whole lines, 1 GiB at most")
        if self.access_bytes > self.page_bytes:
            raise Misplaced(("access_bytes",), f"is {self.access_bytes} but should fit a page of {self.page_bytes}")
        return self

    def trace(self, page_count: int, passes: int, seed: int) -> NDArray[np.int64]:
        """The page of each access, of ``page_count``; the same for a seed. All passes are equally long."""
        random = np.random.default_rng(seed)
        if self.kind == "chase":
            return _chase(page_count, passes, random)
        if self.kind == "zipf":
            return _zipf(page_count, passes * page_count, self.skew or 0.0, random)
        return _sessions(page_count, passes, self.session_pages or 1, self.session_tokens or 1, random)


def _chase(page_count: int, passes: int, random: np.random.Generator) -> NDArray[np.int64]:
    """One cycle through all pages, in random order, again and again: every page is touched equally often."""
    return np.tile(random.permutation(page_count), passes)


def zipf_shares(page_count: int, skew: float) -> NDArray[np.float64]:
    """How large a part of all accesses goes to the k-th most popular page."""
    weights = np.arange(1, page_count + 1, dtype=np.float64) ** -skew
    shares: NDArray[np.float64] = weights / weights.sum()
    return shares


def _zipf(page_count: int, accesses: int, skew: float, random: np.random.Generator) -> NDArray[np.int64]:
    """Independent draws. Popular pages lie anywhere: rows are stored in the order of their keys."""
    ranks = np.searchsorted(np.cumsum(zipf_shares(page_count, skew)), random.random(accesses), side="right")
    found: NDArray[np.int64] = random.permutation(page_count)[np.minimum(ranks, page_count - 1)]
    return found


def _sessions(
    page_count: int, passes: int, session_pages: int, tokens: int, random: np.random.Generator
) -> NDArray[np.int64]:
    """Sessions take turns in random order; each reads all of its pages for every token of its turn."""
    starts = np.arange(0, page_count, session_pages)
    return np.concatenate(
        [
            np.tile(np.arange(start, min(start + session_pages, page_count)), tokens)
            for _ in range(passes)
            for start in random.permutation(starts).tolist()
        ]
    )
