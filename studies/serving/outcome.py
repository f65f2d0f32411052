"""What a run of requests amounts to: times, rates, hits, and the bytes on each link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cxlemu.engines.virtual import Use
from studies.serving.instance import Served
from studies.serving.simulation import Simulation

PERCENTILES = (50, 90, 99)
SATURATED = 0.9  # of the time, for the busiest link or card


@dataclass(frozen=True)
class Spread:
    """Times of many requests, in ns; NumPy's percentiles, on a line between two times."""

    mean: float
    percentiles: tuple[float, ...]
    largest: float

    @classmethod
    def of(cls, times: Sequence[float | None]) -> Spread | None:
        """Sum up the times that are there; None where none is."""
        there = [ns for ns in times if ns is not None]
        if not there:
            return None
        return cls(float(np.mean(there)), tuple(np.percentile(there, PERCENTILES).tolist()), float(max(there)))

    def document(self) -> dict[str, float]:
        """Return the times by their names in JSON, in ns."""
        named = {f"p{p}_ns": ns for p, ns in zip(PERCENTILES, self.percentiles, strict=True)}
        return {"mean_ns": self.mean, **named, "max_ns": self.largest}


@dataclass(frozen=True)
class ServingOutcome:
    """A run, summed up."""

    run: Simulation
    done: list[Served]  # those that were served
    span_ns: int  # from the first request to the last token
    uses: list[Use]  # of links, cards and copy engines

    @classmethod
    def of(cls, run: Simulation) -> ServingOutcome:
        """Sum up a run that is over."""
        done = [reply for reply in run.served if reply.end_ns is not None]
        begin_ns = min((reply.request.arrival_ns for reply in run.served), default=0)
        end_ns = max((reply.end_ns or 0 for reply in done), default=begin_ns)
        return cls(run, done, end_ns - begin_ns, run.movement.transfers.uses)

    @property
    def first_token(self) -> Spread | None:
        """The times to the first token."""
        return Spread.of([reply.at_once_ns for reply in self.done])

    @property
    def next_token(self) -> Spread | None:
        """The times per output token after the first."""
        return Spread.of([reply.token_ns for reply in self.done])

    @property
    def input_tokens(self) -> int:
        """The input of all that was served."""
        return sum(reply.request.input_tokens for reply in self.done)

    @property
    def output_tokens(self) -> int:
        """The output of all that was served."""
        return sum(reply.request.output_tokens for reply in self.done)

    @property
    def from_accelerator(self) -> int:
        """Tokens of the input that the accelerators' memory had."""
        return sum(reply.from_accelerator for reply in self.done)

    @property
    def from_store(self) -> int:
        """Tokens of the input that the store had."""
        return sum(reply.from_store for reply in self.done)

    @property
    def hit_rate(self) -> float:
        """The part of the input that was reused."""
        return (self.from_accelerator + self.from_store) / max(self.input_tokens, 1)

    def per_s(self, count: int) -> float:
        """Return how many of something there were in a second."""
        return count / (self.span_ns / 1e9) if self.span_ns else 0.0

    @property
    def busiest(self) -> tuple[Use, float] | None:
        """The link or card that was busy longest, and for which part of the time."""
        there = [use for use in self.uses if use.resource.kind in ("link", "card")]
        if not there or not self.span_ns:
            return None
        use = max(there, key=lambda use: use.busy_ns)
        return use, min(use.busy_ns / self.span_ns, 1.0)

    @property
    def slowdown(self) -> float | None:
        """How many times as long transfers took as they would have alone; None without transfers."""
        movement = self.run.movement
        return (
            movement.taken_ns / (movement.taken_ns - movement.queued_ns)
            if movement.taken_ns > movement.queued_ns
            else None
        )

    @property
    def computing(self) -> float:
        """The part of the time for which the mean instance computed."""
        every = self.run.instances
        return sum(one.busy_ns for one in every) / len(every) / self.span_ns if self.span_ns else 0.0

    def document(self) -> dict[str, Any]:
        first, following = self.first_token, self.next_token
        return {
            "place": self.run.setup.place,
            "hosts": self.run.setup.topology.host_count,
            "instances": len(self.run.instances),
            "requests": len(self.run.served),
            "served": len(self.done),
            "refused": sum(reply.refused for reply in self.run.served),
            "restarts": sum(reply.restarts for reply in self.run.served),
            "span_ns": self.span_ns,
            "first_token": None if first is None else first.document(),
            "token": None if following is None else following.document(),
            "requests_per_s": self.per_s(len(self.done)),
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "output_tokens_per_s": self.per_s(self.output_tokens),
            "hit_rate": self.hit_rate,
            "from_accelerator_tokens": self.from_accelerator,
            "from_store_tokens": self.from_store,
            "computed_again_tokens": sum(reply.again for reply in self.run.served),
            "evicted_blocks": self.run.place.evicted,
            "unwritten_blocks": self.run.unwritten,
            "transfers_slowdown": self.slowdown,
            "computing": self.computing,
            "happened": [str(event) for event in self.run.happened],
            "resources": [
                {
                    "name": use.resource.name,
                    "kind": use.resource.kind,
                    "bytes": use.bytes,
                    "busy_ns": use.busy_ns,
                    "queue_ns": use.queue_ns,
                }
                for use in self.uses
            ],
        }
