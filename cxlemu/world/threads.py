"""Ranks as threads of this process: the quickest world. Ranks of one host share a HostCache object."""

import queue
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from cxlemu.errors import CancelledError
from cxlemu.pool.pool import Pool
from cxlemu.world.context import OnMessage, RankContext, entered
from cxlemu.world.outcome import GRACE_S, Outcome
from cxlemu.world.world import World

T = TypeVar("T")

_TICK_S = 0.1


def run_threads(
    main: Callable[[RankContext], T],
    world: World,
    pool: Pool,
    on_message: OnMessage,
    *,
    survivors: bool = False,
    keep_names: bool = False,
) -> Outcome[T]:
    """Run ``main`` on every rank in a thread; one that outlives the grace counts as failed, and is left running."""
    caches = world.memory.backend.private_caches(pool, set(world.hosts))
    if not keep_names and world.pace is None:  # each rank maps the clocks of a pace by their name
        pool.unlink()
    outcome: Outcome[T] = Outcome(world.ranks, world.deadline_s, survivors=survivors)
    news: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    cancelled = threading.Event()

    def check() -> None:
        if cancelled.is_set():
            raise CancelledError("stopped, because its world was stopped")

    def emit(message: object) -> None:
        news.put(lambda: on_message(message))

    def live(rank: int) -> None:
        try:
            with entered(world, rank, pool, caches[world.hosts[rank]], emit=emit, check=check) as context:
                result = main(context)
        except BaseException as error:
            news.put(lambda failure=error: outcome.failed(rank, failure))  # type: ignore[misc]
        else:
            news.put(lambda: outcome.succeeded(rank, result))

    threads = [
        threading.Thread(target=live, args=[rank], name=f"rank {rank}", daemon=True) for rank in range(world.ranks)
    ]
    for thread in threads:
        thread.start()
    try:
        while outcome.pending() and not outcome.overdue():
            try:
                event = news.get(timeout=_TICK_S)
            except queue.Empty:
                continue
            event()
    finally:  # also after Ctrl-C: every wait of a rank looks at `check`
        cancelled.set()
        end = time.monotonic() + GRACE_S
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
    while not news.empty():
        news.get()()
    for rank in outcome.pending():
        outcome.failed(rank, CancelledError(f"did not stop within {GRACE_S:g} s"))
    return outcome
