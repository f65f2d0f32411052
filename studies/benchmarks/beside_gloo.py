"""PyTorch on the pool beside Gloo, in one run and alternating: steps of training, calls and messages.

    python -m studies.benchmarks.beside_gloo --ranks 2 --memory shm
    python -m studies.benchmarks.beside_gloo ddp pp --ranks 4 --memory emulated --pairs 3

Every pair makes a world of Gloo and one of cxl, and trains the same steps in both. Printed are medians over the pairs
of rank 0's time of a step, by the clock and on the processor, and cxl's divided by Gloo's.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

Step = Callable[[], None]
WIDTH, STEPS, CALLS, TIMEOUT = 512, 5, 300, timedelta(seconds=120)


class Took(NamedTuple):
    """How long a step or call took rank 0, in seconds."""

    clock: float  # wall-clock time
    processor: float  # CPU time of all threads of the rank


def layers(count: int) -> nn.Sequential:
    """Make this many layers of a quarter of a million parameters each; the same on all ranks."""
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(count)))


def training(model: nn.Module) -> Step:
    """Return a function that takes one step of AdamW on 64 rows."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = torch.randn(64, WIDTH), torch.randn(64, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()

    return step


def ddp() -> Step:
    return training(nn.parallel.DistributedDataParallel(layers(8)))


def fsdp(dtype: torch.dtype = torch.float32) -> Step:
    """FSDP2: parameters are gathered, gradients scattered."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model, mesh = layers(8), DeviceMesh("cpu", list(range(dist.get_world_size())))
    for part in (*model, model):
        fully_shard(part, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=dtype, output_dtype=torch.float32))
    return training(model)


def fsdp_bf16() -> Step:
    return fsdp(torch.bfloat16)


def tp() -> Step:
    """Tensor parallel: columns of one layer, rows of the next."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = DeviceMesh("cpu", list(range(dist.get_world_size())))
    plan = {f"{k}.0": RowwiseParallel() if k % 2 else ColwiseParallel() for k in range(8)}
    return training(parallelize_module(layers(8), mesh, plan))


def pp() -> Step:
    """Pipeline parallel: two layers on each rank, four parts of a batch."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, ranks, mine = dist.get_rank(), dist.get_world_size(), layers(2)
    stage = PipelineStage(mine, rank, ranks, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.AdamW(mine.parameters(), lr=1e-3)
    x, y = torch.randn(64, WIDTH), torch.randn(64, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        schedule.step(*(x,) * (rank == 0), **({"target": y} if rank == ranks - 1 else {}))
        optimizer.step()

    return step


def gpt_1m(width: int = 128, count: int = 4) -> Step:
    """Train nanoGPT's smallest model, which it suggests for CPUs, data parallel: 12 pieces of 64 letters a rank."""
    from examples.small_gpt import GPT, loss_of

    torch.manual_seed(1)
    model = nn.parallel.DistributedDataParallel(GPT(width, count, heads=width // 32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    numbers = torch.Generator().manual_seed(dist.get_rank())

    def step() -> None:
        optimizer.zero_grad()
        loss_of(model, numbers, 12).backward()
        optimizer.step()

    return step


def gpt_10m() -> Step:
    return gpt_1m(384, 6)


def call() -> Step:
    x = torch.zeros(1)

    def step() -> None:
        for _ in range(CALLS):
            dist.all_reduce(x)

    return step


def bare() -> Step:
    """Make the same calls of the communicator, without torch; with Gloo as `call`."""
    if dist.get_backend() == "gloo":
        return call()
    from collectives.torch import communicator_of

    comm, x = communicator_of(), torch.zeros(1).numpy()

    def step() -> None:
        for _ in range(CALLS):
            comm.all_reduce(x)

    return step


def ping_pong() -> Step:
    """Send one number to and fro between ranks 0 and 1."""
    x, rank = torch.zeros(1), dist.get_rank()

    def step() -> None:
        for turn in range(2 * CALLS):
            if rank > 1:
                return
            dist.send(x, 1 - rank) if turn % 2 == rank else dist.recv(x, 1 - rank)

    return step


WAYS: dict[str, Callable[[], Step]] = {
    f.__name__: f for f in (ddp, fsdp, fsdp_bf16, tp, pp, gpt_1m, gpt_10m, call, bare, ping_pong)
}


def measured(way: str, backend: str, store: Any, rank: int, ranks: int) -> Took:
    """Take a few steps in a world of its own; the first ones, which plan and connect, do not count."""
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=TIMEOUT)
    step = WAYS[way]()
    for _ in range(2):
        step()
    dist.barrier()
    steps = []
    for _ in range(STEPS):
        clock, processor = time.perf_counter(), time.process_time()
        step()
        steps.append((time.perf_counter() - clock, time.process_time() - processor))
    dist.barrier()
    dist.destroy_process_group()
    each = CALLS if way in ("call", "bare", "ping_pong") else 1
    return Took(*(statistics.median(part) / each for part in zip(*steps, strict=True)))


def rank_of(rank: int, ranks: int, folder: str, ways: list[str], pairs: int) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", ranks)
    for way in ways:
        taken: dict[str, list[Took]] = {"gloo": [], "cxl": []}
        for pair in range(pairs):
            for backend, times in taken.items():
                prefixed = dist.PrefixStore(f"{way}/{pair}/{backend}", store)
                times.append(measured(way, backend, prefixed, rank, ranks))
        if rank == 0:
            print(line(way, taken["gloo"], taken["cxl"]), flush=True)


def line(way: str, gloo: list[Took], cxl: list[Took]) -> str:
    """Return a row of the table: medians in microseconds, and the median ratio of pairs."""
    cells = [f"{way:10}"]
    for part in ("clock", "processor"):
        theirs, ours = ([getattr(took, part) for took in took_all] for took_all in (gloo, cxl))
        ratio = statistics.median(our / their for our, their in zip(ours, theirs, strict=True))
        cells.append(f"{statistics.median(theirs) * 1e6:12,.1f}{statistics.median(ours) * 1e6:12,.1f}{ratio:7.2f}")
    return "".join(cells)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="*", metavar="WAY", help=f"of {', '.join(WAYS)} (default: all)")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--memory", default="shm", help="what CXLEMU_BACKEND takes: shm or emulated")
    parser.add_argument("--pairs", type=int, default=5)
    given = parser.parse_args()
    if unknown := [way for way in given.ways if way not in WAYS]:
        parser.error(f"there is no {unknown[0]!r}: ways are {', '.join(WAYS)}")
    if given.ranks < 2 or given.pairs < 1:
        parser.error("2 ranks and 1 pair are the least")
    os.environ["CXLEMU_BACKEND"] = given.memory
    print(f"{'':10}{'us: Gloo':>12}{'cxl':>12}{'ratio':>7}{'CPU: Gloo':>12}{'cxl':>12}{'ratio':>7}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(given.ranks):
            if (child := os.fork()) == 0:
                try:
                    rank_of(rank, given.ranks, folder, given.ways or list(WAYS), given.pairs)
                    os._exit(0)
                except BaseException:
                    sys.excepthook(*sys.exc_info())
                    os._exit(1)
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
