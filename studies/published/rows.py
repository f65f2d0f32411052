"""A published figure, ours beside it, and how far off we are."""

from __future__ import annotations

from dataclasses import dataclass

MISS = 0.15


@dataclass(frozen=True, slots=True)
class Row:
    """``relative_error``: of ours; 0 within a published range, else from its nearer end. ``published`` is that end.

    ``shows``: of a miss, what the model shows.
    """

    figure: str
    published: float
    published_range: tuple[float, float]
    ours: float
    relative_error: float
    kind: str  # "config", "fitted" or "predicted"
    shows: str = ""

    @property
    def missed(self) -> bool:
        return abs(self.relative_error) > MISS


def row_of(
    figure: str, published: float | tuple[float, float], ours: float, kind: str = "predicted", shows: str = ""
) -> Row:
    """``shows`` is kept of a miss only."""
    low, high = published if isinstance(published, tuple) else (published, published)
    nearer = min(max(ours, low), high)
    error = ours / nearer - 1
    return Row(figure, nearer, (low, high), ours, error, kind, shows if abs(error) > MISS else "")
