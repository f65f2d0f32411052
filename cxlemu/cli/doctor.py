"""``cxlemu doctor``: what this machine offers, and what that means for a run."""

import mmap
import os
import platform
import re
import secrets
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click
import posix_ipc
from rich.text import Text

from cxlemu.cli import overwritten
from cxlemu.cli.console import console, plain_table
from cxlemu.cli.doctor_cxl import cxl_rows
from cxlemu.cli.doctor_devices import accelerator_rows
from cxlemu.cli.doctor_flags import DoctorFlags
from cxlemu.cli.doctor_rows import Detail, DoctorRow, entries, integer, numbers, row, text
from cxlemu.cli.options import taking
from cxlemu.cli.output import write_json
from cxlemu.errors import ArgumentError
from cxlemu.units import counted, format_bytes

_NAMED = 3  # dead pools, by name
LAUNCHERS = {"mpirun": "Open MPI or MPICH", "srun": "Slurm", "torchrun": "PyTorch"}
PACKAGES = ("numpy", "posix-ipc", "click", "pyyaml", "pydantic", "rich", "ml_dtypes")
PEERS = {"mpi4py": "to compare with MPI", "torch": "for torch.distributed"}


def examine(root: Path = Path("/"), path: str | None = None, accelerator: str | None = None) -> list[DoctorRow]:
    """Examine all that matters to a run; ``root`` stands for ``/``, ``path`` for PATH (None: the environment's)."""
    return [
        *_cores(),
        *_numa_nodes(root),
        *_dax_devices(root),
        *cxl_rows(root),
        *accelerator_rows(root, accelerator),
        *_instructions(root, platform.machine()),
        *_stores(),
        *_shared_memory(root),
        *_dead_pools(),
        *_hugepages(root),
        *_launchers(path),
        *_software(),
        *_overwritten(),
    ]


def _cores() -> Iterator[DoctorRow]:
    usable, present = len(os.sched_getaffinity(0)), os.cpu_count() or 0
    yield row("cores", True, f"{usable} usable of {present}", "more ranks than this take turns, which costs time")


def _stores() -> Iterator[DoctorRow]:
    try:
        from cxlemu.machine import kept_file, thresholds  # C and NumPy, which --help does without
    except ImportError as error:
        yield DoctorRow("native modules", "look", "not loaded", str(error))
        return
    yield row("native modules", True, "loaded", "they need the GIL, which a Python without it turns on", detail=True)
    thresholds_kept = thresholds()
    yield row(
        "stores", True, str(thresholds_kept), f"measured once for a machine, and kept in {kept_file()}", detail=True
    )


def _numa_nodes(root: Path) -> Iterator[DoctorRow]:
    nodes = entries(root / "sys/devices/system/node", "node[0-9]*")
    for node in nodes:
        total = re.search(r"MemTotal:\s+(\d{1,18}) kB", text(node / "meminfo"))
        size = format_bytes(int(total[1]) * 1024) if total else "size unknown"
        cpus = text(node / "cpulist")
        meaning = "a pool can be bound to it" if cpus else "possibly CXL memory; a pool can be bound to it"
        yield row(f"NUMA {node.name}", True, f"{size}, {f'CPUs {cpus}' if cpus else 'no CPUs'}", meaning)
    if not nodes:
        yield row("NUMA nodes", False, "", "pools cannot be bound to a node")


def _dax_devices(root: Path) -> Iterator[DoctorRow]:
    devices = entries(root / "sys/bus/dax/devices", "dax[0-9]*")
    for device in devices:
        size, align = integer(device / "size"), integer(device / "align")
        value = f"{format_bytes(size)}, align {format_bytes(align)}" if size and align else "size or align unknown"
        ours = os.access(root / "dev" / device.name, os.R_OK | os.W_OK)
        meaning = "memory for a real card" if ours else "you may not read and write it: see its permissions"
        yield row(f"/dev/{device.name}", True, value, meaning)
    if not devices:
        yield row("/dev/dax*", False, "", "cards are emulated in shared memory")


def _instructions(root: Path, machine: str) -> Iterator[DoctorRow]:
    if machine in {"aarch64", "arm64"}:
        yield row("flush", True, "DC CVAC, DC CIVAC", "push lines to real cards")
        return
    match = re.search(r"^flags\s*:(.*)$", text(root / "proc/cpuinfo"), re.MULTILINE)
    flags = match[1].split() if match else []
    flushes = [name for name in ("clwb", "clflushopt", "clflush") if name in flags]
    yield row("flush", flushes, " ".join(flushes), "push lines to real cards" if flushes else "no real cards")
    vectors = [name for name in ("avx2", "avx512f") if name in flags]
    yield row("vectors", vectors, " ".join(vectors), "wide copies" if vectors else "narrow copies", detail=True)


def _shared_memory(root: Path) -> Iterator[DoctorRow]:
    try:
        usage = shutil.disk_usage(root / "dev/shm")
    except OSError:
        yield DoctorRow("/dev/shm", "look", "none", "emulated pools need it: mount a tmpfs there")
    else:
        value = f"{format_bytes(usage.free)} free of {format_bytes(usage.total)}"
        yield row("/dev/shm", True, value, "holds emulated cards and caches")
    defect = _shared_memory_defect()
    if defect:
        yield DoctorRow("shared memory", "look", "fails", f"emulated pools do not work: {defect}")
    else:
        yield row("shared memory", True, "works", "made, mapped and removed a segment")


def _shared_memory_defect() -> str:
    """Say what keeps a segment from being made, mapped and removed; empty if nothing does."""
    try:
        segment = posix_ipc.SharedMemory(
            f"/cxlemu-doctor-{os.getpid()}-{secrets.token_hex(4)}", posix_ipc.O_CREX, size=4096
        )
    except (OSError, posix_ipc.Error) as error:
        return str(error)
    try:
        os.posix_fallocate(segment.fd, 0, segment.size)  # a full /dev/shm: an error here, no SIGBUS below
        with mmap.mmap(segment.fd, segment.size) as mapping:
            mapping[:4] = b"cxl!"
    except OSError as error:
        return str(error)
    finally:
        segment.close_fd()
        segment.unlink()
    return ""


def _dead_pools() -> Iterator[DoctorRow]:
    """Say what killed runs of this user left in shared memory."""
    try:
        from cxlemu.pool import catalog  # only here: help is to be there at once
    except ImportError:  # which the row of native modules says
        return
    dead = catalog.dead()
    nbytes = sum(segment.nbytes for entry in dead for segment in entry.found)
    if not dead:
        yield DoctorRow("dead pools", "ok", "none", "what killed runs leave in /dev/shm")
        return
    names = ", ".join(entry.name for entry in dead[:_NAMED]) + (", ..." if len(dead) > _NAMED else "")
    value = f"{len(dead)}, {format_bytes(nbytes)}"
    yield DoctorRow("dead pools", "look", value, f"left by killed runs: {names}; cxlemu pool clean removes them")


def _overwritten() -> Iterator[DoctorRow]:
    for package, sentence in overwritten.remedies(overwritten.PACKAGES).items():
        yield DoctorRow(package, "look", "overwritten", sentence)


def _hugepages(root: Path) -> Iterator[DoctorRow]:
    pools = entries(root / "sys/kernel/mm/hugepages", "hugepages-[0-9]*kB")
    for pool in pools:
        total, free = integer(pool / "nr_hugepages"), integer(pool / "free_hugepages")
        size = format_bytes(numbers(pool)[0] * 1024)
        yield row(
            f"hugepages {size}", total, f"{free} free of {total}", "optional: pools use ordinary pages", detail=True
        )
    if not pools:
        yield row("hugepages", False, "", "optional: pools use ordinary pages", detail=True)


def _launchers(path: str | None) -> Iterator[DoctorRow]:
    for name, origin in LAUNCHERS.items():
        program = shutil.which(name, path=path)
        meaning = "starts ranks on several machines" if program else f"optional: comes with {origin}"
        yield row(name, program, program or "", meaning, detail=True)


def _software() -> Iterator[DoctorRow]:
    yield row("Python", True, platform.python_version(), "3.11 or newer is needed", detail=True)
    for name in PACKAGES:
        installed = _version(name)
        meaning = "needed" if installed else f"needed: pip install {name}"
        yield row(name, installed, installed or "", meaning, detail=installed is not None)
    for name, use in PEERS.items():
        installed = _version(name)
        yield row(name, installed, installed or "", f"optional: {use}", detail=True)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@click.command()
@taking(DoctorFlags, work="doctor:run")
def command() -> None:
    """Show what this machine offers to a run.

    The machine stays as it is: doctor makes and removes one page of shared memory, and GPUs copy to and from memory of
    this process. With --calibrate, doctor instead measures latencies, bandwidths and cache-line instructions for some
    seconds, and writes a topology that all commands take.

    \b
    Examples:
      cxlemu doctor
      cxlemu doctor -v
      cxlemu doctor --json -
      cxlemu doctor --calibrate here.yaml
      cxlemu doctor --calibrate here.yaml --accelerator cuda:0
      cxlemu doctor --calibrate a.yaml --device /dev/dax0.0 --certificate a.html

    \b
    Exit codes:
      0  done
      1  a litmus test of the certificate had a forbidden outcome
      2  wrong arguments
      3  a certificate was requested, but no device was measured
    """


def run(ctx: click.Context, asked: DoctorFlags) -> None:
    if asked.topology_file is not None:
        from cxlemu.cli.doctor_calibrate import calibrate  # collectives are loaded only here

        ctx.exit(calibrate(asked.topology_file, asked))
    if asked.devices or asked.certificates or asked.litmus_file:
        raise ArgumentError("--device, --certificate and --litmus go with --calibrate")
    rows = examine(accelerator=asked.accelerator)
    if write_json(asked.json_file, [row._asdict() for row in rows]):
        return
    shown = [row for row in rows if asked.verbose or not isinstance(row, Detail)]
    table = plain_table("", "what", "value", "what it means")
    for line in shown:
        status = Text(line.status, "green" if line.status == "ok" else "yellow")
        table.add_row(status, Text(line.what), Text(line.value), Text(line.meaning))
    out = console()
    out.print(table, soft_wrap=False)
    if left := len(rows) - len(shown):
        out.print(Text(f"# {counted(left, 'more row')}, all of them ok or optional: cxlemu doctor -v"))
