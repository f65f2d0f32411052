"""A signal's handler that raises in a call: what had not begun has not happened, and the communicator goes on."""

import signal
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectives import ANY, Communicator
from collectives.communicator.membership import opening
from collectives.communicator.messages.mailboxes import SLOTS
from collectives.communicator.messages.transfers import CLOSED
from cxlemu import RankContext, launch
from cxlemu._native import Courier
from cxlemu.errors import PeerLostError, RevokedError, RunError
from cxlemu.memory import MemorySpec
from tests.helpers.tiers import PATIENT_S
from tests.helpers.worlds import looks_limited

LAPTOP = "laptop"
LARGE = 1 << 20  # elements: more than a mailbox takes


class Enough(Exception):
    """A handler's own."""


class Handler:
    """A handler of a signal, as a method, which may be a partial one."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def came(self, *_: object) -> None:
        raise self.error


def interrupted(call: Callable[[], Any], error: BaseException, after_s: float = 0.2) -> None:
    """Make a call that waits, and interrupt it; after 0 s: never, the call raises the signal itself."""
    before = signal.signal(signal.SIGALRM, partial(Handler(error).came))
    signal.setitimer(signal.ITIMER_REAL, after_s)
    try:
        with pytest.raises(type(error)):
            call()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)  # which would end the process where the signal came otherwise
        signal.signal(signal.SIGALRM, before)


def launched(main: Callable[..., Any], **given: Any) -> list[Any]:
    """Run it on two ranks, which are processes: only a main thread has signals."""
    memory = MemorySpec("shm")
    program = partial(main, **given)
    return launch(program, ranks=2, topology=LAPTOP, memory=memory, how="processes", deadline_s=PATIENT_S)


# What rank 0 waits in: its peer answers when rank 0 was interrupted.
WAITS: dict[str, Callable[[Communicator, Any], Any]] = {
    "recv": lambda comm, out: comm.recv(out, 1, 1),
    "recv from any": lambda comm, out: comm.recv(out, ANY, 1),
    "recv of much": lambda comm, out: comm.recv(np.zeros(LARGE), 1, 2),
    "sendrecv": lambda comm, out: comm.sendrecv(np.ones(0), 0, out, 1, 5, 1),
    "probe": lambda comm, out: comm.probe(1, 1),
    "mprobe": lambda comm, out: comm.mprobe(1, 1),
    "request.wait": lambda comm, out: comm.irecv(out, 1, 3).wait(),
    "waitall": lambda comm, out: comm.waitall([comm.irecv(out, 1, 3)]),
    "waitany": lambda comm, out: comm.waitany([comm.irecv(out, 1, 3)]),
    "handle.wait": lambda comm, out: comm.barrier(async_op=True).wait(),
    "behind a handle": lambda comm, out: (comm.barrier(async_op=True), comm.all_reduce(out)),
}


def _waits(context: RankContext, name: str, error: BaseException) -> Any:
    comm = Communicator.world(context)
    out, kept = np.zeros(1), np.zeros(1)
    if comm.rank == 0:
        interrupted(lambda: WAITS[name](comm, kept), error)
        if name == "sendrecv":
            comm.recv(np.ones(0), 0, 5)
    context.session.barrier(PATIENT_S)
    if "handle" in name and comm.rank == 1:
        comm.barrier()
    if comm.rank == 1:
        comm.send(np.full(LARGE, 2.0), 0, 2)
        for tag in (3, 1):
            comm.send(np.full(1, float(tag)), 0, tag)
    else:
        much = np.zeros(LARGE)
        comm.recv(much, 1, 2)
        assert (much == 2).all()
        if name not in ("request.wait", "waitall", "waitany"):
            comm.recv(out, 1, 3)
        comm.recv(out, 1, 1)
    total = comm.all_reduce(np.full(1, comm.rank + 1.0))
    comm.close()
    return out[0], kept[0], total[0]


def _all_waits(context: RankContext, error: BaseException) -> list[Any]:
    return [_waits(context, name, error) for name in WAITS]


@pytest.mark.deep(rows=lambda error: not isinstance(error, Enough))
@pytest.mark.parametrize("error", [Enough(), KeyboardInterrupt()], ids=["an error", "Ctrl-C"])
def test_what_waited_may_be_called_again(error: BaseException) -> None:
    """A receive that was interrupted takes no message from the next one; what began before goes on."""
    for name, (first, second) in zip(WAITS, zip(*launched(_all_waits, error=error), strict=True), strict=True):
        kept = 3 if name in ("request.wait", "waitall", "waitany") else 0
        assert first == (1, kept, 3) and second[2] == 3, name


def _begun(context: RankContext, error: BaseException) -> None:
    comm = Communicator.world(context)
    if comm.rank == 0:
        interrupted(lambda: comm.all_reduce(np.ones(1)), error)
    context.session.barrier(PATIENT_S)
    with pytest.raises(RunError, match=f"{type(error).__name__} in .all_reduce" if comm.rank == 0 else "rank 0 failed"):
        for _ in range(3):  # of the first one, rank 1 has what it needs
            comm.all_reduce(np.ones(1))


@pytest.mark.deep(rows=lambda error: isinstance(error, Enough))
@pytest.mark.parametrize("error", [Enough(), KeyboardInterrupt()], ids=["an error", "Ctrl-C"])
def test_a_collective_that_had_begun_is_given_up_on_all_ranks(error: BaseException) -> None:
    """Its peers may have read what it sent: nothing can be called back."""
    launched(_begun, error=error)


def _splits(context: RankContext, who: int, over: Path) -> None:
    comm = Communicator.world(context)
    if comm.rank == who:

        def asked(*_: object) -> Any:
            signal.raise_signal(signal.SIGALRM)

        if who == 0:  # which claims the room
            context.rooms.claim = asked  # type: ignore[method-assign]
        else:  # which waits for rank 0 to do so
            opening.lost_among = asked
        interrupted(lambda: comm.split(0), Enough(), after_s=0)
        over.touch()
    else:
        why = f"rank {who} failed in a call of this communicator; rank {comm.rank} makes"
        with looks_limited(context, over.exists), pytest.raises(RevokedError, match=why):
            comm.split(0)
    with pytest.raises(RevokedError, match="this communicator was revoked"):
        comm.barrier()


@pytest.mark.parametrize("who", [0, pytest.param(1, marks=pytest.mark.deep)])
def test_a_split_that_is_interrupted_ends_on_all_ranks(who: int, tmp_path: Path) -> None:
    """Its peers do not wait for the deadline."""
    launched(_splits, who=who, over=tmp_path / "over")


OPENS: dict[str, Callable[[RankContext], Communicator]] = {
    "world": Communicator.world,
    "of": lambda context: Communicator.of(context, [0, 1]),
}


def _opens(context: RankContext, name: str, who: int, over: Path) -> None:
    if context.rank == who:

        def asked(*_: object) -> Any:
            signal.raise_signal(signal.SIGALRM)

        rooms, lost_among = context.rooms, opening.lost_among
        if who == 0:  # which claims the room
            claim, rooms.claim = rooms.claim, asked  # type: ignore[method-assign]
        else:  # which waits for rank 0 to do so
            opening.lost_among = asked
        interrupted(lambda: OPENS[name](context), Enough(), after_s=0)
        over.touch()
        if who == 0:
            rooms.claim = claim  # type: ignore[method-assign]
        opening.lost_among = lost_among
    else:
        why = f"rank {who} was interrupted while it made a communicator of ranks 0"
        with looks_limited(context, over.exists), pytest.raises(PeerLostError, match=why):
            OPENS[name](context)
    with OPENS[name](context) as comm:
        assert comm.all_reduce(np.ones(1))[0] == 2


def _all_open(context: RankContext, folder: Path) -> None:
    for name, who in product(OPENS, (0, 1)):
        _opens(context, name, who, folder / f"{name}-{who}")


def test_a_communicator_whose_making_is_interrupted_is_made_by_no_rank(tmp_path: Path) -> None:
    """Its peers do not wait for the deadline, and may make it again."""
    launched(_all_open, folder=tmp_path)


ROOMY = 1 << 18  # elements: more than a mailbox takes, and moved in one call

# What rank 0 calls when a courier hands a message over to it, and what its peer does before that.
HANDED: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "send": (lambda comm, kept: comm.send(kept, 1, 1), lambda comm, much: None),
    "isend": (lambda comm, kept: comm.isend(kept, 1, 1), lambda comm, much: None),
    "recv": (lambda comm, kept: comm.recv(kept, 1, 1), lambda comm, much: comm.isend(much, 0, 1)),
    "recv of another": (lambda comm, kept: comm.recv(kept, 1, 3), lambda comm, much: comm.isend(much, 0, 1)),
}


def _handed_over(context: RankContext, name: str) -> None:
    comm = Communicator.world(context, deadline_s=60)  # nothing moves where what was handed over is left
    peer, much, kept = 1 - comm.rank, np.full(ROOMY, comm.rank + 1.0), np.full(ROOMY, comm.rank + 1.0)
    comm.sendrecv(much, peer, np.zeros(ROOMY), peer)  # so that couriers know messages of this size
    calls, before = HANDED[name]
    until = time.monotonic() + PATIENT_S / 2
    while comm._messenger._gate[CLOSED] and time.monotonic() < until:  # Python carries the rest of that, no courier
        comm._messenger.poke()
    context.session.barrier(PATIENT_S)
    if comm.rank == 1:
        request = before(comm, much)
    context.session.barrier(PATIENT_S)
    if comm.rank == 0:
        couriers = comm._messenger.outgoing if "send" in name else comm._messenger.incoming
        courier, handed = couriers[1], []

        class Asked:
            def __call__(self, array: Any, tag: int) -> Any:
                handed.append(courier(array, tag))
                while handed[-1] is None and time.monotonic() < until:  # the peer's message is still on its way
                    handed.append(courier(array, tag))
                signal.raise_signal(signal.SIGALRM)

            last = property(lambda self: courier.last)

        couriers[1] = Asked()  # type: ignore[assignment]  # as if the signal came while the courier was at work
        interrupted(lambda: calls(comm, kept), Enough(), after_s=0)
        assert type(handed[-1]) is list
        couriers[1] = courier
    context.session.barrier(PATIENT_S)
    if comm.rank == 0:
        if "recv" in name:  # it took nothing
            comm.recv(kept, 1, 1)
        comm.sendrecv(np.full(1, 5.0), 1, small := np.zeros(1), 1, 5, 5)
        assert (kept == (1 if "send" in name else 2)).all() and small[0] == 6
    else:
        if "send" in name:
            comm.recv(kept, 0, 1)
            assert (kept == 1).all()
        comm.sendrecv(np.full(1, 6.0), 0, small := np.zeros(1), 0, 5, 5)
        assert small[0] == 5 and (request is None or request.done)
    assert comm.all_reduce(np.full(1, comm.rank + 1.0))[0] == 3
    assert comm._messenger.incoming[peer](np.zeros(1), 7) is None  # couriers go on, and nothing is left in a mailbox
    comm.close()


def _all_handed_over(context: RankContext) -> None:
    for name in HANDED:
        _handed_over(context, name)


def test_what_a_courier_handed_over_is_taken_up_after_a_handler_raised() -> None:
    """The call that asked the courier never sees what it returned; the next one goes on with it."""
    launched(_all_handed_over)


MESSAGES = 12  # more than a mailbox has SLOTS
SIZES = (2, 8 << 10, 1 << 18)  # elements: in a line, in a slot, more than a mailbox takes


class Interrupting:
    """Raises a signal in every second call of what it wraps, after it; of what is no courier, also before it."""

    def __init__(self, inner: Any, most: int, then: Callable[[], None] = lambda: None) -> None:
        self.inner, self.left, self.calls, self.then = inner, most, 0, then

    def __call__(self, *given: Any) -> Any:
        self.calls += 1
        if self.calls % 4 == 2 and not isinstance(self.inner, Courier):
            self._interrupt()
        result = self.inner(*given)
        if self.calls % 4 == 0:
            self._interrupt()
        return result

    def _interrupt(self) -> None:
        if self.left:
            self.left -= 1
            if not self.left:
                self.then()
            signal.raise_signal(signal.SIGALRM)

    @property
    def last(self) -> Any:
        """What a courier says that it returned last."""
        return self.inner.last


class Meeting:
    """Meets the other rank once, which waits until this rank's calls were interrupted often enough."""

    def __init__(self, context: RankContext) -> None:
        self.context, self.met = context, False

    def __call__(self) -> None:
        if not self.met:
            self.met = True
            self.context.session.barrier(PATIENT_S)


def _until_done(call: Callable[[Any], Any], array: Any) -> Any:
    """Make a call again and again as docs/python.md says, with an array that loses what it had where one ends."""
    while True:
        given = array.copy()
        try:
            return call(given), given
        except Enough as error:
            given[:] = -1
            if getattr(error, "__notes__", None):
                error.__notes__.clear()  # it is the same error every time
                return None, given


def _interrupted_round(comm: Communicator, verb: str, x: Any, meet: Meeting) -> None:
    """Send or receive numbered messages while calls are interrupted."""
    messages, requests = comm._messenger, []
    couriers = messages.incoming if verb == "recv" else messages.outgoing
    advance, courier = messages._lane.advance, couriers.get(1)
    messages._lane.advance = Interrupting(advance, 9, meet)  # type: ignore[method-assign]
    if courier is not None:
        couriers[1] = Interrupting(courier, 3)  # type: ignore[assignment]
    for number in range(MESSAGES):
        x[:] = number
        done, given = _until_done(lambda array: getattr(comm, verb)(array, 1), x)
        assert verb != "recv" or ((given == number).all() and done.nbytes == x.nbytes)
        requests += [done] * (verb == "isend" and done is not None)
    for request in requests:
        _until_done(lambda _, request=request: request.wait(), x)
    messages._lane.advance = advance  # type: ignore[method-assign]
    if courier is not None:
        couriers[1] = courier


def _every_message_once(context: RankContext, verb: str) -> None:
    comm = Communicator.world(context, deadline_s=PATIENT_S)
    if comm.rank == 0:
        signal.signal(signal.SIGALRM, Handler(Enough()).came)
    for elements in SIZES * 2:  # in the second round couriers carry what they can
        x, meet = np.empty(elements), Meeting(context)
        if comm.rank == 0:
            _interrupted_round(comm, verb, x, meet)
            meet()
            comm.send(np.full(1, MESSAGES), 1, 5)
        else:
            sent = [comm.isend(np.full(elements, 1.0 * k), 0) for k in range(MESSAGES) if verb == "recv"]
            meet()
            comm.waitall(sent)
            for number in range(0 if sent else MESSAGES):
                comm.recv(x, 0, 0)
                assert (x == number).all()
            assert comm.probe(0).tag == 5  # no message came twice
            comm.recv(np.zeros(1), 0, 5)
        assert comm.all_reduce(np.full(1, comm.rank + 1.0))[0] == 3
    comm.close()


@pytest.mark.deep(rows=lambda verb: verb != "isend")
@pytest.mark.parametrize("verb", ["send", "isend", "recv"])
def test_every_message_comes_once_however_often_its_calls_are_interrupted(verb: str) -> None:
    """Before an engine's work and after it, where a handler takes from Python what C has done."""
    launched(_every_message_once, verb=verb)


def _overtaken(context: RankContext) -> None:
    comm = Communicator.world(context, deadline_s=PATIENT_S)
    numbers = range(1 + SLOTS)  # the last one takes the place of the first one
    if comm.rank == 1:
        comm.send(np.full(1, 0.0), 0)
        context.session.barrier(PATIENT_S)
        for number in numbers[1:]:
            comm.send(np.full(1, float(number)), 0)
        context.session.barrier(PATIENT_S)
    else:
        lane, out = comm._messenger._lane, np.zeros(1)
        advance = lane.advance

        def interrupts(*given: Any) -> Any:
            if (ended := advance(*given)) is not None:
                signal.raise_signal(signal.SIGALRM)
            return ended

        lane.advance = interrupts  # type: ignore[method-assign]
        interrupted(lambda: comm.recv(out, 1), Enough(), after_s=0)
        lane.advance = advance  # type: ignore[method-assign]
        context.session.barrier(PATIENT_S)
        context.session.barrier(PATIENT_S)
        for number in numbers:
            comm.recv(out, 1)
            assert out[0] == number
    comm.barrier()
    comm.close()


def test_a_message_that_came_while_its_receive_was_interrupted_is_kept() -> None:
    """Its sender knows that it came, and may write another one in its place."""
    launched(_overtaken)
