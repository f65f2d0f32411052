"""A published figure, ours beside it, and how far off we are."""

from __future__ import annotations

from dataclasses import dataclass

MISS = 0.15
# Where a published figure was read: in the paper's abstract; in the paper; in what others wrote about it; in the files
# that its authors publish beside it.
READ_IN = ("abstract", "paper", "secondary", "repository")


@dataclass(frozen=True, slots=True)
class Row:
    figure: str
    published: float  # the nearer end of the published range
    published_range: tuple[float, float]
    read_in: str  # one of READ_IN: where the figure was read
    ours: float
    relative_error: float  # ours: 0 within the published range, else from its nearer end
    # "config" (put in), "fitted", "predicted", or "reading": predicted as well, by another reading of a published
    # figure that has a row already, and so not counted
    kind: str
    shows: str = ""  # for a miss, what the model shows

    @property
    def missed(self) -> bool:
        """Whether ours is off by more than `MISS`."""
        return abs(self.relative_error) > MISS


def row_of(
    figure: str,
    published: float | tuple[float, float],
    ours: float,
    kind: str = "predicted",
    shows: str = "",
    *,
    read_in: str,
) -> Row:
    """Put our figure beside a published one."""
    assert read_in in READ_IN, read_in
    low, high = published if isinstance(published, tuple) else (published, published)
    nearer = min(max(ours, low), high)
    error = ours / nearer - 1
    return Row(figure, nearer, (low, high), read_in, ours, error, kind, shows if abs(error) > MISS else "")


def hits(rows: list[Row]) -> tuple[int, int]:
    """Return how many predicted figures are within `MISS`, and how many there are."""
    predicted = [row for row in rows if row.kind == "predicted"]
    return sum(not row.missed for row in predicted), len(predicted)
