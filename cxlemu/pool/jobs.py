"""The pool of a job that a launcher started: rank 0 makes it under a name of which the others know the beginning.

What a job is called can be known to everybody, so another user could take its pool's name before. Rank 0 therefore
adds a number that nobody can guess, and the others take the pool of this user that begins with the job's name and whose
owner lives. What other users, or dead runs of the same job, left under such names is passed over.
"""

import time

from cxlemu.errors import PoolError
from cxlemu.pool import catalog
from cxlemu.pool.catalog import CatalogEntry
from cxlemu.pool.segments import pool_names

_POLL_S = 0.01


def living_pools(job: str) -> list[CatalogEntry]:
    """List this user's pools of a job whose owners live, the latest one first."""
    names = [name for name in pool_names() if name.startswith(f"{job}-")]
    ours = [entry for name in names for entry in catalog.entries(name) if entry.state in ("alive", "unknown")]
    return sorted(ours, key=lambda entry: entry.created_s, reverse=True)


def refuse_second_run(job: str) -> None:
    """Refuse to begin while another run of the same job is under way, in which ranks would meet the wrong ones."""
    if other := next(iter(living_pools(job)), None):
        owner = f", process {other.superblocks[0].owner.pid}," if other.superblocks else ""
        raise PoolError(f"another run of this job is under way: the owner{owner} of its pool {other.name} is alive")


def pool_of_job(job: str, deadline_s: float) -> str:
    """Wait until rank 0 has made the job's pool, and return its name."""
    end = time.monotonic() + deadline_s
    while True:
        over = time.monotonic() >= end  # before the last look: this process may be stopped at any moment
        complete = [entry for entry in living_pools(job) if entry.complete and entry.superblocks]
        if complete:
            return complete[0].name
        if over:
            raise PoolError(f"rank 0 has made no pool {job}-... of this user (waited {deadline_s:g} s)")
        time.sleep(_POLL_S)
