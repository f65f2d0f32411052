"""Libraries that train, beside Gloo: each trains a small model on two ranks by torchrun, then by ``cxlemu torchrun``.

    python -m tests.collectives.torch.libraries accelerate lightning    # without names: all that are installed

Each function below trains with its library as any script does, and returns the loss of every step on its rank.
"""

import importlib
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from collectives.torch import make_group
from collectives.torch.harness import Installed

STEPS = 4
WIDTH = 64
TIME_S = 300.0
Losses = list[float]


def model() -> nn.Module:
    """The same model on every rank and in every run."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 1))


def batches() -> list[tuple[Tensor, Tensor]]:
    """Eight rows of input for each step, and what the model should say of each."""
    numbers = torch.Generator().manual_seed(1)
    rows = torch.randn(STEPS * 16, WIDTH, generator=numbers)
    return list(zip(rows, rows.square().mean(1, keepdim=True), strict=True))


def loss_of(trained: Any, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.mse_loss(trained(x), y)


def mine(rank: int) -> Iterator[tuple[Tensor, Tensor]]:
    """One rank's batches, where the library leaves that to the script."""
    for step in range(STEPS):
        rows = batches()[16 * step + 8 * rank :][:8]
        yield torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows])


def accelerate() -> Losses:
    from accelerate import Accelerator

    its = Accelerator(cpu=True)
    made = model()
    loader = torch.utils.data.DataLoader(batches(), batch_size=8)  # type: ignore[arg-type]
    trained, optimizer, loader = its.prepare(made, torch.optim.AdamW(made.parameters(), 1e-2), loader)
    losses = []
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_of(trained, x, y)
        its.backward(loss)
        optimizer.step()
        losses.append(float(its.reduce(loss.detach(), "mean")))
    return losses


def transformers() -> Losses:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    torch.manual_seed(0)
    gpt = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2))
    numbers = torch.Generator().manual_seed(1)
    rows = [torch.randint(64, (32,), generator=numbers) for _ in range(STEPS * 8)]
    with tempfile.TemporaryDirectory() as folder:
        its = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            max_steps=STEPS,
            logging_steps=1,
            per_device_train_batch_size=4,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = Trainer(model=gpt, args=its, train_dataset=[{"input_ids": row, "labels": row} for row in rows])  # type: ignore[arg-type]
        trainer.train()
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def lightning() -> Losses:
    import lightning as pl

    losses = []

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model()

        def training_step(self, batch: Any, _: int) -> Tensor:
            loss = loss_of(self.inner, *batch)
            losses.append(float(loss.detach()))
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), 1e-2)

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = pl.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_steps=STEPS, **quiet)  # type: ignore[arg-type]
    trainer.fit(Module(), torch.utils.data.DataLoader(batches(), batch_size=8))  # type: ignore[arg-type]
    return losses


def fabric() -> Losses:
    import lightning as pl

    its = pl.Fabric(accelerator="cpu", devices=2, strategy="ddp")
    its.launch()
    made = model()
    trained, optimizer = its.setup(made, torch.optim.AdamW(made.parameters(), 1e-2))
    losses = []
    for x, y in mine(its.global_rank):
        optimizer.zero_grad()
        loss = loss_of(trained, x, y)
        its.backward(loss)
        optimizer.step()
        losses.append(float(its.all_reduce(loss.detach(), reduce_op="mean")))
    return losses


def deepspeed(stage: int) -> Losses:
    os.environ |= {"DS_ACCELERATOR": "cpu"}
    import deepspeed as library

    library.init_distributed(dist_backend="gloo")
    made = model()
    config = {
        "train_micro_batch_size_per_gpu": 8,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.AdamW(made.parameters(), 1e-2)
    trained, *_ = library.initialize(model=made, optimizer=optimizer, config=config)
    losses = []
    for x, y in mine(library.comm.get_rank()):
        loss = loss_of(trained, x, y)
        trained.backward(loss)
        trained.step()
        losses.append(float(loss.detach()))
    return losses


def torchtitan() -> Losses:
    from torch.distributed.fsdp import fully_shard
    from torchtitan.distributed import parallel_dims, utils

    parallel_dims.device_type = "cpu"  # it takes a machine without a GPU for one with
    dist.init_process_group("gloo")
    ways = dict.fromkeys(["dp_replicate", "cp", "tp", "pp", "ep"], 1)
    dims = parallel_dims.ParallelDims(dp_shard=2, world_size=2, spmd_backend="partial_dtensor", **ways)
    dims.build_mesh()
    made = model()
    mesh = dims.get_mesh("fsdp")
    for layer in (*(each for each in made if isinstance(each, nn.Linear)), made):  # type: ignore[attr-defined]
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(made.parameters(), 1e-2)
    losses = []
    for x, y in mine(dist.get_rank()):
        optimizer.zero_grad()
        loss = loss_of(made, x, y)
        loss.backward()
        utils.clip_grad_norm_(made.parameters(), 1.0)
        optimizer.step()
        losses.append(utils.dist_mean(loss.detach(), mesh))
    dist.destroy_process_group()
    return losses


def torchft() -> Losses:
    """Train on two replicas of one rank each: torchft makes their group anew whenever one comes or goes."""
    from torchft import DistributedDataParallel, Manager, Optimizer
    from torchft.coordination import LighthouseServer
    from torchft.process_group import ProcessGroupGloo, ProcessGroupWrapper

    class OnPool(ProcessGroupWrapper):  # type: ignore[misc]
        def _create_pg(self, store: Any, rank: int, world_size: int) -> Any:
            return make_group(store, rank, world_size, self._timeout)

    rank, time = int(os.environ["RANK"]), timedelta(seconds=60)
    store, own = dist.FileStore(f"{sys.argv[2]}/store", 2), dist.TCPStore("localhost", 0, None, True, time, False)
    if rank == 0:
        lighthouse = LighthouseServer(bind="0.0.0.0:0", min_replicas=2)
        store.set("lighthouse", lighthouse.address())
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), 1e-2)
    group = (ProcessGroupGloo if Installed.harness is None else OnPool)(time)
    manager = Manager(
        group,
        made.load_state_dict,
        made.state_dict,
        min_replica_size=2,
        replica_id=f"{rank}_",
        store_addr="localhost",
        store_port=own.port,
        rank=0,
        world_size=1,
        lighthouse_addr=store.get("lighthouse").decode(),
    )
    trained, stepping = DistributedDataParallel(manager, made), Optimizer(manager, optimizer)
    losses = []
    for x, y in mine(rank):
        stepping.zero_grad()
        loss = loss_of(trained, x, y)
        loss.backward()
        stepping.step()
        losses.append(float(loss.detach()))
    manager.shutdown(wait=False)
    group.parent.shutdown()  # else nothing is said of what was compared
    store.set(f"done/{rank}", "")
    store.wait(["done/0", "done/1"], time)
    return losses


LIBRARIES: dict[str, tuple[str, Any]] = {  # name: its package, and what trains
    "accelerate": ("accelerate", accelerate),
    "transformers": ("transformers", transformers),
    "lightning": ("lightning", lightning),
    "fabric": ("lightning", fabric),
    "torchtitan": ("torchtitan", torchtitan),
    "torchft": ("torchft", torchft),
    "deepspeed-2": ("deepspeed", lambda: deepspeed(2)),
    "deepspeed-3": ("deepspeed", lambda: deepspeed(3)),
}


def main(name: str, folder: str) -> None:
    """Train on one rank."""
    torch.set_num_threads(1)
    losses = LIBRARIES[name][1]()
    Path(folder, f"{os.environ['RANK']}.json").write_text(json.dumps(losses))


def losses_by(name: str, *launcher: str) -> list[Losses]:
    """Every rank's losses, where a launcher starts two ranks."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[3])}
        command = [sys.executable, "-m", *launcher, str(Path(__file__)), name, folder]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=TIME_S)
        found = [Path(folder, f"{rank}.json") for rank in range(2)]
        if done.returncode or not all(path.exists() for path in found):
            raise AssertionError(f"{name}, {launcher[0]}: {done.stdout[-3000:]}{done.stderr[-3000:]}")
        return [json.loads(path.read_text()) for path in found]


def beside_gloo(name: str, *flags: str) -> tuple[list[Losses], float]:
    """The losses over the pool, and by how much one of them differs from Gloo's at most."""
    gloo = losses_by(name, "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    pool = losses_by(name, "cxlemu", "torchrun", "-n", "2", "--compare", "gloo", *flags)  # fails without a call
    apart = [abs(one - other) for a, b in zip(gloo, pool, strict=True) for one, other in zip(a, b, strict=True)]
    return pool, max(apart)


def installed(name: str) -> bool:
    """Whether the library is there."""
    return importlib.util.find_spec(LIBRARIES[name][0]) is not None


if __name__ == "__main__":
    if "RANK" in os.environ:
        main(*sys.argv[1:])
    else:
        print(f"torch {torch.__version__}")
        for each in sys.argv[1:] or filter(installed, LIBRARIES):
            found, differ = beside_gloo(each)
            version = importlib.metadata.version(LIBRARIES[each][0])
            print(
                f"{each} {version}: {len(found[0])} steps, losses differ by at most {differ:.3g}: {found[0]}",
                flush=True,
            )
