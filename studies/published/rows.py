"""A published figure, ours beside it, and how far off we are."""

from __future__ import annotations

from dataclasses import dataclass

MISS = 0.15


@dataclass(frozen=True, slots=True)
class Row:
    """One figure.

    Attributes:
        published: The nearer end of the published range.
        relative_error: Ours: 0 within the published range, else from its nearer end.
        shows: For a miss, what the model shows.
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
        """Whether ours is off by more than `MISS`."""
        return abs(self.relative_error) > MISS


def row_of(
    figure: str, published: float | tuple[float, float], ours: float, kind: str = "predicted", shows: str = ""
) -> Row:
    """Put our figure beside a published one.

    Args:
        figure: Its name.
        published: A value, or a range with its lower end first.
        ours: The same figure as we have it.
        kind: "config", "fitted" or "predicted".
        shows: What the model shows; kept for a miss only.
    """
    low, high = published if isinstance(published, tuple) else (published, published)
    nearer = min(max(ours, low), high)
    error = ours / nearer - 1
    return Row(figure, nearer, (low, high), ours, error, kind, shows if abs(error) > MISS else "")
