"""A call that went wrong, kept as NumPy files and JSON, and made again alone.

A folder has ``call.json`` and ``input-K.npy``, the bytes that rank K passed. Nothing in it is executed.
"""

import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from collectives.checking.oracle import gives_output
from collectives.communicator.arrays import Array
from collectives.communicator.communicator import Communicator
from collectives.contracts import COLLECTIVES
from cxlemu.cli.output import read_json
from cxlemu.engines import engine_for
from cxlemu.errors import ArgumentError
from cxlemu.files import read_file
from cxlemu.memory import MemorySpec
from cxlemu.memory.rates import AdversaryRates
from cxlemu.plan import DTYPE_NAMES, DTYPES, Call, Op, RedOp
from cxlemu.plan.reduction import fold
from cxlemu.pool.superblock import RANKS_MAX
from cxlemu.world import RankContext, launch
from faults.torch.difference import Difference
from faults.torch.leaving_out import LeavingOut

INPUT_BYTES_MAX = 1 << 30
FORMAT = 1


@dataclass(frozen=True)
class SavedCall:
    format: int
    sentence: str  # what went wrong
    collective: str
    op: str  # the reduction, or "none"
    root: int
    dtype: str
    ranks: int
    topology: str
    backend: str
    seed: int | None  # of the adversary; None: there is none
    rates: dict[str, float]  # of the adversary
    card_bytes: int
    leave_out: list[dict[str, Any]]  # instructions that ranks left out


def save(
    folder: Path, difference: Difference, inputs: Sequence[Array], comm: Communicator, leave_out: list[dict[str, Any]]
) -> None:
    """Keep a call that went wrong in a new folder, with what each rank passed and left out."""
    folder.mkdir(parents=True, exist_ok=True)
    context, call = comm._context, difference.call
    spec = context.world.memory if context.world is not None else MemorySpec()
    saved_call = SavedCall(
        FORMAT,
        difference.sentence(),
        call.collective,
        call.op,
        call.root,
        call.dtype,
        call.ranks,
        context.topology.name,
        spec.kind,
        spec.seed,
        asdict(spec.rates),
        context.pool.card_bytes,
        leave_out,
    )
    for rank, array in enumerate(inputs):
        np.save(folder / f"input-{rank}.npy", array.reshape(-1).view(np.uint8), allow_pickle=False)
    (folder / "call.json").write_text(json.dumps(asdict(saved_call), indent=1))


def load(folder: Path) -> tuple[SavedCall, list[Array]]:
    """Read a call that was kept, and what each rank passed."""
    plain = read_json(folder / "call.json", "--replay")
    if not isinstance(plain, dict) or set(plain) != {f.name for f in fields(SavedCall)} or plain["format"] != FORMAT:
        raise ArgumentError(f"--replay {folder}: call.json was not saved by cxlemu torchrun")
    saved_call = SavedCall(**plain)
    if (
        saved_call.dtype not in DTYPES
        or saved_call.collective not in COLLECTIVES
        or saved_call.op not in ("none", *(op.name.lower() for op in RedOp))
    ):
        raise ArgumentError(
            f"--replay {folder}: there is no call {saved_call.collective} {saved_call.op} of {saved_call.dtype}"
        )
    if not isinstance(saved_call.ranks, int) or not 1 <= saved_call.ranks <= min(64, RANKS_MAX):
        raise ArgumentError(f"--replay {folder}: {saved_call.ranks!r} ranks are not 1 to 64")
    inputs = []
    for rank in range(saved_call.ranks):
        path = folder / f"input-{rank}.npy"
        try:
            raw = np.load(io.BytesIO(read_file(path, INPUT_BYTES_MAX)), allow_pickle=False)
            inputs.append(np.ascontiguousarray(raw, np.uint8).reshape(-1).view(DTYPES[saved_call.dtype]))
        except OSError as error:
            raise ArgumentError(f"--replay {folder}: {path.name} cannot be read: {error.strerror}") from None
        except (ValueError, EOFError, MemoryError) as error:
            raise ArgumentError(f"--replay {folder}: {path.name} is damaged: {error}") from None
    return saved_call, inputs


def replay(saved: SavedCall, inputs: Sequence[Array]) -> list[str]:
    """Make a kept call again, after as many like it as fill the ring with other bytes; say which ranks are wrong."""
    call = Call(saved.collective, "", saved.ranks, 0, saved.dtype, saved.op, saved.root)
    rates = AdversaryRates(**saved.rates)
    memory = (
        MemorySpec(saved.backend, seed=saved.seed, rates=rates) if saved.seed is not None else MemorySpec(saved.backend)
    )

    def main(context: RankContext) -> str:
        ops = frozenset(Op[each["instruction"]] for each in saved.leave_out if each["rank"] == context.rank)
        inner = engine_for("native", context.backend, context.memory, context.pool.cards, context.pacer)
        with Communicator.world(context, engine=LeavingOut(inner, context, ops) if ops else inner) as comm:
            share = inputs[call.root].size // comm.size
            other = [np.zeros_like(each) for each in inputs]
            for _ in range(comm.layout.slots):
                _made(comm, call, other[comm.rank], share)
            got = _made(comm, call, inputs[comm.rank], share)
            comm.barrier()
        if not gives_output(call, context.rank):
            return ""
        right = _right(call, context.rank, inputs)
        differ = np.flatnonzero((got.view(np.uint8) != right.view(np.uint8)).reshape(-1, got.itemsize).any(axis=1))
        if not differ.size:
            return ""
        k = int(differ[0])
        return f"rank {context.rank}, element {k}: {got[k]} instead of {right[k]} ({differ.size} of {got.size} wrong)"

    answers = launch(main, ranks=saved.ranks, topology=saved.topology, memory=memory, how="threads", heap_bytes="cards")
    return [sentence for sentence in answers if sentence]


def _made(comm: Communicator, call: Call, x: Array, share: int) -> Array:
    x = x.copy()
    match call.collective:
        case "all_reduce":
            result = comm.all_reduce(x, call.redop)
        case "reduce":
            result = comm.reduce(x, call.redop, root=call.root)
        case "reduce_scatter":
            result = comm.reduce_scatter(x, call.redop)
        case "broadcast":
            result = comm.broadcast(x, root=call.root)
        case "scatter":
            result = comm.scatter(x, np.empty(share, x.dtype), root=call.root)
        case "gather":
            result = comm.gather(x, root=call.root)
        case _:
            result = getattr(comm, call.collective)(x)
    return np.empty(0, x.dtype) if result is None else np.asarray(result).reshape(-1)


def _right(call: Call, rank: int, inputs: Sequence[Array]) -> Array:
    size = call.ranks
    blocks = [each.reshape(size, -1)[rank] for each in inputs] if call.collective in _BLOCKS else list(inputs)
    if call.collective in ("broadcast", "scatter"):
        return np.asarray(blocks[call.root])
    if call.redop == "none":
        return np.concatenate(blocks)
    parts = [np.ascontiguousarray(each).view(np.uint8) for each in blocks]
    divisor = size if call.redop == "avg" else 1
    return fold(DTYPE_NAMES.index(call.dtype), RedOp[call.redop.upper()], parts, divisor).view(DTYPES[call.dtype])


_BLOCKS = ("reduce_scatter", "scatter", "all_to_all")
