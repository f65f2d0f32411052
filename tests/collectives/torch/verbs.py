"""The calls of torch.distributed that the matrix does not have: uneven, coalesced, of objects, point to point."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

Group = Any
CALLS: dict[str, Callable[[Group, int, int], Any]] = {}


def of(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(rank)).to(dtype)


def call(function: Callable[[Group, int, int], Any]) -> Callable[[Group, int, int], Any]:
    CALLS[function.__name__] = function
    return function


# --- uneven -----------------------------------------------------------------------------------------------------


@call
def all_to_all_single_uneven(group: Group, rank: int, n: int) -> Any:
    sent = [(rank + 2 * to) % 4 for to in range(n)]
    received = [(source + 2 * rank) % 4 for source in range(n)]
    out = torch.zeros(sum(received), 3)
    dist.all_to_all_single(out, of(rank, sum(sent), 3), received, sent, group=group)
    return out


@call
def all_to_all_single_nothing_to_some(group: Group, rank: int, n: int) -> Any:
    sent, received = ([0] * n, [0] * n)
    sent[n - 1] = 5
    if rank == n - 1:
        received = [5] * n
    out = torch.zeros(sum(received))
    dist.all_to_all_single(out, of(rank, 5), received, sent, group=group)
    return out


@call
def all_to_all_uneven(group: Group, rank: int, n: int) -> Any:
    outs = [torch.zeros(source + rank, 2) for source in range(n)]
    dist.all_to_all(outs, [of(rank, to + rank, 2) for to in range(n)], group=group)
    return outs


@call
def all_gather_uneven(group: Group, rank: int, n: int) -> Any:
    outs = [torch.zeros(source + 1, 2) for source in range(n)]
    dist.all_gather(outs, of(rank, rank + 1, 2), group=group)
    return outs


@call
def reduce_scatter_uneven(group: Group, rank: int, n: int) -> Any:
    out = torch.zeros(rank + 1, 2)
    dist.reduce_scatter(out, [of(rank, to + 1, 2) for to in range(n)], group=group)
    return out


# --- lists ------------------------------------------------------------------------------------------------------


@call
def all_gather_coalesced(group: Group, rank: int, n: int) -> Any:
    outs = [[torch.zeros(3), torch.zeros(2, 2)] for _ in range(n)]
    dist.all_gather_coalesced(outs, [of(rank, 3), of(rank, 2, 2)], group=group)
    return [tensor for of_rank in outs for tensor in of_rank]


@call
def all_reduce_coalesced(group: Group, rank: int, n: int) -> Any:
    many = [of(rank, 3), of(rank, 2, 2)]
    dist.all_reduce_coalesced(many, group=group)
    return many


@call
def reduce_scatter_list(group: Group, rank: int, n: int) -> Any:
    out = torch.zeros(2, 3)
    dist.reduce_scatter(out, [of(rank + to, 2, 3) for to in range(n)], group=group)
    return out


@call
def gather_into_views(group: Group, rank: int, n: int) -> Any:
    whole = torch.zeros(n, 4)
    dist.gather(of(rank, 4), list(whole.unbind()) if rank == 0 else None, 0, group=group)
    return whole


@call
def all_gather_into_stacked(group: Group, rank: int, n: int) -> Any:
    out = torch.zeros(n, 2, 3)
    dist.all_gather_into_tensor(out, of(rank, 2, 3), group=group)
    return out


@call
def coalescing_manager(group: Group, rank: int, n: int) -> Any:
    many = [of(rank, 3), of(rank, 5)]
    with _coalescing_manager(group=group):
        for tensor in many:
            dist.all_reduce(tensor, group=group)
    return many


@call
def coalescing_manager_async(group: Group, rank: int, n: int) -> Any:
    many = [of(rank, 3), of(rank, 5)]
    with _coalescing_manager(group=group, async_ops=True) as manager:
        for tensor in many:
            dist.all_reduce(tensor, group=group)
    manager.wait()
    return many


@call
def sparse_all_reduce(group: Group, rank: int, n: int) -> Any:
    tensor = torch.sparse_coo_tensor([[rank, 3]], [1.5, 2.0 + rank], (5,))
    dist.all_reduce(tensor, group=group)
    return tensor.to_dense()


@call
def later(group: Group, rank: int, n: int) -> Any:
    many = [of(rank, 40), of(rank, 7)]
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in many]
    future = works[1].get_future()
    works[0].wait()
    return [many[0], *future.wait()]


# --- objects ----------------------------------------------------------------------------------------------------


@call
def gather_object(group: Group, rank: int, n: int) -> Any:
    found = [None] * n if rank == 0 else None
    dist.gather_object({"rank": rank, "long": "x" * 300 * rank}, found, 0, group=group)
    return found


@call
def all_gather_object(group: Group, rank: int, n: int) -> Any:
    found: list[Any] = [None] * n
    dist.all_gather_object(found, ("rank", rank), group=group)
    return [list(each) for each in found]


@call
def broadcast_object_list(group: Group, rank: int, n: int) -> Any:
    found = [{"a": 1}, "b"] if rank == 1 else [None, None]
    dist.broadcast_object_list(found, 1, group=group)
    return found


@call
def scatter_object_list(group: Group, rank: int, n: int) -> Any:
    found: list[Any] = [None]
    dist.scatter_object_list(found, [f"for {k}" for k in range(n)] if rank == 0 else None, 0, group=group)
    return found


@call
def send_object_list(group: Group, rank: int, n: int) -> Any:
    found = [f"from {rank}", rank]
    if rank == 0:
        dist.send_object_list(found, 1, group=group)
    elif rank == 1:
        dist.recv_object_list(found, 0, group=group)
    return found


# --- point to point ---------------------------------------------------------------------------------------------


@call
def batch_isend_irecv(group: Group, rank: int, n: int) -> Any:
    out = torch.zeros(9, dtype=torch.float64)
    posted = [
        dist.P2POp(dist.isend, of(rank, 9, dtype=torch.float64), (rank + 1) % n, group),
        dist.P2POp(dist.irecv, out, (rank - 1) % n, group),
    ]
    for work in dist.batch_isend_irecv(posted):
        work.wait()
    return out


@call
def batch_with_tags(group: Group, rank: int, n: int) -> Any:
    if rank > 1:
        return []
    mine, theirs = [of(rank, 4), of(rank, 70_000)], [torch.zeros(70_000), torch.zeros(4)]
    posted = [dist.P2POp(dist.isend, x, 1 - rank, group, tag) for tag, x in enumerate(mine)]
    posted += [dist.P2POp(dist.irecv, x, 1 - rank, group, 1 - tag) for tag, x in enumerate(theirs)]
    for work in dist.batch_isend_irecv(posted):
        work.wait()
    return theirs


@call
def any_source(group: Group, rank: int, n: int) -> Any:
    if rank:
        dist.send(of(rank, 3), 0, group=group)
        return []
    found = [torch.zeros(3) for _ in range(n - 1)]
    sources = [dist.recv(tensor, group=group) for tensor in found]
    return [sorted(sources), *(tensor for _, tensor in sorted(zip(sources, found, strict=True), key=lambda f: f[0]))]


@call
def into_a_view(group: Group, rank: int, n: int) -> Any:
    whole = torch.zeros(4, 6)
    if rank == 0:
        dist.send(of(0, 4, 3), 1, group=group)
    elif rank == 1:
        place = torch.zeros(4, 3)
        dist.recv(place, 0, group=group)
        whole[:, ::2] = place
    return whole


# --- both -------------------------------------------------------------------------------------------------------


def plain(found: Any) -> Any:
    """Make bits of tensors, which JSON and == take."""
    if isinstance(found, torch.Tensor):
        return [str(found.dtype), list(found.shape), found.contiguous().reshape(-1).view(torch.uint8).tolist()]
    if isinstance(found, list | tuple):
        return [plain(each) for each in found]
    return found


def outcome(group: Group, name: str, rank: int, ranks: int) -> Any:
    try:
        return plain(CALLS[name](group, rank, ranks))
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        return f"refused: {error}"


def verbs_beside_gloo(rank: int, ranks: int, store: Any) -> dict[str, Any]:
    """For each call what became of it: "same", "differs", "only cxl", "only gloo" or "both refuse"."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    gloo, cxl = dist.new_group(backend="gloo"), dist.new_group(backend="cxl")
    found = {}
    for name in CALLS:
        # A call that Gloo refuses on some ranks alone leaves its others waiting: ask for it without the two.
        theirs = outcome(gloo, name, rank, ranks)
        ours = outcome(cxl, name, rank, ranks)
        refused = [str(each).startswith("refused: ") for each in (theirs, ours)]
        found[name] = {
            (True, True): "both refuse",
            (True, False): f"only cxl, gloo {theirs}",
            (False, True): f"only gloo, cxl {ours}",
            (False, False): "same" if theirs == ours else f"differs: {theirs} {ours}",
        }[refused[0], refused[1]]
    dist.destroy_process_group()
    return found
