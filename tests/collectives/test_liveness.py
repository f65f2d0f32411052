"""Who lives is known apart from what is called: a process that ends is seen at once, a stopped one is not dead."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectives.communicator.calls.loss import lost_among
from collectives.communicator.communicator import Communicator
from cxlemu._native import Pulse
from cxlemu.errors import PeerLostError
from cxlemu.memory import MemorySpec
from cxlemu.memory.cache import HostCache
from cxlemu.memory.native import NativeShadowMemory
from cxlemu.pool.ledger import Identity
from cxlemu.pool.liveness import PULSE_S, Liveness
from cxlemu.world import RankContext, launch, launch_survivors
from tests.helpers.card_files import real_cards
from tests.helpers.tiers import PATIENT_S

LAPTOP = "laptop"
HOURS = 7200.0  # a deadline that no test waits for


class Told:
    """A ledger in which ranks say this."""

    def __init__(self, *its: Identity | None) -> None:
        self.its, self.memory = its, None

    def identity(self, rank: int) -> Identity | None:
        return self.its[rank]


def test_only_another_process_of_this_machine_is_known_to_have_ended() -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    mine = Identity(1, os.getpid(), 5)
    ledger = Told(Identity(1, ended.pid, 6), Identity(1, ended.pid, 5), mine, None)
    life = Liveness(ledger, mine)  # type: ignore[arg-type]
    assert life.ended(range(4)) == {1: ended.pid}
    assert [rank for rank in range(4) if life.watched(rank)] == [1]  # rank 2 is a thread of this process
    life.close()


def _killed_in_a_call(context: RankContext) -> str:
    comm = Communicator.world(context, deadline_s=HOURS)
    x = np.ones(1000)
    for step in range(20):
        if comm.rank == 1 and step == 10:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            comm.all_reduce(x)
        except PeerLostError as error:
            smaller = comm.shrink()
            return f"{error.ranks} {smaller.members} {error}"
    return ""


@pytest.mark.deep(rows=lambda kind: kind != "emulated")
@pytest.mark.parametrize("kind", ["shm", "emulated", "dax"])
def test_a_killed_process_is_noticed_whatever_the_deadline(kind: str, tmp_path: Path) -> None:
    spec, topology = (real_cards(tmp_path), None) if kind == "dax" else (MemorySpec(kind), LAPTOP)
    ended = launch_survivors(
        _killed_in_a_call, ranks=3, topology=topology, memory=spec, how="processes", deadline_s=PATIENT_S
    )
    assert sorted(ended.results) == [0, 2]
    for told in ended.results.values():
        assert told.startswith("(1,) (0, 2) rank 1 ")
        assert "died: its process" in told or "as rank" in told  # by itself, or told by the other one
        assert "waits in [all_reduce" in told


def _stopped_for_a_while(context: RankContext) -> tuple[int, bool]:
    context = replace(context, lost_after_s=0.2)
    comm = Communicator.world(context, deadline_s=HOURS)
    pids = comm.all_gather(np.array([os.getpid()])).ravel()
    stopped = False
    if comm.rank == 0:
        peer = int(pids[1])
        os.kill(peer, signal.SIGSTOP)

        def go_on() -> None:
            nonlocal stopped
            time.sleep(5 * context.lost_after_s)
            stopped = ") T " in Path(f"/proc/{peer}/stat").read_text()
            os.kill(peer, signal.SIGCONT)

        thread = threading.Thread(target=go_on)
        thread.start()
    total = int(comm.all_reduce(np.ones(1000, np.int64))[0])
    assert "_pytest" not in sys.modules  # see tests/__init__.py
    if comm.rank == 0:
        thread.join()
    return total, stopped


def test_a_stopped_process_is_not_dead() -> None:
    found = launch(_stopped_for_a_while, ranks=2, topology=LAPTOP, how="processes", deadline_s=PATIENT_S)
    assert found == [(2, True), (2, False)]


def test_a_pulse_that_stops_is_noticed_whatever_the_deadline() -> None:
    """Ranks that are threads know of each other what ranks on other machines know: whether the pulse beats."""
    over = threading.Event()

    def main(context: RankContext) -> Any:
        comm = Communicator.world(replace(context, lost_after_s=0.5), deadline_s=HOURS)
        if comm.rank == 1:
            context.session.play_dead()
            assert over.wait(PATIENT_S)
            return None
        with pytest.raises(PeerLostError, match=r"rank 1 gave no sign of life for 0.5 s; rank 0 waits in \[barrier"):
            comm.barrier()
        over.set()
        return None

    launch(main, ranks=2, topology=LAPTOP, deadline_s=PATIENT_S)


@pytest.mark.parametrize("kind", ["shm", "emulated"])
def test_the_pulse_beats_while_a_rank_holds_the_gil(kind: str) -> None:
    def main(context: RankContext) -> int:
        life = context.session.life
        before = life.pulse(0)
        usleep = ctypes.PyDLL(None).usleep  # which keeps the GIL, as long as it takes
        usleep.argtypes = [ctypes.c_uint]
        for _ in range(100):
            usleep(int(2 * PULSE_S * 1e6))
            if life.pulse(0) >= before + 2:
                break
        return life.pulse(0) - before

    (beats,) = launch(main, ranks=1, topology=LAPTOP, memory=MemorySpec(kind), deadline_s=PATIENT_S)
    assert beats >= 2


def test_a_pulse_that_is_stopped_at_once_has_beaten() -> None:
    """Else a rank that is lost in its first moments would be one of which nothing is known."""
    card = np.zeros(1 << 12, np.uint8)
    for line in range(64):
        Pulse(card, 64 * line, False, None, 10**9).stop()
    assert (card.view(np.uint64)[::8] >= 1).all()


def test_a_pulse_begins_beside_a_thread_that_holds_the_hosts_lock_and_waits_for_the_gil() -> None:
    """The first beat waits for the lock without the GIL; else neither goes on until the lock's deadline."""
    card = np.zeros(1 << 12, np.uint8)
    cache = HostCache.private([card])
    taken, over = threading.Event(), threading.Event()

    def holds() -> None:
        with cache.lock:
            taken.set()
            for _ in range(50):
                time.sleep(0.001)
            over.set()

    holder = threading.Thread(target=holds)
    holder.start()
    taken.wait()
    pulse = Pulse(card, 0, False, NativeShadowMemory(cache).shadow, 10**9)
    assert over.is_set()
    holder.join()
    pulse.stop()


def _forked(context: RankContext) -> tuple[int, dict[int, str]]:
    """A child that a rank forks neither beats for it nor hangs when it drops the pulse."""
    if (child := os.fork()) == 0:
        context.session.life.close()  # type: ignore[union-attr]
        os._exit(7)
    _, status = os.waitpid(child, 0)
    context.session.barrier(context.deadline_s)
    return os.waitstatus_to_exitcode(status), lost_among(context, range(context.ranks))


@pytest.mark.deep
def test_a_forked_child_leaves_its_rank_alive() -> None:
    found = launch(_forked, ranks=2, topology=LAPTOP, memory=MemorySpec("shm"), how="processes", deadline_s=PATIENT_S)
    assert [code for code, _ in found] == [7, 7]
    assert all(set(lost.values()) <= {"left"} for _, lost in found)
