"""Which experts tokens go to: how much more the busiest rank gets than the mean, and what a capacity leaves out.

Every token goes to ``active_experts`` of a block's experts, each as popular as a log-normal draw with the spread
``skew``; a seed decides. Or a histogram says what each expert gets, and nothing is drawn. An expert takes at most
``capacity`` times the mean number of tokens; what is beyond that is dropped, as in Switch Transformers (arXiv
2101.03961). Not modelled: routers that balance, or that limit a token to a few nodes.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cxlemu.errors import ArgumentError
from cxlemu.files import read_file
from studies.training.language_model import LanguageModel

HISTOGRAM_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Router:
    """How tokens choose experts."""

    skew: float = 0.0  # the spread of the experts' popularity: sigma of its logarithm
    capacity: float | None = None  # None: nothing is dropped
    seed: int = 1
    histogram: tuple[float, ...] | None = None  # by expert, its share of the tokens; None: drawn with ``skew``

    def load(self, model: LanguageModel, tokens: int, ranks: int) -> ExpertLoad:
        """Draw where ``tokens`` tokens of each of ``ranks`` ranks go, which share the model's experts evenly."""
        assert model.experts is not None
        if model.experts % ranks:
            raise ArgumentError(f"ep={ranks} does not divide the {model.experts} experts of {model.name}")
        sent = tokens * model.active_experts * ranks
        counts = self._drawn(model.experts, sent) if self.histogram is None else self._given(model, sent)
        kept = counts if self.capacity is None else np.minimum(counts, self.capacity * sent / model.experts)
        by_rank = kept.reshape(ranks, -1).sum(axis=1)
        return ExpertLoad(float(by_rank.max() / (sent / ranks)), float(1 - kept.sum() / sent))

    def _drawn(self, experts: int, sent: int) -> NDArray[np.float64]:
        random = np.random.default_rng(self.seed)
        popular = np.exp(self.skew * random.standard_normal(experts))
        return random.multinomial(sent, popular / popular.sum()).astype(float)

    def _given(self, model: LanguageModel, sent: int) -> NDArray[np.float64]:
        shares: NDArray[np.float64] = np.array(self.histogram, np.float64)
        if len(shares) != model.experts:
            raise ArgumentError(f"--histogram has {len(shares)} numbers, but {model.name} has {model.experts} experts")
        shares /= shares.max()  # large numbers have no sum
        counts: NDArray[np.float64] = sent * shares / shares.sum()
        return counts


@dataclass(frozen=True, slots=True)
class ExpertLoad:
    """What a router gives the ranks that share experts."""

    busiest: float = 1.0  # tokens of the busiest rank, by the mean without dropping
    dropped: float = 0.0  # part of the tokens


def read_histogram(text: str) -> tuple[float, ...]:
    """Read how many tokens each expert gets: numbers between commas, or a file of them, between commas or spaces."""
    if "," not in text:
        try:
            content = read_file(Path(text), HISTOGRAM_BYTES_MAX).decode()
        except OSError as error:
            raise ArgumentError(f"--histogram {text}: the file cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ArgumentError(f"--histogram {text}: bytes that are not text, instead of numbers") from None
    else:
        content = text
    counts = []
    for number, word in enumerate(re.split(r"\s*,\s*|\s+", content.strip())):
        try:
            value = float(word)
        except ValueError:
            value = -1.0
        if not 0 <= value < math.inf:
            raise ArgumentError(
                f"--histogram: {word[:40]!r}, of expert {number}, should be a number of tokens, 0 or more"
            )
        counts.append(value)
    if not any(counts):
        raise ArgumentError("--histogram: no expert gets any token")
    return tuple(counts)
