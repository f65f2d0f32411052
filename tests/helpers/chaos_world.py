"""A world for tests/helpers/chaos.py: ranks that compute, check every result, and go on with who is left.

Run as a program: ``chaos_world SEED POOL PROGRESS``. PROGRESS is a file that is touched when a rank has got further; on
SIGUSR1 every process says on stderr where it is. The last line that it prints is what became of its ranks, as JSON.
"""

import faulthandler
import json
import random
import signal
import sys
from functools import partial
from pathlib import Path

import numpy as np

from collectives import Communicator
from cxlemu.errors import CxlemuError, ExcludedError, InputError, RunError
from cxlemu.memory import MemorySpec
from cxlemu.world import RankContext, launch_survivors

DEADLINE_S = 3.0


def live(context: RankContext, seed: int, calls: int) -> dict[str, int]:
    """Call after call, each checked to the last bit; after an error with the ranks that are left."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    comm = Communicator.world(context)
    call, in_step, done = 0, True, {"right": 0, "wrong": 0, "errors": 0, "shrinks": 0}
    while call < calls:
        try:
            if not in_step:  # the others may be ahead
                call, in_step = int(comm.all_reduce(np.array([call]), op="max")[0]), True
            done["right" if right(comm, seed, call) else "wrong"] += 1
            call += 1
            if call % 20 == 0:
                context.emit(call)
        except ExcludedError:
            return done
        except RunError:
            done["errors"] += 1
            try:
                comm, in_step = comm.shrink(), False
                context.emit(call)
                done["shrinks"] += 1
            except (ExcludedError, InputError):  # the others went on, or there is no room left
                return done
    return done


def right(comm: Communicator, seed: int, call: int) -> bool:
    """One call, against NumPy."""
    its = random.Random(f"{seed} {call}")
    count = its.choice([1, 17, 1000, 20_000])
    inputs = [np.random.default_rng([seed, call, member]).integers(0, 1000, count) for member in comm.members]
    mine = inputs[comm.rank].copy()
    match its.randrange(4):
        case 0:
            return bool((comm.all_reduce(mine) == sum(inputs)).all())
        case 1:
            return bool((comm.all_gather(mine) == np.stack(inputs)).all())
        case 2:
            root = its.randrange(comm.size)
            return bool((comm.broadcast(mine, root=root) == inputs[root]).all())
        case _:
            comm.barrier()
            return True


def main(seed: int, pool_name: str, progress: Path) -> int:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    its = random.Random(seed)
    memory = its.choice([MemorySpec(), MemorySpec("shm"), MemorySpec(seed=seed)])
    became: dict[str, object] = {"memory": repr(memory), "ranks": {}, "failures": {}, "refused": ""}
    try:
        outcome = launch_survivors(
            partial(live, seed=seed, calls=its.choice([100, 500, 2000])),
            ranks=its.choice([2, 3, 4]),
            topology="laptop",
            memory=memory,
            how="processes",
            deadline_s=DEADLINE_S,
            pool_name=pool_name,
            on_message=lambda _: progress.touch(),
        )
        became["ranks"] = {str(rank): result for rank, result in outcome.results.items()}
        became["failures"] = {
            str(rank): [isinstance(error, CxlemuError), type(error).__name__, str(error)]
            for rank, error in outcome.failures.items()
        }
    except InputError as error:
        became["refused"] = str(error)
    print(json.dumps(became), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])))
