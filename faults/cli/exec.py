"""``cxlemu exec``: other people's programs as processes of emulated hosts on one pool."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from cxlemu.cli.options import Flags, argument, choice, concept, flag, path, switch, taking
from cxlemu.cli.vocabulary import SecondsParam


class Places(click.ParamType):  # type: ignore[type-arg]  # generic only in the newest click
    """Numbers with ``@`` between them, such as HOST@STEP."""

    def __init__(self, name: str, count: int) -> None:
        self.name, self._count = name, count

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Return the numbers; click's usage error for anything else."""
        if isinstance(value, tuple):
            return value
        numbers = re.split("[@:]", value)
        if len(numbers) != self._count or not all(re.fullmatch(r"(0x[0-9a-fA-F]{1,12}|\d{1,15})", n) for n in numbers):
            self.fail(f"{value!r} is not {self.name}.", param, ctx)
        return tuple(int(n, 0) for n in numbers)


class CrashPlace(Places):
    """A host and a step; no step for all of them, and then perhaps no host."""

    def convert(  # type: ignore[override]  # None in place of a number
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int | None, ...]:
        """Return the host and the step."""
        if isinstance(value, str) and (every := re.fullmatch(r"(?:(\d{1,4})@)?every", value)):
            return int(every[1]) if every[1] else None, None
        return super().convert(value, param, ctx)


class DamagePlace(Places):
    """Where something breaks, or ``every``, which is no place; of a line, the first pool unless another is named."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Return the numbers; none for ``every``."""
        if value == "every":
            return ()
        if isinstance(value, str) and self._count == 3 and not {":", "@"} <= set(value):
            value = f"0:{value}"
        return super().convert(value, param, ctx)


class ExecFlags(Flags):
    pools: tuple[str, ...] = flag(
        "--pool",
        multiple=True,
        callback=None,
        metavar="PATH[=SIZE|=FILE]",
        help="Path under which programs open a pool.",
    )
    hosts: int | None = flag(
        "--hosts",
        type=click.IntRange(1, 16),
        help="Number of emulated hosts.  [default: one for each command of a stage, at least 2]",
    )
    seeds: int = flag(
        "--seeds", type=click.IntRange(0), default=10, help="Number of runs in which caches move lines at random."
    )
    seed: int | None = flag("--seed", type=click.IntRange(0, (1 << 63) - 1), help="Make one run, with this seed.")
    replay: str | None = flag(
        "--replay", metavar="TOKEN", help="Repeat the run of a token; @FILE reads the token from a file."
    )
    worst_case: bool | None = flag(
        "--worst-case/--no-worst-case", default=None, help="Also make, or omit, runs in which no line moves by itself."
    )
    check: bool = flag("--check/--no-check", default=True, help="Check every access for missing steps.")
    coherent: tuple[str, ...] = flag(
        "--coherent",
        multiple=True,
        callback=None,
        metavar="[POOL:]OFFSET+SIZE|all",
        help="Keep caches coherent between hosts in this range, as CXL 3 can: locked instructions work across hosts "
        "there.",
    )
    dma_writes: str = choice(
        "--dma-writes",
        of=["cache", "memory"],
        default="cache",
        help="Let copies by devices (cxl_device_copy) go to their host's cache, or past it.",
    )
    free: bool = switch(
        "--free", help="Run threads in parallel instead of one step at a time; runs cannot be replayed."
    )
    every: bool = switch("--every", help="Make a run for every interleaving of steps that other hosts can observe.")
    preemptions: int | None = flag(
        "--preemptions",
        type=click.IntRange(0),
        help="With --every: only interleavings with at most this many preemptions.",
    )
    evictions: int | None = flag(
        "--evictions",
        type=click.IntRange(0, 1),
        help="With --every: number of lines that leave a cache by chance in an execution.  [default: 0]",
    )
    budget_s: float | None = concept(
        "budget", help="With --every, --crash every and the like: limit for the whole search.  [default: 60s]"
    )
    resume: Path | None = path(
        "--resume", help="With --every, --crash every and the like: journal file; the search continues from it."
    )
    keep_going: bool = switch("--keep-going", help="Continue with the other runs after one fails.")
    shrink_s: float = flag(
        "--shrink",
        type=SecondsParam(),
        metavar="TIME",
        default=20.0,
        show_default=False,
        help="Time for shortening the failing schedule.  [default: 20s]",
    )
    no_shrink: bool = switch("--no-shrink", help="Leave the failing schedule as it is.")
    crash: tuple[int | None, int | None] | None = flag(
        "--crash",
        type=CrashPlace("HOST@STEP, HOST@every or every", 2),
        metavar="HOST@STEP|every",
        help="Kill HOST and lose its cache at a step; every: at each step before the last stage, of one host or all.",
    )
    link_down: tuple[int, int] | None = flag(
        "--link-down", type=Places("HOST@STEP", 2), metavar="HOST@STEP", help="Take the link of HOST down at a step."
    )
    poison: tuple[int, int, int] | tuple[()] | None = flag(
        "--poison",
        type=DamagePlace("[POOL:]OFFSET@STEP or every", 3),
        metavar="[POOL:]OFFSET@STEP|every",
        help="Poison the line at OFFSET at a step; every: each line, at each step before the last stage.",
    )
    lose_card: tuple[int, int] | tuple[()] | None = flag(
        "--lose-card",
        type=DamagePlace("POOL@STEP or every", 2),
        metavar="POOL@STEP|every",
        help="Lose the memory of POOL at a step; every: of each pool, at each step before the last stage.",
    )
    deadline_s: float = concept("deadline", default=60.0, help="Limit for each run.")
    steps: int = flag(
        "--steps",
        type=click.IntRange(16, 10**12),
        default=25_000,
        help="Number of steps without a store before threads are examined for a cycle.",
    )
    error_exitcode: int = flag(
        "--error-exitcode", type=click.IntRange(1, 255), default=1, help="Exit code for a mistake."
    )
    json_file: Path | None = concept("json")
    sarif: Path | None = path("--sarif", help="Write findings as SARIF, for editors and code hosts.")
    html: Path | None = path("--html", help="Write a page with a picture of each finding.")
    litmus: Path | None = path("--litmus", help="Write findings as litmus tests to a folder.")
    suppressions: Path | None = path("--suppressions", help="File of accepted findings, each with a reason.")
    words: tuple[str, ...] = argument(
        nargs=-1, required=True, callback=None, type=click.UNPROCESSED, metavar="-- COMMAND [: COMMAND]... [:: ...]"
    )

    @property
    def crash_place(self) -> tuple[int, int] | None:
        """The crash that was asked for, unless a search makes all of them."""
        host, step = self.crash or (None, None)
        return None if host is None or step is None else (host, step)

    @property
    def breaks(self) -> str | None:
        """The flag of what breaks at every place."""
        if self.crash and self.crash[1] is None:
            return "--crash"
        return "--poison" if self.poison == () else "--lose-card" if self.lose_card == () else None


@click.command()
@taking(ExecFlags, work="exec_run:run")
def command() -> None:
    """Run programs on emulated hosts without coherent caches, on a pool that they open by its path.

    `:` separates commands that run side by side; `::` starts the next ones after all earlier ones have ended. The first
    command runs on host 0, the second on host 1 and so on, and after the last host again on host 0; @H before a command
    selects host H. A host's cache outlives its processes. Every run starts from the current contents of the pool's
    file, which never changes.

    \b
    Examples:
      CC=cxlemu-cc make
      cxlemu exec --pool /dev/shm/queue -- ./create :: ./producer : ./consumer
      cxlemu exec --pool /dev/dax0.0=64M --seeds 50 -- ./a : ./b : ./c
      cxlemu exec --pool /dev/dax0.0=64M --crash 0@1200 -- ./a :: @1 ./recover
      cxlemu exec --pool /dev/shm/log --crash every -- ./transfer :: ./recover
      cxlemu exec --pool /dev/shm/queue --every --budget 5m -- ./a : ./b
      cxlemu exec --pool /dev/shm/log --every --crash every -- ./put :: ./redo
      cxlemu exec --pool /dev/shm/queue --replay cxl1.eJx... -- ./a : ./b

    \b
    A line of --suppressions; * and ? match any text, and the reason is required:
      no-invalidate ring.c:120    # an optimistic read: the checksum finds out

    Exit codes: 0 no mistake was found, 1 a mistake was found or a program failed, 2 bad input, 3 undecided: a deadline
    passed, no program touched a pool, a requested fault never happened, a search did not finish, or the programs
    behave differently from those of the token. The last line states what was not judged.
    """
