"""Every collective, dtype, operator and layout, on cxl and on Gloo: what each rank gets, or that it is refused."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

DTYPES = [
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32, torch.uint64),
]
FEW = [torch.bool, torch.int16, torch.float32, torch.bfloat16]
OPS = ["SUM", "PRODUCT", "MIN", "MAX", "AVG", "BAND", "BOR", "BXOR"]
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dense": lambda t: t,
    "transposed": lambda t: t.t(),
    "every other": lambda t: t[:, ::2],
    "scalar": lambda t: t[0, 0].clone(),
    "empty": lambda t: t[:0],
    "offset": lambda t: t.reshape(-1)[3:11],
}
REDUCING = ["all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor", "all_reduce_coalesced"]
MOVING = ["broadcast", "all_gather", "all_gather_into_tensor", "gather", "scatter", "all_to_all", "all_to_all_single"]


def tensor_of(dtype: torch.dtype, rank: int, layout: str) -> torch.Tensor:
    numbers = torch.randint(1, 8, (4, 6), generator=torch.Generator().manual_seed(rank))
    return LAYOUTS[layout](numbers.to(torch.float32).to(dtype) if dtype != torch.bool else numbers % 2 == 0)


def call(group: Any, collective: str, x: torch.Tensor, op: Any) -> list[torch.Tensor]:
    n = dist.get_world_size(group)
    if collective == "all_reduce":
        dist.all_reduce(x, op, group=group)
        return [x]
    if collective == "all_reduce_coalesced":
        many = [x, x.clone()]
        dist.all_reduce_coalesced(many, op, group=group)
        return many
    if collective == "reduce":
        dist.reduce(x, 1, op, group=group)
        return [x] if dist.get_rank(group) == 1 else []
    if collective == "reduce_scatter":
        out = torch.empty_like(x.contiguous())
        dist.reduce_scatter(out, [x, x.clone()], op, group=group)
        return [out]
    if collective == "reduce_scatter_tensor":
        whole = torch.cat([x.reshape(-1), x.reshape(-1)])
        out = torch.empty_like(x.reshape(-1))
        dist.reduce_scatter_tensor(out, whole, op, group=group)
        return [out]
    if collective == "broadcast":
        dist.broadcast(x, 1, group=group)
        return [x]
    if collective == "all_gather":
        outs = [torch.empty_like(x.contiguous()) for _ in range(n)]
        dist.all_gather(outs, x, group=group)
        return outs
    if collective == "all_gather_into_tensor":
        out = x.new_empty(n * x.numel())
        dist.all_gather_into_tensor(out, x.reshape(-1), group=group)
        return [out]
    if collective == "gather":
        outs = [torch.empty_like(x.contiguous()) for _ in range(n)] if dist.get_rank(group) == 0 else None
        dist.gather(x, outs, 0, group=group)
        return outs or []
    if collective == "scatter":
        out = torch.empty_like(x.contiguous())
        dist.scatter(out, [x, x.clone()] if dist.get_rank(group) == 1 else None, 1, group=group)
        return [out]
    if collective == "all_to_all":
        outs = [torch.empty_like(x.contiguous()) for _ in range(n)]
        dist.all_to_all(outs, [x.clone(), x.clone()], group=group)
        return outs
    assert collective == "all_to_all_single"
    flat = torch.cat([x.reshape(-1), x.reshape(-1)])
    out = torch.empty_like(flat)
    dist.all_to_all_single(out, flat, group=group)
    return [out]


def rows(dtypes: list[torch.dtype], ops: list[str]) -> Iterator[tuple[str, torch.dtype, str, str]]:
    for layout in LAYOUTS:
        for dtype in dtypes:
            for collective in REDUCING:
                yield from ((collective, dtype, op, layout) for op in ops)
            yield from ((collective, dtype, "", layout) for collective in MOVING)


def outcome(group: Any, collective: str, dtype: torch.dtype, op: str, layout: str, *, copied: bool) -> Any:
    """Bits of the results, or that the call is refused. ``copied``: Gloo reads over what is not dense."""
    x = tensor_of(dtype, dist.get_rank(), layout).clone(memory_format=torch.preserve_format)
    if layout in ("transposed", "every other") and not copied:
        x = LAYOUTS[layout](tensor_of(dtype, dist.get_rank(), "dense").clone())
    if copied:
        x = x.contiguous()
    try:
        results = call(group, collective, x, getattr(dist.ReduceOp, op or "SUM"))
    except (RuntimeError, ValueError, TypeError, NotImplementedError):
        return "refused"
    return [result.contiguous().reshape(-1).view(torch.uint8).tolist() for result in results]


def beside_gloo(rank: int, ranks: int, store: Any, which: str = "few") -> dict[str, Any]:
    """Count the rows on which cxl and Gloo agree, and list those on which they do not."""
    warnings.simplefilter("ignore")  # torch deprecates all_reduce_coalesced
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    cxl = dist.new_group(backend="cxl")
    found: dict[str, Any] = {"same": 0, "only cxl": 0, "both refuse": 0, "differ": [], "only gloo": []}
    every = which == "all"
    for row in rows(DTYPES if every else FEW, OPS if every else ["SUM", "MAX", "BOR"]):
        theirs, ours = outcome(None, *row, copied=True), outcome(cxl, *row, copied=False)
        name = " ".join(map(str, row))
        if theirs == ours:
            found["both refuse" if ours == "refused" else "same"] += 1
        elif theirs == "refused":
            found["only cxl"] += 1
        else:
            found["only gloo" if ours == "refused" else "differ"].append(name)
    dist.destroy_process_group()
    return found
