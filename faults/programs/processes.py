"""The processes of a run: started, watched, and none of them left behind."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from cxlemu.errors import ArgumentError
from faults.programs.area import (
    ENDED,
    GOING_ON,
    NO_PROGRESS,
    OUTSIDE,
    REPEATS,
    RUNNING,
    STARTING,
    Area,
    PoolThread,
    library_path,
)
from faults.programs.commands import Command
from faults.programs.doing import at_rest, doing, system_state
from faults.programs.result import ExecSetting, Exit, RunEnding, RunResult, crashed_host
from faults.programs.servers import (
    NO_SERVER,
    VARIABLE,
    ForkServers,
    ServedProcess,
    adopt,
    children,
    end_children,
    same_addresses,
)
from faults.programs.turns import damage_in

LOOK_MS = 20  # how often the driver looks for a thread that sleeps while all others wait for it
SLEEPING_LOOKS, COMPUTING_LOOKS, STARTING_LOOKS = 3, 250, 25
OUTPUT_BYTES_MAX = 1 << 16
END_S = 10.0


class RunProcesses:
    """All processes that the commands of a run become.

    What a process leaves behind when it ends becomes a child of ours, also in a session of its own: none outlives the
    run.
    """

    def __init__(self, area: Area, setting: ExecSetting, result: RunResult, servers: ForkServers | None = None) -> None:
        self._area, self._setting, self._result, self._servers = area, setting, result, servers
        self._ends = time.monotonic() + setting.deadline_s
        self._last = setting.commands[-1].stage
        # A search breaks memory before the last stage, which shows whether the programs can live with that.
        broken = setting.poison or setting.lose or damage_in(result.choice.script)
        self._breaks = bool(broken) and result.choice.losses is not None
        self._live: dict[
            int, tuple[subprocess.Popen[bytes] | ServedProcess, int]
        ] = {}  # command -> process, first thread
        self._pidfds: dict[int, int] = {}  # pid -> pidfd, of all that take part
        self._gone: set[int] = set()
        self._untaken: dict[
            int, subprocess.Popen[bytes] | ServedProcess
        ] = {}  # first threads of commands that have ended
        self._poll = select.poll()
        self._stands: tuple[int, int, int] = (-1, -1, -1)  # steps, thread, its state
        self._looks = 0
        self._others = servers.others if servers else children()  # of ours, which are no part of the run
        self._anew = servers is None  # whether a command was started without a server, which says what is left
        self._adopting = adopt(True)

    def begin(self, stage: int = 0) -> None:
        """Start the commands of a stage, which go on by themselves."""
        these = [(number, its) for number, its in enumerate(self._setting.commands) if its.stage == stage]
        threads = [self._area.expect(command.host, number, stage) for number, command in these]
        for (number, command), thread in zip(these, threads, strict=True):
            self._start(number, command, thread)

    def all_stages(self) -> None:
        """See the first stage to its end, and run the others, one after another, as long as nothing fails."""
        for stage in range(self._last + 1):
            if stage:
                self.begin(stage)
            while self._live and self._result.ending is RunEnding.ENDED:
                silent = not self._poll.poll(LOOK_MS)
                self._notice()
                if silent:
                    self._look()
            if self._result.ending is not RunEnding.ENDED:
                return

    def __enter__(self) -> RunProcesses:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Kill what is left, and wait for it."""
        if self._result.ending is RunEnding.NO_PROGRESS:
            self._let_end()
        self._area.stop(given_up=self._result.ending is RunEnding.DEADLINE)
        for process, _first in self._live.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        self._notice()
        for pid, fd in self._pidfds.items():
            with contextlib.suppress(ProcessLookupError):
                if pid not in self._gone:
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
        ends = time.monotonic() + END_S
        while (self._run_on(kind is not None) or self._orphans()) and time.monotonic() < ends:
            self._poll.poll(LOOK_MS)
            self._notice()
        if kind and self._servers:
            self._servers.end()  # before the run's folder goes, in which a process may just begin
        adopt(self._adopting)
        for fd in self._pidfds.values():
            os.close(fd)

    def _run_on(self, interrupted: bool) -> bool:
        """Whether not all have ended; an interrupt may have come while an end was noted, which is told once."""
        left = [fd for pid, fd in self._pidfds.items() if pid not in self._gone]
        if not interrupted:
            return bool(self._live or left)
        ended = select.poll()
        for fd in left:
            ended.register(fd, select.POLLIN)
        return len(ended.poll(0)) < len(left)

    def _let_end(self) -> None:
        """Wait for the processes that have made their last step: what they print may be still to come."""
        ends, live = time.monotonic() + END_S, {process.pid for process, _ in self._live.values()}
        while live and time.monotonic() < ends:
            threads = [its for its in self._area.threads() if its.pid in live]
            live = {its.pid for its in threads if its.state == ENDED} - {
                its.pid for its in threads if its.state != ENDED
            }
            live &= {process.pid for process, _ in self._live.values()}
            if live:
                self._poll.poll(LOOK_MS)
                self._notice()

    def _orphans(self) -> bool:
        """Kill what the commands left behind; return whether there was any."""
        if self._servers and self._servers.end_those_left():
            self._anew = True
        if not self._anew:
            return False
        return end_children(self._others)

    def _start(self, number: int, command: Command, thread: int) -> None:
        environment = partial(self._environment, number, command, f"{thread:03d}")
        start = self._servers.start if self._servers else lambda *_: None
        try:
            served = start(number, command.words, f"{thread:03d}", environment)
            process = served or self._start_anew(number, command, environment())
        except OSError as error:
            raise ArgumentError(f"{command.words[0]}: {error.strerror}") from error
        if served:
            self._poll.register(served, select.POLLIN)
        self._live[number] = (process, thread)
        self._watch(process.pid, told=served is not None)

    def _environment(self, number: int, command: Command, thread: str) -> dict[str, str]:
        return {
            **os.environ,
            "LD_PRELOAD": " ".join(filter(None, [str(library_path()), os.environ.get("LD_PRELOAD")])),
            # A program with AddressSanitizer ends at once where its library is not the first.
            "ASAN_OPTIONS": ":".join(filter(None, [os.environ.get("ASAN_OPTIONS"), "verify_asan_link_order=0"])),
            "CXLEMU_PROGRAM_RUN": str(self._area.folder),
            "CXLEMU_PROGRAM_HOST": str(command.host),
            "CXLEMU_PROGRAM_COMMAND": str(number),
            "CXLEMU_PROGRAM_THREAD": thread,
            "CXLEMU_PROGRAM_POOLS": ":".join(_named_in_its_folder(pool.path) for pool in self._setting.pools),
            VARIABLE: NO_SERVER,
        }

    def _start_anew(self, number: int, command: Command, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        self._anew = True
        with contextlib.ExitStack() as stack:
            output = None if self._setting.show else stack.enter_context(self._output(number).open("wb"))
            stack.enter_context(same_addresses())
            return subprocess.Popen(
                command.words,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=None if output is None else subprocess.STDOUT,
                process_group=0,
            )

    def _output(self, number: int) -> Path:
        return self._area.folder / f"output-{number}"

    def _watch(self, pid: int, *, told: bool = False) -> None:
        """Take up a process, and watch for its end, unless its server tells of that."""
        if pid <= 0 or pid in self._pidfds:
            return
        try:
            self._pidfds[pid] = os.pidfd_open(pid)
        except ProcessLookupError:
            self._gone.add(pid)
            self._area.gone(pid)
            return
        if not told:
            self._poll.register(self._pidfds[pid], select.POLLIN)

    def _notice(self) -> None:
        """Note which processes have come and gone, and what that means for the run."""
        ended: list[int] = []
        for thread in self._area.threads():
            if thread.pid not in self._gone:
                self._watch(thread.pid)
        for number, (process, first) in list(self._live.items()):
            if (code := process.poll()) is not None:
                del self._live[number]
                if isinstance(process, ServedProcess):
                    self._poll.unregister(process)
                    ended.append(process.pid)
                self._result.exits.append(self._exit(number, code))
                if self._result.exits[-1].failed:
                    self._area.stop()  # before other processes go on without it
                if not self._area.threads()[first].pid:
                    self._untaken[first] = process
        for first, process in list(self._untaken.items()):
            if not self._left_any(process):
                del self._untaken[first]
                self._area.not_taken(first)
        ready, ending = {fd for fd, _ in self._poll.poll(0)}, {process.pid for process, _ in self._live.values()}
        for pid, fd in self._pidfds.items():
            if fd in ready and pid not in self._gone and pid not in ending:
                self._poll.unregister(fd)
                ended.append(pid)
        for pid in ended:
            self._gone.add(pid)
            self._area.gone(pid)
        if self._result.ending is not RunEnding.ENDED:
            return
        if self._area.status().outcome == NO_PROGRESS:
            self._result.ending = RunEnding.NO_PROGRESS
        elif self._area.status().outcome == REPEATS:
            self._result.ending = RunEnding.REPEATS
        elif any(ending.failed for ending in self._result.exits):
            self._result.ending = RunEnding.FAILED
        elif time.monotonic() > self._ends:
            self._result.ending = RunEnding.DEADLINE
            self._result.doing = doing(self._area, self._setting)

    def _left_any(self, process: subprocess.Popen[bytes] | ServedProcess) -> bool:
        """Whether a command that has ended left processes, which may open the pool later, as a daemon does."""
        if isinstance(process, ServedProcess):
            return process.left
        return bool(children() - self._others - {process.pid for process, _ in self._live.values()})

    def _exit(self, number: int, code: int) -> Exit:
        crashed = self._setting.commands[number].host == crashed_host(self._setting, self._result.choice)
        ended_by_us = self._result.ending is not RunEnding.ENDED or self._area.status().outcome != GOING_ON
        asked = code == -signal.SIGKILL and (crashed or ended_by_us)
        asked |= code == -signal.SIGBUS and self._breaks and self._setting.commands[number].stage < self._last
        text = ""
        with contextlib.suppress(FileNotFoundError):  # it was killed before it began
            if not self._setting.show and (size := self._output(number).stat().st_size):
                with self._output(number).open("rb", buffering=0) as file:
                    file.seek(max(0, size - OUTPUT_BYTES_MAX))
                    text = file.read(OUTPUT_BYTES_MAX).decode(errors="replace")
        return Exit(number, code, asked, text)

    def _look(self) -> None:
        """Let the others go on without a thread that does not come to a step: it sleeps, or computes for long."""
        if self._setting.free:
            self._area.part()  # one may compute for long by now
            return
        steps = self._area.status().steps
        for thread in self._area.threads():
            if thread.state not in (STARTING, RUNNING):
                continue
            stands = (steps, thread.number, thread.state)
            self._looks = self._looks + 1 if stands == self._stands else 0
            self._stands = stands
            if thread.pid == 0:
                self._look_at_start(thread)
            elif self._looks >= (SLEEPING_LOOKS if (rest := self._rest(thread)) else COMPUTING_LOOKS):
                self._without(thread, rest or "computes")
            return

    def _rest(self, thread: PoolThread) -> str:
        """How a thread is at rest, and not until one that waits for a processor lets go of the lock of turns."""
        those = [system_state(its.pid, its.tid) for its in self._area.threads() if its.pid and its.state != OUTSIDE]
        return "" if "R" in those or "D" in those else at_rest(thread.pid, thread.tid)

    def _look_at_start(self, thread: PoolThread) -> None:
        """Let the others go on without a command that has not opened the pool, once its process sleeps."""
        process, _ = self._live.get(thread.command, (None, 0))
        if self._looks >= STARTING_LOOKS and (process is None or at_rest(process.pid, process.pid)):
            self._without(thread, "has not opened the pool")

    def _without(self, thread: PoolThread, why: str) -> None:
        if self._area.outside(thread):
            name = Path(self._setting.commands[thread.command].words[0]).name
            self._result.notes.append(f"{name} {why}: the others go on, so the same token may not give the same trace")


def _named_in_its_folder(path: str) -> str:
    """The name under which programs find a pool: native/paths.c follows the links in the path of its folder."""
    return str(Path(path).parent.resolve() / Path(path).name)
