"""What `cxlemu doctor` tells of CXL memory, in a folder that stands for /sys: as Linux shows it, and as it must not."""

from pathlib import Path

import pytest

from cxlemu.cli.doctor_cxl import cxl_rows
from cxlemu.cli.doctor_rows import MOST_BYTES, MOST_ENTRIES

DEVICES = "sys/bus/cxl/devices"
# Two devices of different kinds in one window, a region over both and one that is not committed yet. So did Linux 6.1
# show QEMU's devices, but for mem1, which has volatile memory here.
FILES = {
    "mem0/pmem/size": "0x10000000\n",
    "mem0/ram/size": "0x0\n",
    "mem0/serial": "0x3\n",
    "mem1/pmem/size": "0x0\n",
    "mem1/ram/size": "0x10000000\n",
    "decoder0.0/devtype": "cxl_decoder_root\n",
    "decoder0.0/start": "0x3d0000000\n",
    "decoder0.0/size": "0x20000000\n",
    "decoder0.0/cap_ram": "1\n",
    "decoder0.0/cap_pmem": "1\n",
    "decoder1.0/devtype": "cxl_decoder_switch\n",
    "decoder1.0/size": "0x20000000\n",
    "decoder5.0/devtype": "cxl_decoder_endpoint\n",
    "decoder5.0/size": "0x20000000\n",
    "decoder12.0/devtype": "cxl_decoder_endpoint\n",
    "decoder12.0/size": "0x0\n",
    "region0/commit": "1\n",
    "region0/size": "0x20000000\n",
    "region0/resource": "0x3d0000000\n",
    "region0/interleave_ways": "2\n",
    "region0/interleave_granularity": "256\n",
    "region0/target0": "decoder12.0\n",
    "region0/target1": "decoder5.0\n",
    "region3/commit": "0\n",
    "region3/size": "\n",
    "region3/interleave_ways": "4\n",
}
ENDPOINTS = {"endpoint5": "mem0", "endpoint12": "mem1"}


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        write(tmp_path, f"{DEVICES}/{name}", text)
    for endpoint, memory in ENDPOINTS.items():
        (tmp_path / DEVICES / endpoint).mkdir()
        (tmp_path / DEVICES / endpoint / "uport").symlink_to(f"../{memory}")
    write(tmp_path, "sys/bus/dax/devices/dax0.0/resource", "0x3d0200000\n")
    write(tmp_path, "sys/bus/dax/devices/dax1.0/resource", "0x3f0000000\n")  # the first byte after the region
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def values(root: Path) -> dict[str, str]:
    return {row.what: row.value for row in cxl_rows(root)}


def test_memory_windows_regions_and_decoders(machine: Path) -> None:
    assert values(machine) == {
        "CXL mem0": "256 MiB persistent, serial 0x3",
        "CXL mem1": "256 MiB volatile",
        "CXL window decoder0.0": "512 MiB at 0x3d0000000, takes ram, pmem",
        "CXL region0": "512 MiB on mem1 mem0, interleaved every 256 B",
        "CXL region3": "size unknown, not committed, 4 ways",
        "CXL decoders": "2 of 3 in use",
    }


def test_a_region_tells_the_devices_in_it(machine: Path) -> None:
    meanings = {row.what: row.meaning for row in cxl_rows(machine)}
    assert meanings["CXL region0"] == "holds /dev/dax0.0"
    assert meanings["CXL region3"] == "no /dev/dax* in it is seen"


def test_without_roots_rights_no_device_is_guessed(machine: Path) -> None:
    for each in ("sys/bus/dax/devices/dax0.0/resource", f"{DEVICES}/region0/resource"):
        write(machine, each, "0x0\n")
    assert {row.meaning for row in cxl_rows(machine) if row.what == "CXL region0"} == {"no /dev/dax* in it is seen"}


def test_memory_without_a_region_is_said(tmp_path: Path) -> None:
    write(tmp_path, f"{DEVICES}/mem0/pmem/size", "0x10000000\n")
    rows = list(cxl_rows(tmp_path))
    assert [(row.what, row.status) for row in rows] == [("CXL mem0", "ok"), ("CXL regions", "absent")]
    assert "create-region" in rows[1].meaning


@pytest.mark.parametrize("target", ["decoder12.0/../../x", "decoder" + "9" * 400 + ".0", "decoder77.0", "", "mem0"])
def test_a_target_that_is_no_decoder_is_unknown(machine: Path, target: str) -> None:
    write(machine, f"{DEVICES}/region0/target0", target)
    assert values(machine)["CXL region0"] == "512 MiB on ? mem0, interleaved every 256 B"


def test_an_endpoint_whose_device_is_no_memory_is_unknown(machine: Path) -> None:
    link = machine / DEVICES / "endpoint12/uport"
    link.unlink()
    link.symlink_to("/etc/passwd")
    assert values(machine)["CXL region0"].startswith("512 MiB on ? mem0")


@pytest.mark.parametrize("number", ["0x" + "f" * 17, "9" * 21, "-1", "1e9", "256 MiB", "\xff", "1" * (MOST_BYTES + 1)])
def test_a_number_that_is_none_is_unknown(machine: Path, number: str) -> None:
    for name in ("mem0/pmem/size", "region0/interleave_granularity", "region0/size"):
        write(machine, f"{DEVICES}/{name}", number)
    found = values(machine)
    assert found["CXL mem0"] == "size unknown, serial 0x3"
    assert found["CXL region0"] == "size unknown on mem1 mem0, 2 ways"


def test_the_largest_numbers_end(machine: Path) -> None:
    write(machine, f"{DEVICES}/region0/interleave_ways", "0xffffffffffffffff\n")
    assert values(machine)["CXL region0"].split(" on ")[1].split(",")[0] == "mem1 mem0" + " ?" * 14


def test_only_so_many_entries_are_read(tmp_path: Path) -> None:
    for index in range(MOST_ENTRIES + 3):
        (tmp_path / DEVICES / f"mem{index}").mkdir(parents=True)
    assert sum(what.startswith("CXL mem") for what in values(tmp_path)) == MOST_ENTRIES
