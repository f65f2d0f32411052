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

from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.topology.described import Described
from cxlemu.topology.fields import Misplaced, Name, Size

PAGE_BYTES_MAX = 2 << 20  # a huge page
TERMS = 1 << 16  # of a sum that are added one by one


class Workload(Described):
    """A pattern of accesses to pages. Some keys are for one kind only, which their description begins with."""

    noun: ClassVar[str] = "memory workload"
    folder: ClassVar[Path] = Path(__file__).parent / "shipped"

    name: Name = Field(description="the workload's name")
    description: Annotated[str, Field(max_length=200)] = Field(default="", description="one line for people")
    kind: Literal["chase", "zipf", "sessions"] = Field(description="chase, zipf or sessions")
    page_bytes: Size = Field(description="unit of placement and moves, for example 4KiB")
    access_bytes: Size = Field(description="bytes of a page that one access reads")
    skew: Annotated[float, Field(ge=0, le=4, allow_inf_nan=False)] | None = Field(
        default=None, description="zipf: reads of the k-th most popular item are proportional to k to the power -skew"
    )
    session_pages: Annotated[int, Field(ge=1, le=1 << 16)] | None = Field(
        default=None, description="sessions: pages of one session, read in order for every token"
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
            raise Misplaced(("page_bytes",), f"is {self.page_bytes} but should be whole lines, 2 MiB at most")
        if self.access_bytes > self.page_bytes:
            raise Misplaced(("access_bytes",), f"is {self.access_bytes} but should fit a page of {self.page_bytes}")
        return self

    def evenly(self, page_count: int, seed: int) -> NDArray[np.int64]:
        """Return each page once, in random order: what a trace amounts to where pages stay where they are.

        Which pages are popular does not matter then, as popular ones lie anywhere: rows in the order of their keys,
        sessions as they come.
        """
        return np.random.default_rng(seed).permutation(page_count)

    def trace(self, page_count: int, real_pages: int, accesses: int, seed: int) -> NDArray[np.int64]:
        """Return the page of each access, the same for a seed.

        Pages are apart by their popularity, as a policy that moves them tells them apart: each stands for equally many
        of ``real_pages`` that are about equally popular.
        """
        random = np.random.default_rng(seed)
        if self.kind == "chase":  # one cycle through all pages, again and again
            return np.resize(random.permutation(page_count), accesses)
        if self.kind == "zipf":
            ends = np.cumsum(zipf_shares(page_count, real_pages, self.skew or 0.0))
            places = np.searchsorted(ends, random.random(accesses), side="right")
            return random.permutation(page_count)[np.minimum(places, page_count - 1)]
        return _sessions(page_count, accesses, self.session_pages or 1, self.session_tokens or 1, random)


def zipf_shares(page_count: int, real_pages: int, skew: float) -> NDArray[np.float64]:
    """Return each part's share of all accesses, most popular first; the k-th page is read as often as k ** -skew."""
    ends = zipf_sums(np.linspace(0, real_pages, page_count + 1), skew)
    shares: NDArray[np.float64] = np.diff(ends) / ends[-1]
    return shares


def zipf_sums(upto: NDArray[np.float64], skew: float) -> NDArray[np.float64]:
    """Return the sum of k ** -skew over k from 1 to each of some numbers.

    Up to TERMS it is added term by term; from there on it is the integral with the trapezoidal correction of Euler and
    Maclaurin. In between it is a straight line.
    """
    few = np.arange(1, TERMS + 1, dtype=np.float64) ** -skew
    exact = np.interp(upto, np.arange(TERMS + 1), np.concatenate([[0.0], np.cumsum(few)]))
    x = np.maximum(upto, TERMS)
    grown = np.log(x / TERMS) if skew == 1 else (x ** (1 - skew) - TERMS ** (1 - skew)) / (1 - skew)
    sums: NDArray[np.float64] = exact + grown + np.where(upto > TERMS, (x**-skew - TERMS**-skew) / 2, 0)
    return sums


def _sessions(
    page_count: int, accesses: int, session_pages: int, tokens: int, random: np.random.Generator
) -> NDArray[np.int64]:
    """Sessions take turns; each reads all of its pages for every token of its turn. They lie evenly over all pages."""
    tokens = min(tokens, -(-accesses // session_pages))
    turns = -(-accesses // (session_pages * tokens))
    starts = random.permutation(turns) * page_count // turns
    pages = (starts[:, None] + np.arange(session_pages)) % page_count
    return np.tile(pages, tokens).reshape(-1)[:accesses]
