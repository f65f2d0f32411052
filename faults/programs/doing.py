"""What each thread was doing when its run hung, or a limit ended the run before that was known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from faults.programs.area import CRASHED, ENDED, OUTSIDE, RUNNING, STARTING, Area, PoolThread
from faults.programs.positions import located
from faults.programs.result import ExecSetting, RunResult
from faults.programs.turns import crash_in

_ACCESSES = {1: "loads", 2: "stores", 3: "changes", 4: "stores", 5: "flushes"}  # enum step_kind
YIELDS = 8
_OTHERS = {6: "fences", YIELDS: "gives its turn away"}


def doing(area: Area, setting: ExecSetting) -> list[str]:
    """Say of each thread that is left where it is; called while its process is still there."""
    return [_says(area, setting, thread) for thread in area.threads() if thread.state not in (CRASHED, ENDED)]


def going_round(area: Area, setting: ExecSetting) -> list[str]:
    """Say of each thread that took turns in a hang where it is; called when the processes have gone."""
    left, those = setting.idle_budget, set[int]()
    for number, steps in reversed(area.turns()):
        if left > 0:
            those.add(number)
        left -= steps
    dead = setting.crash[0] if setting.crash and setting.crash[1] <= area.status().steps else None
    return [_says(area, setting, thread) for thread in area.threads() if thread.number in those and thread.host != dead]


def died_before(setting: ExecSetting, result: RunResult) -> str:
    """Say which host of a hang had crashed, so that the others wait for it; empty: none of this stage."""
    crash = setting.crash or crash_in(result.choice.script)
    if crash is None or "--crash" in result.unfired:
        return ""
    host, step = crash
    stage = max((setting.commands[its.command].stage for its in result.exits), default=0)
    if (host, stage) not in {(command.host, command.stage) for command in setting.commands}:
        return ""
    return f"host {host} had died at step {step} (--crash): only its stores could have ended these waits"


def _says(area: Area, setting: ExecSetting, thread: PoolThread) -> str:
    name = Path(setting.commands[thread.command].words[0]).name
    return f"{name} (host {thread.host}, thread {thread.number}) " + ", ".join(_parts(area, setting, thread))


def system_state(pid: int, tid: int) -> str:
    """How the system has a thread: R, it could run; S, D or T, it waits, D for a disk; empty: it is gone."""
    try:
        return Path(f"/proc/{pid}/task/{tid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def at_rest(pid: int, tid: int) -> str:
    """Say how a thread waits in the kernel; empty: it does not."""
    return {"S": "sleeps in a system call", "T": "is stopped by a signal"}.get(system_state(pid, tid), "")


def _parts(area: Area, setting: ExecSetting, thread: PoolThread) -> Iterator[str]:
    if thread.pid == 0 or (thread.state == STARTING and thread.tid == 0):
        yield "has not opened the pool"
        return
    last = area.last_step(thread)
    naps = thread.state == RUNNING and last.kind == YIELDS and last.site
    if thread.state in (OUTSIDE, RUNNING) and not naps and (rest := at_rest(thread.pid, thread.tid)):
        yield rest
    elif thread.state == OUTSIDE:
        yield "computes"
    what = _OTHERS.get(last.kind, "has begun")
    if last.kind in _ACCESSES:
        pool = setting.pools[last.pool].path if last.pool < len(setting.pools) else "no pool"
        what = f"{_ACCESSES[last.kind]} byte 0x{last.offset:x} of {pool}"
    place = located([area.places()[last.site]])[0] if last.site else None
    yield f"its last step: {what}" + (f" at {place}" if place else "")
