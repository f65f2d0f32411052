"""What ranks do in test_messages.py; a module of its own, because spawned ranks import it."""

import random
import threading
from typing import Any, NamedTuple

import numpy as np

from collectives import ANY, Communicator, Request, Status
from cxlemu import RankContext

SIZES = (
    0,
    1,
    40,
    41,
    63,
    64,
    1000,
    49_152,
    65_536,
    400_000,
    1_000_003,
)  # none, in the line, in slots, many times round


def content(source: int, number: int, nbytes: int) -> np.ndarray:
    return np.random.default_rng((source, number)).integers(0, 256, nbytes, np.uint8)


def every_size(context: RankContext, sizes: tuple[int, ...] = SIZES, **how: Any) -> bool:
    """Round the ring of ranks, blocking; then all at once, received in another order than they were sent."""
    with Communicator.world(context, **how) as comm:
        after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        right = True
        for number, nbytes in enumerate(sizes):
            out = np.zeros(nbytes, np.uint8)
            x = content(comm.rank, number, nbytes)
            status = comm.sendrecv(x, after, out, before, sendtag=number, recvtag=number)
            right &= status == Status(before, number, nbytes) and np.array_equal(out, content(before, number, nbytes))
        outs = {number: np.zeros(nbytes, np.uint8) for number, nbytes in enumerate(sizes)}
        requests = [comm.irecv(outs[number], before, number) for number in reversed(outs)]
        sources = [content(comm.rank, number, nbytes) for number, nbytes in enumerate(sizes)]
        requests += [comm.isend(x, after, number) for number, x in enumerate(sources)]
        comm.waitall(requests)
        right &= all(np.array_equal(out, content(before, number, out.size)) for number, out in outs.items())
        return right


class Plan(NamedTuple):
    """What one rank posts, in order: ("send", peer, tag, number, nbytes) or ("recv", peer, tag asked for, ...)."""

    posts: tuple[tuple[str, int, int, int, int], ...]


def planned(seed: int, ranks: int, messages: int, any_source: bool) -> list[Plan]:
    """Random messages, receives that all of them satisfy, and the order in which each rank posts its own.

    A receive of one source takes the first message of it that fits, of those that no earlier receive took: what each
    takes is therefore known. With ``any_source`` every receive takes anything.
    """
    chance = random.Random(seed)
    sent: list[tuple[int, int, int, int, int]] = []
    for number in range(messages):
        source, dest, tag = chance.randrange(ranks), chance.randrange(ranks), chance.randrange(3)
        sent.append((source, dest, tag, number, chance.choice([0, 1, 40, 41, 200, 5000, 70_000, 200_000])))
    found = []
    for rank in range(ranks):
        mine = [("send", dest, tag, number, nbytes) for source, dest, tag, number, nbytes in sent if source == rank]
        waiting = [each for each in sent if each[1] == rank]
        receives = []
        while waiting:
            source, _, tag, _, _ = chance.choice(waiting)
            asked = chance.choice([tag, ANY])
            taken = next(each for each in waiting if each[0] == source and asked in (ANY, each[2]))
            waiting.remove(taken)
            receives.append(("recv", source, asked, taken[3], taken[4]))
        if any_source:
            receives = [("recv", ANY, ANY, -1, 200_000) for _ in receives]
        posts = []
        while mine or receives:  # each in its order, among the others at random
            posts.append((mine if not receives or (mine and chance.random() < 0.5) else receives).pop(0))
        found.append(Plan(tuple(posts)))
    return found


def carry_out(comm: Communicator, plan: Plan, seed: int) -> list[str]:
    """Post everything, then wait in some order; what is wrong, in words."""
    chance = random.Random(f"{seed} {comm.rank}")
    outs: list[tuple[Request, np.ndarray, tuple[str, int, int, int, int]]] = []
    kept = []
    for post in plan.posts:
        what, peer, tag, number, nbytes = post
        if what == "send":
            kept.append(content(comm.rank, number, nbytes))
            outs.append((comm.isend(kept[-1], peer, tag), kept[-1], post))
        else:
            out = np.zeros(nbytes, np.uint8)
            outs.append((comm.irecv(out, peer, tag), out, post))
        if chance.random() < 0.2:
            outs[chance.randrange(len(outs))][0].test()
    order = list(range(len(outs)))
    chance.shuffle(order)
    for at in order:
        outs[at][0].wait()
    wrong = []
    for request, out, (what, peer, _, number, nbytes) in outs:
        if what == "recv" and peer != ANY:
            right = request.status == (peer, request.status.tag if request.status else -1, nbytes)
            if not right or not np.array_equal(out, content(peer, number, nbytes)):
                wrong.append(f"rank {comm.rank}: message {number} from {peer} came as {request.status}")
    return wrong + _in_order(comm, [(r, out) for r, out, post in outs if post[:2] == ("recv", ANY)])


def _in_order(comm: Communicator, received: list[tuple[Request, np.ndarray]]) -> list[str]:
    """Of receives that took anything: those of one source and tag took its messages in the order it sent them."""
    by_source: dict[tuple[int, int], list[bytes]] = {}
    for request, out in received:
        assert request.status is not None
        source, tag, nbytes = request.status
        by_source.setdefault((source, tag), []).append(out[:nbytes].tobytes())
    _SEEN[comm.rank] = by_source
    return []


_SEEN: dict[int, dict[tuple[int, int], list[bytes]]] = {}


def random_posts(
    context: RankContext, seeds: tuple[int, ...], messages: int, any_source: bool, **how: Any
) -> list[str]:
    wrong = []
    with Communicator.world(context, **how) as comm:
        for seed in seeds:
            plans = planned(seed, comm.size, messages, any_source)
            wrong += carry_out(comm, plans[comm.rank], seed)
            if any_source:
                wrong += _against_queue(comm, plans, _SEEN[comm.rank])
            comm.barrier()
    return wrong


def _against_queue(comm: Communicator, plans: list[Plan], seen: dict[tuple[int, int], list[bytes]]) -> list[str]:
    right: dict[tuple[int, int], list[bytes]] = {}
    for source, plan in enumerate(plans):
        for what, dest, tag, number, nbytes in plan.posts:
            if what == "send" and dest == comm.rank:
                right.setdefault((source, tag), []).append(content(source, number, nbytes).tobytes())
    return [] if seen == right else [f"rank {comm.rank}: messages of any source came otherwise than they were sent"]


def every_way(context: RankContext, threads: int = 3, turns: int = 400) -> list[tuple[int, int]]:
    """Threads that exchange messages round the ring, each with its tag: blocking, at once, begun; among collectives."""
    with Communicator.world(context) as comm:
        wrong: list[tuple[int, int]] = []
        after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size

        def talk(tag: int) -> None:
            chance = random.Random(tag)  # the same on every rank
            for turn in range(turns):
                nbytes, how = chance.choice([0, 3, 40, 41, 1000, 9000, 70_000, 300_000, 500_000]), chance.random()
                x, right = (
                    np.full(nbytes, (turn * 7 + tag * 13 + rank) % 256, np.uint8) for rank in (comm.rank, before)
                )
                out = np.zeros(nbytes, np.uint8)
                if comm.size == 2 and how < 0.5:
                    if (comm.rank == 0) == (chance.random() < 0.5):
                        comm.send(x, after, tag)
                        continue
                    status = comm.recv(out, before, tag)
                elif how < 0.8:
                    status = comm.sendrecv(x, after, out, before, tag, tag)
                else:
                    requests = [comm.irecv(out, before, tag), comm.isend(x, after, tag)]
                    status = comm.waitall(requests)[0]
                if status != (before, tag, nbytes) or not np.array_equal(out, right):
                    wrong.append((tag, turn))

        others = [threading.Thread(target=talk, args=[tag]) for tag in range(threads)]
        for thread in others:
            thread.start()
        total = np.zeros(1)
        for _ in range(50):
            total[:] = 1
            comm.all_reduce(total)
        for thread in others:
            thread.join()
        talk(threads)  # alone
        return wrong + [(-1, 0)] * int(total[0] != comm.size)
