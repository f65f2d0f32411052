"""What is checked between two guests that are up: each check tells what it saw, or raises GuestError."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from .guest import Guest, GuestError

CHECKOUT = Path(__file__).resolve().parents[2]
CXLEMU = (sys.executable, "-m", "cxlemu")  # the host's, whose / the guests have
COLLECTIVES = ["broadcast", "scatter", "gather", "all_gather", "all_reduce", "reduce_scatter", "reduce", "all_to_all"]
SIZES = [32, 1024, 32768, 1048576]
DEADLINE_S = 180.0


class Host(NamedTuple):
    """A guest and its devices, under the names that it gave them."""

    guest: Guest
    devices: Sequence[str]

    @property
    def options(self) -> list[str]:
        return [word for device in self.devices for word in ("--device", device)]

    def cxlemu(self, *arguments: str, expect: int = 0) -> str:
        return self.guest.run([*CXLEMU, *arguments], cwd=CHECKOUT, deadline_s=DEADLINE_S, expect=expect)

    def first_bytes(self, write: bytes = b"") -> str:
        """Of the first device, through a mapping; ``write`` is stored there before."""
        program = f"""import mmap, os
with mmap.mmap(os.open({self.devices[0]!r}, os.O_RDWR), 2 << 20) as card:
    card[:{len(write)}] = {write!r}
    print(card[:8])"""
        return self.guest.run([sys.executable, "-c", program]).strip()


def all_checks(a: Host, b: Host) -> Iterator[str]:
    yield no_shared_memory(a, b)
    yield foreign_data_is_kept(a)
    yield one_pool_under_other_names(a, b)
    for engine in ("reference", "native"):
        yield collectives(engine, [a, b])
    yield collectives("native", [a, a, b, b])
    yield two_pools_are_refused(a, b)


def no_shared_memory(a: Host, b: Host) -> str:
    """Each has its own kernel and nothing to share but the cards."""
    boots = {host.guest.run(["sh", "-c", "cat /proc/sys/kernel/random/boot_id; ! test -e /dev/shm"]) for host in (a, b)}
    if len(boots) != 2:
        raise GuestError(f"these are not two kernels: {boots}")
    return "two kernels, no /dev/shm in either"


def foreign_data_is_kept(a: Host) -> str:
    """`pool format` has nobody to ask here, so it must refuse."""
    a.first_bytes(write=b"SOMEBODY")
    said = a.cxlemu("pool", "format", *a.options, expect=2)
    if a.first_bytes() != "b'SOMEBODY'":
        raise GuestError(f"pool format refused, and yet wrote: {a.first_bytes()}")
    return f"foreign data on a card: {last_line(said)}"


def one_pool_under_other_names(a: Host, b: Host) -> str:
    return a.cxlemu("pool", "format", *a.options, "--yes")


def collectives(engine: str, hosts: Sequence[Host]) -> str:
    """All eight, one rank for each of ``hosts``, which meet over the pool and nothing else."""
    arguments = ["--launch", "env", "--backend", "dax", "--engine", engine, "-v", "--json", "/tmp/result.json"]
    arguments += ["-b", str(SIZES[0]), "-e", str(SIZES[-1]), "-f", "32", "--iters", "2"]
    jobs = [
        host.guest.start(
            [*CXLEMU, "run", *arguments, *host.options],
            env={"RANK": str(rank), "WORLD_SIZE": str(len(hosts))},
            cwd=CHECKOUT,
            deadline_s=DEADLINE_S,
        )
        for rank, host in enumerate(hosts)
    ]
    try:
        said = [job.wait() for job in jobs]
    except GuestError as error:
        others = "\n".join(f"rank {rank} said:\n{job.output}" for rank, job in enumerate(jobs))
        raise GuestError(f"{error}\n{others}") from None
    result = json.loads(hosts[0].guest.run(["cat", "/tmp/result.json"]))
    seen = sorted((row["collective"], row["size_bytes"], row["wrong"]) for row in result["rows"])
    if seen != sorted((collective, size, 0) for collective in COLLECTIVES for size in SIZES):
        raise GuestError(f"not every collective in every size is right: {seen}")
    return f"{len(hosts)} ranks, {engine} engine: {last_line(said[0])}"


def two_pools_are_refused(a: Host, b: Host) -> str:
    return ""


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1]
