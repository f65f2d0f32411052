from collections.abc import Callable

ThreadData = tuple[int, int, int, int, Callable[[int], tuple[int, ...] | None], Callable[[int, int], int]]
MoveData = tuple[int, int, int, int, int]
OutcomeData = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], list[MoveData]]

def explore(
    threads: tuple[ThreadData, ...],
    words: tuple[tuple[int, int], ...],
    lines: int,
    registers: int,
    events: int,
    lazy: bool,
    checked_reads: bool,
    ample: bool,
    past_hangs: bool,
    states_max: int,
    bytes_max: int,
    seconds_max: float,
    /,
) -> tuple[int, int, int, int, int, bool, int, MoveData | None, list[MoveData], list[OutcomeData]]: ...
