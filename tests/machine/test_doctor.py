"""`cxlemu doctor`, on a machine that stands in a folder."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import posix_ipc
import pytest

from cxlemu.cli import doctor
from cxlemu.cli.doctor import examine
from cxlemu.cli.doctor_rows import DoctorRow
from cxlemu.pool import segments
from tests.helpers.commands import cxlemu
from tests.helpers.pool_helpers import leave_dead_pool, own_name


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Two NUMA nodes, one without CPUs; three DAX devices, two of them badly described; a CXL card."""
    files = {
        "sys/devices/system/node/node0/cpulist": "0-15\n",
        "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:       67108864 kB\nNode 0 MemFree: 5 kB\n",
        "sys/devices/system/node/node1/cpulist": "\n",
        "sys/devices/system/node/node1/meminfo": "Node 1 MemTotal:       134217728 kB\n",
        "sys/bus/dax/devices/dax10.0/size": "much\n",
        "sys/bus/dax/devices/dax10.0/align": "\n",
        "sys/bus/dax/devices/dax2.10/size": "268435456\n",
        "sys/bus/dax/devices/dax2.0/size": "268435456\n",
        "sys/bus/dax/devices/dax2.0/align": "2097152\n",
        "sys/bus/cxl/devices/mem0/ram/size": "0x2000000000\n",
        "sys/bus/cxl/devices/root0/uevent": "",
        "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "8\n",
        "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages": "3\n",
        "proc/cpuinfo": "processor : 0\nflags\t\t: fpu clflush clflushopt avx2 sse2\n",
        "dev/dax2.0": "",
        "dev/shm/some": "",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def rows(root: Path, path: str = "") -> dict[str, DoctorRow]:
    found = examine(root, path)
    by_name = {row.what: row for row in found}
    assert len(by_name) == len(found)
    return by_name


def test_accelerators_are_those_that_the_driver_shows(machine: Path) -> None:
    assert rows(machine)["accelerators"][1:3] == ("absent", "none")
    for address, said in (("0000:65:00.0", "Model: \t\t NVIDIA H100\nIRQ: 7\n"), ("0000:0a:00.0", "Model:\n")):
        folder = machine / "proc/driver/nvidia/gpus" / address
        folder.mkdir(parents=True)
        (folder / "information").write_text(said)
    found = rows(machine)
    assert found["accelerator 0000:65:00.0"].value == "NVIDIA H100"
    assert found["accelerator 0000:0a:00.0"].value == "model unknown"
    assert "has run on one kind of GPU" in found["accelerator 0000:65:00.0"].meaning and "accelerators" not in found


def test_a_device_that_is_asked_for_says_what_it_reaches_and_how_fast(machine: Path) -> None:
    found = {row.what: row for row in examine(machine, accelerator="fake")}
    assert found["fake"].status == "ok" and "fake device" in found["fake"].value
    assert found["fake, shared memory"][1:3] == ("ok", "registered")
    assert found["fake, dax2.0"].status == "look" and "alignment" in found["fake, dax2.0"].meaning  # an empty file here
    assert "pinned memory" in found["fake, plain copies"].meaning
    assert "both at once" in found["fake, copies"].value and "nothing about a GPU" in found["fake, copies"].meaning


def test_gpus_without_nvidias_package_say_what_to_install(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "cxlemu.accelerator.cuda", raising=False)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    (machine / "proc/driver/nvidia/gpus/0000:65:00.0").mkdir(parents=True)
    found = rows(machine)["CUDA"]
    assert found.status == "look" and "pip install 'cxlemu[cuda]'" in found.meaning


@pytest.mark.parametrize("name", ["cuda:x", "fake1", "cuda:"])
def test_a_name_of_no_device_is_refused(name: str) -> None:
    result = cxlemu("doctor", "--accelerator", name, code=2)
    assert f"unknown device {name!r}" in str(result.stderr) + str(result.exception)


def test_a_node_without_cpus_may_be_cxl_memory(machine: Path) -> None:
    found = rows(machine)
    assert found["NUMA node0"][1:3] == ("ok", "64 GiB, CPUs 0-15")
    assert found["NUMA node1"][1:3] == ("ok", "128 GiB, no CPUs")
    assert "possibly CXL" in found["NUMA node1"].meaning
    assert "possibly CXL" not in found["NUMA node0"].meaning


def test_dax_devices_tell_size_and_alignment_in_numeric_order(machine: Path) -> None:
    found = rows(machine)
    assert [what for what in found if "dax" in what] == ["/dev/dax2.0", "/dev/dax2.10", "/dev/dax10.0"]
    assert found["/dev/dax2.0"][1:] == ("ok", "256 MiB, align 2 MiB", "memory for a real card")
    assert found["/dev/dax10.0"].value == "size or align unknown"
    assert "may not read and write" in found["/dev/dax10.0"].meaning


def test_cxl_memory_devices_are_found(machine: Path) -> None:
    assert rows(machine)["CXL mem0"][1:3] == ("ok", "128 GiB volatile")


def test_flush_instructions_come_from_cpuinfo_in_order_of_preference(machine: Path) -> None:
    found = rows(machine)
    assert found["flush"].value == "clflushopt clflush"
    assert found["vectors"].value == "avx2"


def test_arm64_flushes_by_architecture(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.platform, "machine", lambda: "aarch64")
    assert rows(machine)["flush"][1:3] == ("ok", "DC CVAC, DC CIVAC")


def test_hugepages_are_counted(machine: Path) -> None:
    assert rows(machine)["hugepages 2 MiB"][1:3] == ("ok", "3 free of 8")


def test_an_empty_machine_has_nothing_and_breaks_nothing(tmp_path: Path) -> None:
    found = rows(tmp_path)
    absent = {what for what, row in found.items() if row.status == "absent"}
    assert absent >= {
        "NUMA nodes", "/dev/dax*", "CXL devices", "flush", "vectors", "hugepages",
        "mpirun", "srun", "torchrun",
    }  # fmt: skip
    assert found["/dev/shm"].status == "look"
    assert all(row.meaning for row in found.values())


def test_launchers_are_found_on_the_path(tmp_path: Path) -> None:
    (tmp_path / "srun").write_text("#!/bin/sh\n")
    (tmp_path / "srun").chmod(0o755)
    found = rows(tmp_path, path=str(tmp_path))
    assert found["srun"][1:3] == ("ok", str(tmp_path / "srun"))
    assert found["mpirun"].status == "absent"


def test_shared_memory_that_does_not_work_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise posix_ipc.PermissionsError("no permission")

    monkeypatch.setattr(doctor.posix_ipc, "SharedMemory", refuse)
    row = rows(tmp_path)["shared memory"]
    assert row.status == "look"
    assert "no permission" in row.meaning


def test_a_full_dev_shm_is_said_and_leaves_no_segment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    row = rows(tmp_path)["shared memory"]
    assert row.status == "look"
    assert "No space left on device" in row.meaning
    assert not list(Path("/dev/shm").glob(f"cxlemu-doctor-{os.getpid()}-*"))


def test_this_machine_is_examined_and_left_as_it_was() -> None:
    result = cxlemu("doctor", "--json", "-", code=0)
    found = {row["what"]: row for row in json.loads(result.output)}
    assert found["cores"]["value"].startswith(f"{len(os.sched_getaffinity(0))} usable")
    assert found["shared memory"]["status"] == found["numpy"]["status"] == "ok"
    assert not list(Path("/dev/shm").glob(f"cxlemu-doctor-{os.getpid()}-*"))


def test_a_machine_without_dev_shm_has_no_dead_pools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As a guest that runs on devices alone."""
    monkeypatch.setattr(segments, "SHM_DIR", tmp_path / "none")
    result = cxlemu("doctor", "--json", "-", code=0)
    (row,) = (row for row in json.loads(result.output) if row["what"] == "dead pools")
    assert row["value"] == "none"


def test_the_table_says_the_same_as_the_json() -> None:
    table = cxlemu("doctor", "-v", columns=120, code=0)
    short = cxlemu("doctor", columns=120).output.splitlines()
    left = len(table.output.splitlines()) + 1 - len(short)
    assert len(short) <= 16 and f"# {left} more rows, all of them ok or optional: cxlemu doctor -v" in short
    for row in examine():
        if row.what == "dead pools":
            continue  # other tests leave some meanwhile
        assert any(line.split()[0] == row.status and row.what in line for line in table.output.splitlines())


def test_help_shows_examples() -> None:
    assert "Examples:\n    cxlemu doctor" in cxlemu("doctor", "--help").output


def test_dead_pools_are_counted_and_named() -> None:
    with own_name() as name:
        leave_dead_pool(name)
        row = rows(Path("/"))["dead pools"]  # other tests leave some as well
        count, nbytes = row.value.split(", ")
        assert row.status == "look" and int(count) >= 1 and nbytes.endswith("iB")
        assert "cxlemu pool clean" in row.meaning and (name in row.meaning or int(count) > 3)


PLACEHOLDER = {
    "collectives/__init__.py": "raise ImportError('a placeholder')\n",
    "collectives-0.0.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: collectives\nVersion: 0.0.1\n",
    "collectives-0.0.1.dist-info/top_level.txt": "collectives\n",
}


def test_a_package_that_another_distribution_overwrote_is_named_with_how_to_mend_it(tmp_path: Path) -> None:
    for name, text in PLACEHOLDER.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{Path(doctor.__file__).parents[2]}"}
    command = [sys.executable, "-m", "cxlemu", "doctor", "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=True)
    how = "pip uninstall collectives, and then in the clone pip install --force-reinstall --no-deps -e ."
    found = {row["what"]: row for row in json.loads(done.stdout)}
    assert found["collectives"]["status"] == "look" and how in found["collectives"]["meaning"]
    assert done.stderr.count(how) >= 1 and "Traceback" not in done.stderr
