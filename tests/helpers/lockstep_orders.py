"""Orders that let one side of every exchange go first."""

from faults.lockstep.orders import PUBLISH, Order, by


def writers_first() -> Order:
    """Let streams that publish go first."""
    return by(lambda step: step.stream != PUBLISH)


def readers_first() -> Order:
    """Let streams that publish go last."""
    return by(lambda step: step.stream == PUBLISH)
