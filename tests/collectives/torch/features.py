"""What scripts use beside collectives: ways to begin, checkpoints, hooks in C++, sparse gradients, meshes."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from collectives.torch.process_group import group_is_behind
from cxlemu.chakra import kineto


def features(rank: int, ranks: int, store: Any, folder: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    dist.init_process_group("cxl", store=store, rank=rank, world_size=ranks)
    gloo = dist.new_group(backend="gloo")
    found = {
        "async save": async_save(folder),
        "hooks": [in_cpp(kind, gloo) for kind in dist.BuiltinCommHookType.__members__.values()],
        "embedding": embedding(rank, gloo),
        "sparse": [sparse(rank, gloo, values, empty) for values in ((), (3,)) for empty in (False, True)],
        "refused": refused(),
        "monitored": said(dist.monitored_barrier),
        "profiled": profiled(rank, folder),
        "recorded": recorded(),
        "mesh": mesh(rank, ranks),
        "split": said(lambda: dist.split_group(None, [[0], [1]])),
    }
    dist.destroy_process_group()
    return found


def profiled(rank: int, folder: str) -> list[Any]:
    """What a trace of the profiler has, as nodes of Chakra; and one call's metadata."""
    x = torch.ones(64, 64)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as seen:
        work = dist.all_reduce(torch.ones(4), async_op=True)
        x = x @ x
        work.wait()
        dist.all_gather([torch.ones(3) for _ in range(2)], torch.ones(3))
        dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
        dist.broadcast(torch.ones(4), 0)
    path = Path(folder, f"profile-{rank}.json")
    seen.export_chrome_trace(str(path))
    (about,) = (e["args"] for e in json.loads(path.read_text())["traceEvents"] if e.get("name") == "cxl:all_gather")
    its = [node.name for node in kineto.read(path, rank).nodes if node.name != "computing"]
    names = ("Collective name", "dtype", "In msg nelems", "Out msg nelems", "Group size", "Process Group Ranks")
    return [its, [about[name] for name in names]]


def recorded() -> bool:
    """Whether torch's flight recorder has a call of the group's just where it can be attached to a group."""
    c10d: Any = torch._C._distributed_c10d
    hook = c10d.FlightRecorderHook.attach(dist.group.WORLD) if hasattr(c10d, "FlightRecorderHook") else None
    dist.barrier()
    entries = json.loads(c10d._dump_fr_trace_json()).get("entries", ())
    return any(entry["profiling_name"] == "c10d:barrier" for entry in entries) is (hook is not None)


def said(call: Callable[[], Any]) -> str:
    """What a call raises, in words."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def async_save(folder: str) -> bool:
    saved = {"a": torch.arange(4.0)}
    dcp.async_save(saved, checkpoint_id=folder).result()
    read = {"a": torch.zeros(4)}
    dcp.load(read, checkpoint_id=folder)
    return torch.equal(read["a"], saved["a"])


def in_cpp(kind: Any, gloo: Any) -> bool:
    """Whether gradients that one of DDP's hooks in C++ sends have Gloo's bits."""
    found = []
    for group in (None, gloo):
        torch.manual_seed(2)
        trained = DistributedDataParallel(nn.Linear(8, 8), process_group=group)
        trained._register_builtin_comm_hook(kind)
        trained(torch.full((1, 8), dist.get_rank() / 3)).sum().backward()
        found.append([p.grad for p in trained.parameters()])
    return all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def embedding(rank: int, gloo: Any) -> bool:
    """Whether the sparse gradients of an embedding are Gloo's."""
    found = []
    for group in (None, gloo):
        torch.manual_seed(3)
        trained = DistributedDataParallel(nn.Embedding(20, 4, sparse=True), process_group=group)
        trained(torch.tensor([rank, 7, rank])).sum().backward()
        found.append(trained.module.weight.grad.coalesce())
    return torch.equal(found[0].indices(), found[1].indices()) and torch.equal(found[0].values(), found[1].values())


def sparse(rank: int, gloo: Any, values: tuple[int, ...], empty: bool) -> bool:
    """Whether all_reduce of a sparse tensor, synchronous and not, gives what it gives of the dense one."""
    count = 0 if empty else rank + 1
    at = torch.arange(2 * count).reshape(2, count) % 3
    x = torch.sparse_coo_tensor(
        at, torch.arange(count * (3 if values else 1)).reshape(count, *values) + 1.0, (4, 5, *values)
    )
    right = x.to_dense()
    dist.all_reduce(right, group=gloo)
    y = x.clone()
    dist.all_reduce(x)
    dist.all_reduce(y, async_op=True).wait()
    return torch.equal(x.to_dense(), right) and torch.equal(y.to_dense(), right)


def refused() -> dict[str, str]:
    """What each verb says of tensors that it does not take."""
    kinds = {
        "sparse": torch.ones(2, 2).to_sparse(),
        "csr": torch.ones(2, 2).to_sparse_csr(),
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "jagged": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        "quantized": torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8),
    }
    if not group_is_behind():  # else torch hands tensors of meta to no backend
        kinds["meta"] = torch.ones(2, device="meta")
    ranks, peer = dist.get_world_size(), 1 - dist.get_rank()
    verbs: dict[str, Callable[[Any], Any]] = {
        "all_reduce": dist.all_reduce,
        "broadcast": lambda x: dist.broadcast(x, 0),
        "reduce": lambda x: dist.reduce(x, 0),
        "all_gather": lambda x: dist.all_gather([x] * ranks, x),
        "all_gather_into_tensor": lambda x: dist.all_gather_into_tensor(x, x),
        "gather": lambda x: dist.gather(x, [x] * ranks if not dist.get_rank() else None, 0),
        "scatter": lambda x: dist.scatter(x, [x] * ranks if not dist.get_rank() else None, 0),
        "reduce_scatter": lambda x: dist.reduce_scatter(x, [x] * ranks),
        "reduce_scatter_tensor": lambda x: dist.reduce_scatter_tensor(x, x),
        "all_to_all": lambda x: dist.all_to_all([x] * ranks, [x] * ranks),
        "all_to_all_single": lambda x: dist.all_to_all_single(x, x),
        "send": lambda x: dist.send(x, peer),
        "recv": lambda x: dist.recv(x, peer),
        "isend": lambda x: dist.isend(x, peer),
    }
    return {
        f"{verb} {kind}": said(lambda verb=verb, x=x: verbs[verb](x))
        for verb in verbs
        for kind, x in kinds.items()
        if (verb, kind) != ("all_reduce", "sparse")
    }


def mesh(rank: int, ranks: int) -> list[float]:
    """Sums over each dimension of a mesh of three."""
    from torch.distributed.device_mesh import init_device_mesh

    of_three = init_device_mesh("cpu", (1, ranks, 1), mesh_dim_names=("pp", "dp", "tp"))
    found = []
    for name in ("pp", "dp", "tp"):
        x = torch.full((2,), rank + 1.0)
        dist.all_reduce(x, group=of_three[name].get_group())
        found.append(float(x[0]))
    return found


def begun(rank: int, ranks: int, method: str, backend: str = "cxl") -> None:
    """Begin a process group by a URL, and sum; for mp.spawn."""
    dist.init_process_group(backend, init_method=method, rank=rank, world_size=ranks)
    x = torch.full((3,), rank + 1.0)
    dist.all_reduce(x)
    print(f"rank {rank}: {x[0]:g}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    from torch.multiprocessing.spawn import spawn

    os.environ["OMP_NUM_THREADS"] = "1"
    method, backend = sys.argv[1:]
    if method.startswith("file://"):
        Path(method.removeprefix("file://")).parent.mkdir(exist_ok=True)
    spawn(begun, (2, method, backend), nprocs=2)
