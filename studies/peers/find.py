"""Which peers this machine has, how each is started, and for those it has not, why.

A peer is found by trying: the launcher runs one process that imports what it needs and says what it is.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from studies.peers.group import Group, PeerProcess, worker_arguments

TRY_S = 60.0

_MPI_PROBE = "from mpi4py import MPI; print(MPI.get_vendor()[0])"
_NCCL_PROBE = (
    "import torch; print(torch.cuda.device_count() if torch.distributed.is_nccl_available() else 'torch without NCCL')"
)
_TORCH_PROBE = "from torch import distributed as d; print('gloo' if d.is_gloo_available() else 'no gloo')"


@dataclass(frozen=True, slots=True)
class Absent:
    """A peer that cannot be measured here."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Peer:
    name: str
    python: str  # the interpreter that has what the peer needs
    launcher: str | None  # the command that starts its ranks, if there is one

    def start(self, group: Group, *, single_copy: bool, deadline_s: float) -> None:
        environment = {} if single_copy or self.name not in MPIS else MPIS[self.name].two_copies
        programs = _STARTS[self.name](self, group, deadline_s)
        group.start(program._replace(environment={**program.environment, **environment}) for program in programs)


@dataclass(frozen=True, slots=True)
class MpiLibrary:
    launchers: tuple[str, ...]  # the commands that may start its ranks
    signature: str  # a word by which a launcher names itself
    vendor: str  # mpi4py's name for the library
    two_copies: Mapping[str, str]  # the environment that forbids a single copy


MPIS = {
    "openmpi": MpiLibrary(
        ("mpirun.openmpi", "mpirun", "mpiexec"),
        "Open",
        "Open MPI",
        {"OMPI_MCA_btl_vader_single_copy_mechanism": "none"},
    ),
    "mpich": MpiLibrary(
        ("mpiexec.mpich", "mpiexec.hydra", "mpiexec", "mpirun"), "HYDRA", "MPICH", {"MPIR_CVAR_CH4_CMA_ENABLE": "0"}
    ),
}
NAMES = (*MPIS, "gloo")
NCCL = "nccl"  # beside ours on arrays of devices alone


def find(name: str, pythons: Mapping[str, str]) -> Peer | Absent:
    python = pythons.get(name, sys.executable)
    if name not in MPIS:
        said = _try([python, "-c", _TORCH_PROBE])
        return Peer(name, python, None) if said == "gloo" else Absent(name, f"{python}: {said}")
    mpi = MPIS[name]
    launcher = _launcher(mpi, Path(python).parent)
    if launcher is None:
        return Absent(name, f"no {' or '.join(mpi.launchers)} that starts {mpi.vendor} on PATH or beside {python}")
    peer = Peer(name, python, launcher)
    said = _try(_launch(peer, 1, (python, "-c", _MPI_PROBE)), _environment(name))
    if said == mpi.vendor:
        return peer
    is_one = said in {other.vendor for other in MPIS.values()}
    return Absent(name, f"mpi4py of {python} is for {said}" if is_one else f"{python} under {launcher}: {said}")


def find_nccl(accelerator: str, ranks: int, pythons: Mapping[str, str]) -> Peer | Absent:
    """Look for NCCL, which needs a GPU of its own for each rank."""
    if not accelerator.startswith("cuda"):
        return Absent(NCCL, f"{accelerator} is not a GPU")
    python = pythons.get(NCCL, sys.executable)
    said = _try([python, "-c", _NCCL_PROBE])
    if not said.isdecimal():
        return Absent(NCCL, f"{python}: {said}")
    if int(said) < ranks:
        return Absent(NCCL, f"it needs a GPU for each of {ranks} ranks, and there are {said}")
    return Peer(NCCL, python, None)


def _launcher(mpi: MpiLibrary, beside: Path) -> str | None:
    for path in (str(beside), None):  # a Python that brings its own MPI has the launcher beside it
        for command in mpi.launchers:
            launcher = shutil.which(command, path=path)
            if launcher and mpi.signature in _output([launcher, "--version"], {}):
                return launcher
    return None


def _try(arguments: list[str], environment: Mapping[str, str] | None = None) -> str:
    """Run a command, and return the last line that it printed."""
    lines = _output(arguments, environment or {}).strip().splitlines()
    return lines[-1].strip() if lines else "no answer"


def _output(arguments: list[str], environment: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            arguments,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=TRY_S,
        )
    except OSError as error:
        return f"{arguments[0]}: {error.strerror}"
    except subprocess.TimeoutExpired:
        return f"no answer within {TRY_S:g} s"
    if done.returncode and "Error: " in done.stdout:  # Python's own, before what a launcher says of it
        return next(line for line in done.stdout.splitlines() if "Error: " in line)
    return done.stdout


def _launch(peer: Peer, ranks: int, worker: tuple[str, ...]) -> list[str]:
    """Return the command that starts ranks. We bind ranks to cores ourselves, alike for all implementations."""
    assert peer.launcher is not None
    flags = ["--bind-to", "none", "--oversubscribe"] if peer.name == "openmpi" else ["-bind-to", "none"]
    return [peer.launcher, *flags, "-n", str(ranks), *worker]


def _environment(name: str) -> dict[str, str]:
    if name != "openmpi":
        return {}
    # Without an agent for remote ranks Open MPI stops, though there are none; and it does not like root.
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.geteuid() == 0 else {}
    return {"OMPI_MCA_plm": "isolated", **as_root}


def _start_mpi(peer: Peer, group: Group, deadline_s: float) -> list[PeerProcess]:
    worker = worker_arguments(peer.python, "mpi", group.socket_path)
    return [PeerProcess(tuple(_launch(peer, group.ranks, worker)), _environment(peer.name))]


def _start_gloo(peer: Peer, group: Group, deadline_s: float) -> list[PeerProcess]:
    store = str(group.folder / "store")
    return [
        PeerProcess(
            worker_arguments(
                peer.python, peer.name, group.socket_path, str(rank), str(group.ranks), store, str(deadline_s)
            )
        )
        for rank in range(group.ranks)
    ]


_STARTS: dict[str, Callable[[Peer, Group, float], list[PeerProcess]]] = {
    "openmpi": _start_mpi,
    "mpich": _start_mpi,
    "gloo": _start_gloo,
    NCCL: _start_gloo,
}
