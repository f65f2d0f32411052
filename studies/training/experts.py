"""Which experts tokens go to: how much more the busiest rank gets than the mean, and what a capacity leaves out.

Every token goes to ``active_experts`` of a block's experts, each as popular as a log-normal draw with the spread
``skew``; a seed decides. An expert takes at most ``capacity`` times the mean number of tokens; what is beyond that is
dropped, as in Switch Transformers (arXiv 2101.03961). Not modelled: routers that balance, or that limit a token to a
few nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cxlemu.errors import ArgumentError
from studies.training.language_model import LanguageModel


@dataclass(frozen=True, slots=True)
class Router:
    """How tokens choose experts."""

    skew: float = 0.0  # the spread of the experts' popularity: sigma of its logarithm
    capacity: float | None = None  # None: nothing is dropped
    seed: int = 1

    def load(self, model: LanguageModel, tokens: int, ranks: int) -> ExpertLoad:
        """Draw where ``tokens`` tokens of each of ``ranks`` ranks go, which share the model's experts evenly."""
        assert model.experts is not None
        if model.experts % ranks:
            raise ArgumentError(f"ep={ranks} does not divide the {model.experts} experts of {model.name}")
        random = np.random.default_rng(self.seed)
        popular = np.exp(self.skew * random.standard_normal(model.experts))
        sent = tokens * model.active_experts * ranks
        counts = random.multinomial(sent, popular / popular.sum()).astype(float)
        kept = counts if self.capacity is None else np.minimum(counts, self.capacity * sent / model.experts)
        by_rank = kept.reshape(ranks, -1).sum(axis=1)
        return ExpertLoad(float(by_rank.max() / (sent / ranks)), float(1 - kept.sum() / sent))


@dataclass(frozen=True, slots=True)
class ExpertLoad:
    """What a router gives the ranks that share experts."""

    busiest: float = 1.0  # tokens of the busiest rank, by the mean without dropping
    dropped: float = 0.0  # part of the tokens
