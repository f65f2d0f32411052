from typing import Any

from numpy.typing import NDArray

Move = tuple[NDArray[Any], tuple[NDArray[Any], ...]]

def move(moves: tuple[Move, ...], rewritten: NDArray[Any] | None, iterations: int, /) -> None: ...
def ping_pong(lines: NDArray[Any], rank: int, first: int, rounds: int, yields: bool, deadline_s: float, /) -> None: ...
