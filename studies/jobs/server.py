"""A job that serves requests with a language model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cxlemu.engines.shared import SharedFabric
from studies.jobs.job import Figure
from studies.serving.instance import Served
from studies.serving.outcome import PERCENTILES, ServingOutcome
from studies.serving.requests import ServingRequest
from studies.serving.simulation import ServingSetup, Simulation


@dataclass(frozen=True)
class ServingJob:
    setup: ServingSetup
    requests: Sequence[ServingRequest]
    hosts: int
    name: str = "serving"

    @property
    def ranks(self) -> int:
        return self.hosts * self.setup.topology.hosts.ranks_per_host

    def begin(self, fabric: SharedFabric, ranks: range) -> Serving:
        """Begin at time 0, which the requests' arrivals count from."""
        run = Simulation(
            self.setup, [Served(number, request) for number, request in enumerate(self.requests)], fabric, ranks
        )
        run.begin()
        return Serving(run)


@dataclass
class Serving:
    run: Simulation
    repeats: bool = False

    @property
    def over_ns(self) -> int | None:
        """When the last answer ended; None before."""
        return max((request.end_ns or 0 for request in self.run.served), default=0) if self.run.over else None

    def figures(self) -> list[Figure]:
        """Return the times to the first token and from token to token, and the tokens in a second."""
        outcome = ServingOutcome.of(self.run)
        rows = []
        for name, spread in (
            ("time to first token", outcome.first_token),
            ("time per output token", outcome.next_token),
        ):
            if spread is not None:
                for p, ns in zip(PERCENTILES, spread.percentiles, strict=True):
                    rows.append(Figure(f"{name}, ms, p{p}", ns / 1e6))
        return [*rows, Figure("output tokens/s", outcome.per_s(outcome.output_tokens), is_rate=True)]
