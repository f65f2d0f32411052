"""Chaos: worlds that run while something kills, stops and stalls their processes, fills, squats and forges.

Every world checks all its results, and must end by itself, say only sentences, and leave nothing. What happens is drawn
from a seed; when it happens is up to the machine. `scripts/chaos` runs this for as long as one likes.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from cxlemu.errors import CxlemuError
from cxlemu.memory.direct import DirectMemory
from cxlemu.pool import catalog, segments
from cxlemu.pool.board import Board, Cause, Notice, Proposal, Stage, Vote
from cxlemu.pool.segments import SHM_DIR, Segment
from cxlemu.pool.session_area import Answer, Checkin, Record, SessionArea, Status
from cxlemu.pool.shm import open_card
from cxlemu.pool.superblock import SESSION_OFFSET

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 150.0  # without any progress: many deadlines, on a machine that is busy with other things
GONE_S = 10.0  # until a process is gone that was told to go
NOBODY_UID = 65534
DRAINED_BYTES = 64 << 10


@dataclass
class Tally:
    """What was seen so far: worlds that ended, right results, acts, kinds of errors, and what must not be."""

    worlds: int = 0
    calls: int = 0
    acts: Counter[str] = field(default_factory=Counter)
    said: Counter[str] = field(default_factory=Counter)
    hung: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether nothing hung, nothing was wrong and nothing was left."""
        return not (self.hung or self.wrong or self.left)

    def __str__(self) -> str:
        acts = ", ".join(f"{name} {count}" for name, count in sorted(self.acts.items()))
        said = ", ".join(f"{name} {count}" for name, count in sorted(self.said.items()))
        return (
            f"{self.worlds} worlds, {self.calls} results right; hung {len(self.hung)}, wrong {len(self.wrong)}, "
            f"left {len(self.left)}\n  done to them: {acts}\n  ranks raised: {said}"
        )


class Attack:
    """One world under attack."""

    def __init__(self, seed: int, tally: Tally) -> None:
        self.seed, self.tally = seed, tally
        self.rng = random.Random(f"attack {seed}")
        self.name = f"chaos-{os.getpid()}-{seed}"
        self.made: list[Path] = []
        self.seen: set[int] = set()  # pids of ranks
        self.ended = False  # the world's own process was told to go
        self.killed = False  # ... and could not clean up

    def run(self) -> None:
        """Run the world to its end, and look what became of it."""
        if self.rng.random() < 0.2:
            self.squat()  # before it begins
        with tempfile.NamedTemporaryFile(prefix="chaos-") as progress:
            self.watch(Path(progress.name))
        self.look_for_leftovers()
        self.tally.worlds += 1

    def watch(self, progress: Path) -> None:
        """Start the world, and attack it until it ends."""
        command = [sys.executable, "-m", "tests.helpers.chaos_world", str(self.seed), self.name, str(progress)]
        out = subprocess.PIPE
        with subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out, text=True, start_new_session=True) as world:
            try:
                self.harass(world, progress)
                said, complaints = world.communicate(timeout=GONE_S)
            except subprocess.TimeoutExpired:
                self.ended = self.killed = True
                self.everything(world.pid, signal.SIGUSR1)
                time.sleep(GONE_S / 5)
                self.everything(world.pid, signal.SIGKILL)
                said, complaints = world.communicate()
                self.tally.hung.append(f"seed {self.seed}: {complaints[-8000:]}")
            finally:
                for path in self.made:
                    path.unlink(missing_ok=True)
        self.judge(said, complaints)

    # --- what is done to it ------------------------------------------------------------------------------------

    def harass(self, world: subprocess.Popen[str], progress: Path) -> None:
        """Do things to a world until it ends."""
        acts: list[tuple[float, Callable[[int], None]]] = [
            (0.06, self.kill),
            (0.30, self.stop),
            (0.05, self.stop_all),
            (0.03, self.end),
            (0.15, self.fill),
            (0.07, lambda _: self.squat()),
            (0.30, lambda _: self.forge()),
        ]
        weights, doings = zip(*acts, strict=True)
        early = self.rng.random() < 0.3  # most worlds are left alone until their ranks have met
        while not early and world.poll() is None and not is_late(progress) and not self.have_met():
            self.seen.update(children(world.pid))
            time.sleep(0.1)
        while world.poll() is None:
            if is_late(progress):
                raise subprocess.TimeoutExpired(world.args, LIMIT_S)
            self.seen.update(children(world.pid))
            with suppress(subprocess.TimeoutExpired):
                world.wait(self.rng.uniform(0.05, 1.5))
            if world.returncode is None and not self.ended:
                with suppress(ProcessLookupError, FileNotFoundError, CxlemuError):
                    self.rng.choices(doings, weights)[0](world.pid)

    def have_met(self) -> bool:
        """Whether rank 0 has answered rank 1."""
        try:
            _, card = open_card(Segment(self.name, "card", 0))
        except CxlemuError:
            return False
        return SessionArea(DirectMemory([card]), SESSION_OFFSET).load(Answer, 1) is not None

    def kill(self, pid: int) -> None:
        """Kill a rank."""
        if ranks := children(pid):
            os.kill(self.rng.choice(ranks), signal.SIGKILL)
            self.tally.acts["kill"] += 1

    def stop(self, pid: int) -> None:
        """Stop a rank, or the launcher, for a moment or for longer than any deadline."""
        victim = self.rng.choice([pid, *children(pid) * 3])
        self._stop([victim], self.rng.choice([0.1, 0.6, 2.0, 7.0]))

    def stop_all(self, pid: int) -> None:
        """Stop all, as when a machine sleeps."""
        self._stop([pid, *children(pid)], self.rng.choice([0.3, 4.0]))

    def _stop(self, victims: list[int], seconds: float) -> None:
        self.tally.acts["stop"] += 1
        try:
            for victim in victims:
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGSTOP)
            time.sleep(seconds)
        finally:
            for victim in victims:
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGCONT)

    def end(self, pid: int) -> None:
        """End the launcher: as Ctrl-C does, as an administrator does, or so that it cannot do anything more."""
        number = self.rng.choice([signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
        self.ended, self.killed = True, number == signal.SIGKILL
        self.seen.update(children(pid))
        os.kill(pid, number)
        self.tally.acts[f"end by {number.name}"] += 1

    def fill(self, _: int) -> None:
        """Fill /dev/shm to the brim for a moment, where it is this run's own."""
        if os.environ.get("CHAOS_OWN_SHM") != "1":
            return
        path = SHM_DIR / f"chaos-fill-{self.seed}"
        self.made.append(path)
        with path.open("wb") as file, suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, max(4096, segments.free_bytes() - DRAINED_BYTES))
        self.tally.acts["fill"] += 1
        time.sleep(self.rng.choice([0.1, 1.0]))
        path.unlink(missing_ok=True)

    def squat(self) -> None:
        """Make a file of this pool's name, as another user does, or where that takes root, as this one."""
        card = self.rng.choice([0, 1, 7])
        path = Segment(self.name, "card", card).path
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666))
            self.made.append(path)
            if os.geteuid() == 0:
                os.chown(path, NOBODY_UID, NOBODY_UID)
            self.tally.acts["squat"] += 1

    def forge(self) -> None:
        """Store lines that are sealed and make no sense, or bytes that make none, where ranks meet and vote."""
        block, card = open_card(Segment(self.name, "card", 0))
        memory = DirectMemory([card])
        ranks, at = block.geometry.max_ranks, SESSION_OFFSET
        area = SessionArea(memory, at)
        record = area.load(Record, 0)
        session = record.session if record and self.rng.random() < 0.7 else self.number(64)
        rank = self.rng.randrange(ranks)
        match self.rng.randrange(7):
            case 0:
                garbage = np.frombuffer(self.rng.randbytes(64), np.uint8)
                memory.write(0, at + 64 * self.rng.randrange(1 + 3 * ranks), garbage)
            case 1:
                fields = (self.number(64), self.number(62), self.number(16), self.number(22), 0, bytes(16))
                area.store(Checkin(session, *fields), rank)
            case 2:
                area.store(Answer(session, self.number(64), self.number(62), self.number(2), self.number(16)), rank)
            case 3:
                text = self.rng.randbytes(24)
                numbers = (self.number(64), self.number(64), self.number(32), self.number(16))
                area.store(Status(session, *numbers, self.number(3), text), rank)
            case 4:
                board = Board(memory, block.geometry.data_offset, session, ranks)
                board.post(rank, Notice(self.rng.choice(list(Cause)), tuple(self.number(64) for _ in range(2))))
            case 5:
                board = Board(memory, block.geometry.data_offset, session, ranks)
                value = Proposal(rank, self.number(64), self.number(64), self.number(32))
                board.vote(rank, Vote(self.rng.choice(list(Stage)), self.number(64), self.number(64), value))
            case _:
                memory.write(0, block.geometry.data_offset + 64 * rank, np.zeros(64, np.uint8))
        self.tally.acts["forge"] += 1

    def number(self, bits: int) -> int:
        """An end of a range, or anything in it."""
        return self.rng.choice([0, 1, (1 << bits) - 1, self.rng.getrandbits(bits)])

    # --- what became of it -------------------------------------------------------------------------------------

    def judge(self, said: str, complaints: str) -> None:
        """Read what the world says of its ranks; only sentences and right results are as they should be."""
        where = f"seed {self.seed}"
        if "Traceback" in complaints and not self.ended:
            self.tally.wrong.append(f"{where}: {complaints[-2000:]}")
        lines = said.splitlines()
        if not lines:
            if not self.ended:
                self.tally.wrong.append(f"{where}: it said nothing; {complaints[-2000:]}")
            return
        became = json.loads(lines[-1])
        for rank, done in became["ranks"].items():
            self.tally.calls += done["right"]
            if done["wrong"]:
                self.tally.wrong.append(f"{where}: rank {rank} got {done['wrong']} wrong results, {became['memory']}")
        for rank, (is_sentence, kind, text) in became["failures"].items():
            self.tally.said[kind] += 1
            if not is_sentence or text.count("\n") > 2:
                self.tally.wrong.append(f"{where}: rank {rank} failed with {kind}: {text[-2000:]}")
        if became["refused"]:
            self.tally.said["refused"] += 1

    def look_for_leftovers(self) -> None:
        """Nothing of the world is there any more; what SIGKILL left, `pool clean` removes."""
        until = time.monotonic() + GONE_S
        while (alive := [pid for pid in self.seen if is_alive(pid)]) and time.monotonic() < until:
            time.sleep(0.05)
        for pid in alive:
            self.tally.left.append(f"seed {self.seed}: process {pid}")
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.killed:
            catalog.clean(self.name)
        for segment in segments.find(self.name):
            if segments.is_ours(segment):
                self.tally.left.append(f"seed {self.seed}: {segment}")
                segments.remove(segment)

    def everything(self, pid: int, number: signal.Signals) -> None:
        for each in (*children(pid), pid):
            with suppress(ProcessLookupError):
                os.kill(each, number)


def children(pid: int) -> list[int]:
    """The ranks of a launcher: its children, without Python's own helper."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except FileNotFoundError:
        return []
    found = [int(each) for each in text.split()]
    return [each for each in found if b"spawn_main" in command_of(each)]


def command_of(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def is_late(progress: Path) -> bool:
    """Whether nothing has touched the file for as long as that takes to be a hang."""
    return time.time() - progress.stat().st_mtime > LIMIT_S


def is_alive(pid: int) -> bool:
    """Whether it runs; a pid that was reused since is no rank of ours."""
    return b"spawn_main" in command_of(pid)


def chaos(seed: int, seconds: float, *, most: int = 1 << 30, tell: Callable[[str], None] = lambda _: None) -> Tally:
    """Run worlds under attack, one after another, each with its own seed; ``tell`` gets a line of news now and then."""
    tally, until, told = Tally(), time.monotonic() + seconds, time.monotonic()
    for number in range(most):
        if time.monotonic() > until:
            break
        bad = len(tally.hung) + len(tally.wrong) + len(tally.left)
        Attack(seed + number, tally).run()
        if len(tally.hung) + len(tally.wrong) + len(tally.left) > bad:
            tell(f"{tally.hung}\n{tally.wrong}\n{tally.left}")
        if time.monotonic() - told > 60:
            told = time.monotonic()
            tell(str(tally))
    return tally
