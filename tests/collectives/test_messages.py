"""Send and receive: every size, in any order of posting, on every memory; and errors that name what is wrong."""

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import ANY, UNDEFINED, Communicator, Status
from collectives.communicator.messages import envelopes, transfers
from collectives.communicator.messages.envelopes import INLINE_BYTES
from collectives.communicator.messages.mailboxes import SLOTS_MIN, mailboxes_in
from cxlemu import RankContext, Topology, launch
from cxlemu.errors import (
    ArgumentError,
    DeadlineError,
    MismatchError,
    PeerLostError,
    RankFailures,
    RevokedError,
    TruncationError,
)
from cxlemu.memory import AdversaryRates, MemorySpec
from faults.inject.fault_engine import injected
from faults.inject.script import Script
from tests.helpers import worlds
from tests.helpers.card_files import real_cards
from tests.helpers.message_programs import every_size, every_way, random_posts
from tests.helpers.tables import with_rows
from tests.helpers.tiers import PATIENT_S, examples
from tests.helpers.worlds import Program

SIX_CARDS = Topology.load("six-cards")
WILD = AdversaryRates(evict=0.3, prefetch=0.3, land=0.3)
MEMORIES = {
    "shm": MemorySpec("shm"),
    "emulated": MemorySpec(),
    "adversary": MemorySpec(seed=5),
    "wild": MemorySpec(seed=6, rates=WILD),
}


def together(program: Program, ranks: int = 2, memory: str = "shm", **given: Any) -> list[Any]:
    return worlds.together(program, ranks, MEMORIES[memory], topology=SIX_CARDS, **given)


on_ranks = partial(worlds.on_ranks, by=together)


def failures(*programs: Program, deadline_s: float = PATIENT_S) -> dict[int, BaseException]:
    with pytest.raises(RankFailures) as raised:
        together(lambda comm: programs[comm.rank](comm), len(programs), deadline_s=deadline_s)
    return raised.value.failures


# --- bytes ----------------------------------------------------------------------------------------------------------


@pytest.mark.deep(rows=lambda memory, ranks: (memory, ranks) not in [("shm", 1), ("adversary", 3), ("emulated", 2)])
@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_size_comes_as_it_was_sent(memory: str, ranks: int) -> None:
    assert launch(every_size, ranks=ranks, topology=SIX_CARDS, memory=MEMORIES[memory]) == [True] * ranks


@pytest.mark.deep(rows=lambda engine, integrity: (engine, integrity) != ("reference", "crc32c"))
@pytest.mark.parametrize("engine", ["reference", "native"])
@pytest.mark.parametrize("integrity", [None, "crc32c"])
def test_on_every_engine_and_with_checksums(engine: str, integrity: str | None) -> None:
    main = partial(every_size, sizes=(0, 40, 41, 60_000, 500_000), engine=engine, integrity=integrity)
    assert launch(main, ranks=2, topology=SIX_CARDS, memory=MEMORIES["adversary"]) == [True] * 2


@pytest.mark.deep
@pytest.mark.parametrize("memory", ["shm", "adversary"])
def test_between_processes(memory: str) -> None:
    main = partial(every_size)
    assert launch(main, ranks=3, topology=SIX_CARDS, memory=MEMORIES[memory], how="processes") == [True] * 3


def test_on_cards(tmp_path: Path) -> None:
    assert launch(every_size, ranks=2, memory=real_cards(tmp_path)) == [True] * 2


def test_through_an_engine_that_runs_whole_calls_only() -> None:
    def main(context: RankContext) -> bool:
        engine = injected(context, "native", Script())
        return every_size(context, sizes=(0, 40, 41, 500_000), engine=engine)

    assert launch(main, ranks=2, topology=SIX_CARDS, memory=MEMORIES["adversary"]) == [True] * 2


@pytest.mark.parametrize("any_source", [False, True])
@examples(40, deadline=None)
@given(st.integers(0, 1 << 30), st.sampled_from(sorted(MEMORIES)), st.integers(1, 4))
def test_any_order_of_posting(any_source: bool, seed: int, memory: str, ranks: int) -> None:
    main = partial(random_posts, seeds=(seed, seed + 1, seed + 2), messages=12 * ranks, any_source=any_source)
    assert launch(main, ranks=ranks, topology=SIX_CARDS, memory=MEMORIES[memory]) == [[]] * ranks


@on_ranks(gives=[[True] * 7] * 2)
def test_arrays_of_any_dtype_and_shape(comm: Communicator) -> list[bool]:
    found = []
    arrays = [
        np.arange(30, dtype=np.complex128).reshape(5, 6),
        np.array(3.5),
        np.zeros((0, 7)),
        np.arange(100).astype(ml_dtypes.bfloat16),
        np.arange(9, dtype=np.uint16),
        np.array([True, False]),
        np.zeros(3, [("a", "i4"), ("b", "f8")]),
    ]
    for x in arrays:
        out = np.ones_like(x)
        comm.sendrecv(x, 1 - comm.rank, out, 1 - comm.rank)
        found.append(out.tobytes() == x.tobytes())
    return found


@on_ranks(gives=[(b"ping from 1", True, True), (b"ping from 0", True, True)])
def test_what_shares_its_memory_and_what_is_not_contiguous(comm: Communicator) -> Any:
    peer, table = 1 - comm.rank, np.arange(12.0).reshape(3, 4)
    theirs, wide = bytearray(11), np.full((3, 8), -1.0)
    comm.sendrecv(b"ping from %d" % comm.rank, peer, theirs, peer)  # type: ignore[arg-type]
    comm.sendrecv(table.T, peer, wide[:, ::2].T, peer)
    return bytes(theirs), np.array_equal(wide[:, ::2], table), bool((wide[:, 1::2] == -1).all())


# --- matching -------------------------------------------------------------------------------------------------------


@on_ranks(gives=[(1, 1), (3, 1), (0, 0), (2, 0), (4, 0), (5, 1)], of=1)
def test_tags_choose_and_messages_of_one_tag_stay_in_order(comm: Communicator) -> Any:
    if comm.rank == 0:
        for number in range(6):
            comm.send(np.full(50_000, number), 1, tag=number % 2)
        return None
    out, came = np.zeros(50_000, int), []
    for tag in (1, 1, 0, ANY, 0, ANY):
        status = comm.recv(out, 0, tag)
        came.append((int(out[0]), status.tag))
        assert (out == out[0]).all()
    return came


@on_ranks(4, gives=[Status(1, 11, 2), Status(2, 12, 4), Status(3, 13, 6)], of=0)
def test_a_receive_of_any_source_says_whose_message_came(comm: Communicator) -> Any:
    if comm.rank:
        comm.send(np.full(comm.rank, comm.rank, np.int16), 0, tag=10 + comm.rank)
        return None
    out, came = np.zeros(8, np.int16), []
    for _ in range(3):
        status = comm.recv(out)
        came.append(status)
        assert (out[: status.nbytes // 2] == status.source).all()
    return sorted(came)


def test_a_probe_tells_of_a_message_and_leaves_it() -> None:
    def program(comm: Communicator) -> Any:
        if comm.rank == 0:
            comm.send(np.zeros(100_000, np.uint8), 1, tag=1)
            comm.send(np.ones(10, np.uint8), 1, tag=2)
            return None
        assert comm.iprobe(0, 3) is None
        small = comm.probe(0, 2)
        large = comm.probe(0)
        out = np.zeros(large.nbytes, np.uint8)
        return [small, large, comm.recv(out), comm.recv(out, tag=2), int(out[0])]

    large, small = Status(0, 1, 100_000), Status(0, 2, 10)
    assert together(program)[1] == [small, large, large, small, 1]


@on_ranks(1, gives=[[0, 1, 2, 3, 4, 5]])
def test_a_rank_sends_to_itself_before_and_after_it_receives(comm: Communicator) -> list[int]:
    out, late = np.zeros(3, int), np.zeros(3, int)
    coming = comm.irecv(out, comm.rank, 1)
    comm.send(np.arange(3), comm.rank, 1)
    comm.send(np.arange(3, 6), comm.rank, 1)
    comm.recv(late, comm.rank, 1)
    assert coming.done and coming.wait() == (comm.rank, 1, 24)
    return [*out.tolist(), *late.tolist()]


# --- requests -------------------------------------------------------------------------------------------------------


@on_ranks(gives=[300_000, 0])
def test_requests_are_tested_waited_for_and_call_back(comm: Communicator) -> Any:
    peer, x, out = 1 - comm.rank, np.full(300_000, comm.rank), np.zeros(300_000, int)
    told: list[Any] = []
    coming = comm.irecv(out, peer)
    coming.add_done_callback(told.append)
    assert not coming.done and coming.status is None and coming.error is None
    with pytest.raises(TimeoutError, match=r"rank \d: \[recv from rank \d, any tag, 2400000 B\] has not ended"):
        coming.wait(timeout_s=0.01)
    comm.barrier()
    leaving = comm.isend(x, peer, tag=4)
    while not coming.test():
        pass
    leaving.wait()
    coming.add_done_callback(told.append)
    assert told == [coming, coming] and coming.done
    assert comm.waitany([leaving, coming]) is UNDEFINED and comm.waitall([coming]) == [Status(peer, 4, 2_400_000)]
    return int(out.sum())


@on_ranks(gives=[0, 0])
def test_messages_move_while_a_rank_waits_in_a_collective(comm: Communicator) -> Any:
    """Rank 0 is in a barrier that rank 1 enters only after it has all of a message larger than any mailbox."""
    x, out = np.arange(1_000_000), np.zeros(1_000_000, int)
    if comm.rank == 0:
        leaving = comm.isend(x, 1)
        comm.barrier()
        leaving.wait()
    else:
        comm.recv(out, 0)
        comm.barrier()
    return int(out.sum()) - comm.rank * int(x.sum())


@on_ranks(memory="adversary", gives=[1028.0] * 2)
def test_a_receive_that_is_posted_holds_up_no_collective(comm: Communicator) -> Any:
    out, x = np.zeros(4), np.ones(1000)
    coming = comm.irecv(out, 1 - comm.rank)
    for _ in range(5):
        comm.all_reduce(x, "max")
    comm.send(np.full(4, 7.0), 1 - comm.rank)
    coming.wait()
    return float(out.sum() + x.sum())


@pytest.mark.parametrize("memory", ["shm", "adversary"])
def test_many_threads_of_a_rank_post_at_once(memory: str) -> None:
    threads, each = 4, 12

    def program(comm: Communicator) -> list[str]:
        wrong: list[str] = []

        def talk(thread: int) -> None:
            for number in range(each):
                nbytes = (number * 9973) % 70_000
                x = np.full(nbytes, thread * 16 + number, np.uint8)
                out = np.zeros(nbytes, np.uint8)
                comm.sendrecv(x, 1 - comm.rank, out, 1 - comm.rank, sendtag=thread, recvtag=thread)
                if not np.array_equal(out, x):
                    wrong.append(f"thread {thread}, message {number}")

        others = [threading.Thread(target=talk, args=[thread]) for thread in range(threads)]
        for thread in others:
            thread.start()
        total = np.zeros(1)
        for _ in range(20):
            total[:] = 1
            comm.all_reduce(total)
        for thread in others:
            thread.join()
        return wrong + ([] if total[0] == comm.size else ["all_reduce"])

    assert together(program, memory=memory) == [[], []]


@pytest.mark.deep
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("memory", ["shm", "adversary"])
def test_threads_of_processes_mix_every_way_to_send(memory: str, ranks: int) -> None:
    found = launch(every_way, ranks=ranks, topology=SIX_CARDS, memory=MEMORIES[memory], how="processes")
    assert found == [[]] * ranks


@on_ranks(gives=[[2, 1]] * 2)
def test_every_communicator_has_messages_of_its_own(comm: Communicator) -> list[int]:
    half = comm.split(0, key=-comm.rank)
    assert half is not None
    out = np.zeros(2, int)
    coming = [half.irecv(out[:1], 1 - half.rank), comm.irecv(out[1:], 1 - comm.rank)]
    comm.send(np.array([1]), 1 - comm.rank)
    half.send(np.array([2]), 1 - half.rank)
    comm.waitall(coming[1:])
    half.waitall(coming[:1])
    return [int(n) for n in out]


# --- small messages without Python ----------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", ["shm", "adversary"])
def test_couriers_carry_small_messages_and_leave_others_to_python(memory: str) -> None:
    """Blocking, of all sizes about that of a line and some that are larger, of which few are new to the couriers.

    The receiver asks for them in another order now and then.
    """

    def program(comm: Communicator) -> Any:
        chance, peer = np.random.default_rng(7), 1 - comm.rank
        wrong = []
        for turn in range(300):
            sizes, swapped = chance.integers(0, 60, 2).tolist(), chance.random() < 0.2
            if chance.random() < 0.3:
                sizes[0] = int(chance.choice([41, 1000, 9000, 9001, 300_000, 400_001, 900_000]))
            messages = [np.full(size, (turn + 50 * k) % 256, np.uint8) for k, size in enumerate(sizes)]
            outs = [np.zeros(size, np.uint8) for size in sizes]
            order = (1, 0) if swapped else (0, 1)
            if comm.rank == turn % 2:
                for k in (0, 1):
                    comm.send(messages[k], peer, tag=k)
            else:
                for k in order:
                    status = comm.recv(outs[k], peer, tag=k if swapped or turn % 3 else ANY)
                    if status != (peer, k, sizes[k]) or not np.array_equal(outs[k], messages[k]):
                        wrong.append((turn, k, status))
        return wrong, len(comm._messenger.outgoing), len(comm._messenger.incoming)

    hired = int(memory == "shm")  # where messages go through an emulated cache, each step is Python's to ask for
    assert together(program, memory=memory) == [([], hired, hired)] * 2


@pytest.mark.parametrize("nbytes", [8, 3000, 200_000])
@on_ranks(gives=[], of=1)
def test_a_courier_hands_over_what_waits_for_long(comm: Communicator, nbytes: int) -> Any:
    """Sends fill the mailbox, and the receiver's courier runs ahead of its sender, which is late in the end."""
    peer, x, out = 1 - comm.rank, np.arange(nbytes, dtype=np.uint8), np.zeros(nbytes, np.uint8)
    for _ in range(3):
        comm.sendrecv(x, peer, out, peer)
    if comm.rank == 0:
        requests = [comm.isend(x + np.uint8(turn), peer, turn) for turn in range(20)]
        comm.barrier()
        comm.waitall(requests)
        threading.Event().wait(0.12)  # longer than a courier waits
        comm.send(x, peer, 99)
        return None
    comm.barrier()
    wrong = []
    for turn in [*range(20), 99]:
        status = comm.recv(out, peer)
        if status != (peer, turn, nbytes) or not np.array_equal(out, x + np.uint8(turn % 99)):
            wrong.append((turn, status))
    return wrong


@on_ranks(gives=list(range(1, 21)), of=0)
def test_a_courier_that_waits_lets_other_threads_send(comm: Communicator) -> Any:
    """A thread of rank 0 waits for what rank 1 answers only when another thread of rank 0 has sent."""
    peer, out = 1 - comm.rank, np.zeros(1, int)
    for _ in range(3):
        comm.sendrecv(np.zeros(1, int), peer, out, peer)  # from now on there are couriers
    if comm.rank:
        for _ in range(20):
            comm.recv(out, peer)
            comm.send(out + 1, peer)
        return None
    found = []
    for turn in range(20):
        later = threading.Timer(0.005, comm.send, [np.array([turn]), peer])
        later.start()
        comm.recv(out, peer)
        found.append(int(out[0]))
        later.join()
    return found


@on_ranks(gives=4.0, of=1)
def test_what_a_courier_cannot_deliver_is_an_error_of_that_receive(comm: Communicator) -> Any:
    peer, out = 1 - comm.rank, np.zeros(1)
    for _ in range(3):
        comm.sendrecv(np.ones(1), peer, out, peer)
    if comm.rank == 0:
        comm.send(np.zeros(3), peer)
        comm.send(np.zeros(2, np.float32), peer)
        comm.send(np.full(1, 4.0), peer)
        return None
    with pytest.raises(TruncationError, match=r"24 bytes from rank 0, tag 0, is longer .* 8 bytes"):
        comm.recv(out, peer)
    with pytest.raises(TruncationError, match="elements of 4 bytes, and the array that receives it of 8"):
        comm.recv(out, peer)
    comm.recv(out, peer)
    return float(out[0])


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head", [(envelopes.MESSAGE_BYTES_MAX + 1, 0, 1), (8, -1, 1), (8, 0, envelopes.ITEM_BYTES_MAX + 1)], ids=str
)
def test_an_envelope_that_no_rank_writes_is_refused(head: tuple[int, int, int]) -> None:
    assert envelopes.unpack(envelopes.pack(8, 5, 2, b"eight by"), 3) == (8, 5, 2, b"eight by")
    with pytest.raises(MismatchError, match=r"rank 3 sent a damaged envelope: a message of"):
        envelopes.unpack(envelopes.pack(*head, b""), 3)


@with_rows(
    (lambda comm, x: comm.send(x, 2), r"send: dest 2 is not one of the ranks 0\.\.1"),
    (lambda comm, x: comm.send(x, ANY), r"send: dest ANY is not one of the ranks"),
    (lambda comm, x: comm.send(x, 0, tag=-1), "send: a tag is a whole number from 0 to 2147483647, not -1"),
    (lambda comm, x: comm.send(x, 0, tag=1 << 31), "not 2147483648"),
    (lambda comm, x: comm.recv(x, 5), r"recv: source 5 is not one of the ranks 0\.\.1, ANY or PROC_NULL"),
    (lambda comm, x: comm.recv(x, 0, tag=-2), "or ANY, not -2"),
    (lambda comm, x: comm.isend(np.array([x, None], object), 0), "holds Python objects"),
    (lambda comm, x: comm.irecv(np.array([x, None], object), 0), "holds Python objects"),
    (lambda comm, x: comm.recv(np.broadcast_to(x, (2, 4)), 0), "read-only"),
    (lambda comm, x: comm.irecv([1, 2], 0), "array is a list"),
    (lambda comm, x: comm.recv(np.broadcast_to(x[:1], 1), 0), "read-only"),
)
@on_ranks()
def test_arguments_that_do_not_fit_are_refused(
    comm: Communicator, call: Callable[[Communicator, Any], Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        call(comm, np.zeros(4))
    comm.sendrecv(np.zeros(1), 1 - comm.rank, np.zeros(1))


@pytest.mark.parametrize("nbytes", [48, 500_000])
@on_ranks(gives=[0, 1], of=1)
def test_a_message_that_is_too_long_is_an_error_of_its_receiver_alone(comm: Communicator, nbytes: int) -> Any:
    if comm.rank == 0:
        comm.send(np.zeros(nbytes, np.uint8), 1, tag=3)
        comm.send(np.arange(2), 1)
        return None
    with pytest.raises(TruncationError, match=f"message of {nbytes} bytes from rank 0, tag 3, is longer .* 16 by"):
        comm.recv(np.zeros(2), 0)
    out = np.zeros(2, int)
    comm.recv(out, 0)
    return out.tolist()


@on_ranks(gives=[0.0, 1.0, 2.0, 3.0], of=1)
def test_elements_of_another_size_are_an_error_and_bytes_are_not(comm: Communicator) -> Any:
    if comm.rank == 0:
        for _ in range(2):
            comm.send(np.arange(4, dtype=np.float32), 1)
        comm.send(np.zeros(5, np.uint8), 1)
        return None
    with pytest.raises(TruncationError, match="elements of 4 bytes, and the array that receives it of 8"):
        comm.recv(np.zeros(4), 0)
    out = np.zeros(16, np.uint8)
    assert comm.recv(out, 0).nbytes == 16
    with pytest.raises(TruncationError, match="elements of 1 bytes, and the array that receives it of 4"):
        comm.recv(np.zeros(4, np.float32), 0)
    return out.view(np.float32).tolist()


@on_ranks()
def test_a_message_that_never_comes_ends_at_the_deadline_and_names_what_was_waited_for(comm: Communicator) -> Any:
    if comm.rank == 0:
        with pytest.raises(DeadlineError, match=r"rank 0 waited .* in \[recv from rank 1, tag 3, 8 B\] for rank 1 t"):
            comm.recv(np.zeros(1), 1, tag=3, timeout_s=0.2)
    else:
        with pytest.raises(DeadlineError) as raised:
            comm.recv(np.zeros(1), 0, timeout_s=PATIENT_S)
        assert raised.value.reported_by == 0
    with pytest.raises(RevokedError, match=r"this communicator was revoked: .*(waited|deadline)"):
        comm.send(np.zeros(1), 0)
    with pytest.raises(RevokedError):
        comm.barrier()
    return None


def test_two_large_blocking_sends_head_to_head_end_at_the_deadline() -> None:
    def program(comm: Communicator) -> None:
        comm.send(np.zeros(5_000_000), 1 - comm.rank, timeout_s=0.3)

    found = failures(program, program)
    assert all(isinstance(error, DeadlineError) for error in found.values())
    assert any("to make room" in str(error) for error in found.values())


def test_a_peer_that_left_is_named() -> None:
    found = failures(lambda comm: comm.recv(np.zeros(1), 1, tag=2), lambda comm: None)
    assert isinstance(found[0], PeerLostError) and found[0].ranks == (1,)
    assert "rank 1 left; rank 0 waits in [recv from rank 1, tag 2, 8 B] for rank 1 to send" in str(found[0])


def test_when_all_peers_left_nobody_can_send() -> None:
    found = failures(lambda comm: comm.recv(np.zeros(1)), lambda comm: None, lambda comm: None)
    assert isinstance(found[0], PeerLostError) and found[0].ranks == (1, 2)


@on_ranks(gives=199_999, of=0)
def test_a_message_of_a_rank_that_left_is_still_received(comm: Communicator) -> Any:
    if comm.rank:
        comm.isend(np.arange(200_000), 0)  # not waited for: it is over when the communicator is closed
        return None
    out = np.zeros(200_000, int)
    comm.recv(out, 1)
    return int(out[-1])


@on_ranks(gives=[5.0, 5.0])
def test_a_revoked_communicator_ends_what_is_pending_and_the_survivors_go_on(comm: Communicator) -> Any:
    coming = comm.irecv(np.zeros(1), 1 - comm.rank)
    comm.barrier()
    if comm.rank == 0:
        comm.revoke()
    with pytest.raises(RevokedError):
        coming.wait()
    assert coming.done and isinstance(coming.error, RevokedError)
    again = comm.shrink()
    out = np.zeros(1)
    again.sendrecv(np.full(1, 5.0), 1 - again.rank, out)
    return float(out[0])


# --- mailboxes ------------------------------------------------------------------------------------------------------


@given(st.integers(1, 12), st.integers(1, 9), st.sampled_from([64, 256, 4096, 65536]), st.integers(0, 1 << 24))
def test_mailboxes_lie_apart_in_their_share_of_the_room(ranks: int, cards: int, interleave: int, left: int) -> None:
    found = mailboxes_in(left, ranks, cards, interleave)
    if found is None:
        assert left < 4 * max(ranks * (ranks - 1), 1) * 8192  # a page of doorbells and one of data
        return
    assert found.nbytes * 4 <= left and found.layout.slots >= SLOTS_MIN
    pairs = [(source, dest) for source in range(ranks) for dest in range(ranks) if source != dest]
    begins = sorted(found.at(*pair) for pair in pairs)
    assert begins == list(range(0, found.nbytes, found.layout.extent_bytes))
    rung: dict[tuple[int, int], int] = {}
    for rank in range(ranks):
        for card, offset, nbytes in found.doorbells_of(rank):
            for line in range(offset, offset + nbytes, 64):
                assert rung.setdefault((card, line), rank) == rank  # one writer
    assert len(rung) == len(pairs) * 2 * (1 + found.layout.slots)


def test_without_room_for_mailboxes_messages_are_refused_and_collectives_go_on() -> None:
    small = SIX_CARDS.model_copy(update={"emulation": SIX_CARDS.emulation.model_copy(update={"card_bytes": 512 << 10})})

    def main(context: RankContext) -> Any:
        with Communicator.world(context, region_bytes=64 << 10) as comm:
            with pytest.raises(ArgumentError, match="no room for mailboxes of 6 ranks: give it larger cards"):
                comm.send(np.zeros(1), (comm.rank + 1) % comm.size)
            return float(comm.all_reduce(np.ones(1))[0])

    assert launch(main, ranks=6, topology=small, memory=MemorySpec("shm")) == [6.0] * 6


def test_a_small_message_takes_one_line() -> None:
    assert INLINE_BYTES == 40


def test_a_large_message_that_moves_is_not_given_up_although_its_call_has_not_ended() -> None:
    turn = threading.Barrier(2)  # not of the communicator, whose waits would move messages

    def main(comm: Communicator) -> bool:
        x = np.zeros(4 << 20, np.uint8)
        request = comm.isend(x, 1) if comm.rank == 0 else comm.irecv(x, 0)
        moved = []
        for _ in range(3):  # what fits in the mailbox leaves, then comes, then more leaves
            if comm.rank == 0:
                assert not request.test()
                moved.append(request.moved_at)
            turn.wait(PATIENT_S)
            if comm.rank == 1:
                assert not request.test()
            turn.wait(PATIENT_S)
        request.wait()
        return sorted(set(moved)) == moved

    assert together(main) == [True, True]


def test_a_send_that_does_not_wait_looks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It polls no mailbox that is full."""
    asked = set[tuple[bool, bool]]()
    advance_any = transfers._native.advance_any

    def advanced(programs: Any, idle_ns: int, spins: int, wake: Any) -> Any:
        asked.add((idle_ns > 0, spins > 0))
        return advance_any(programs, idle_ns, spins, wake)

    monkeypatch.setattr(transfers._native, "advance_any", advanced)

    def program(comm: Communicator) -> None:
        comm._lane.poll_often(9)  # as where every rank has a core
        requests = [comm.isend(np.ones(1), 1 - comm.rank) for _ in range(20)]
        for _ in requests:
            comm.recv(np.zeros(1), 1 - comm.rank)
        comm.waitall(requests)

    together(program, memory="emulated")
    assert asked == {(False, False), (True, True)}
