"""Copies by devices (cxl_device_copy) happen at times of their own; until their end, nobody may use the bytes."""

import json
import shlex
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from cxlemu.cli import main
from cxlemu.program import include_dir
from tests.faults.test_exec_every import EXAMPLES
from tests.helpers.pool_programs import build, on_x86

pytestmark = on_x86
ONE = ("--worst-case", "--seed", "0", "--no-shrink")
EVERY = ("--every", "--no-shrink", "--budget", "300s")
MEMORY = ("--dma-writes", "memory")
ASKS = "cxl_device_copy(m->words, words, sizeof words, &copied);"


@pytest.fixture(scope="module")
def devices() -> Path:
    return build("devices.c", f"-I{EXAMPLES}")


def execute(program: Path, pool: str, flags: tuple[str, ...], stages: str) -> tuple[int, list[dict[str, object]], str]:
    """Return the exit code, the findings and what was written; ``P`` stands for the program."""
    words = [str(program) if word == "P" else word for word in stages.split()]
    its = CliRunner().invoke(main, ["exec", "--pool", pool, *flags, "--json", "-", "--", *words])
    assert its.stdout, its.output
    return its.exit_code, json.loads(its.stdout)["found"]["findings"], its.output


@pytest.mark.parametrize("flags", [ONE, EVERY], ids=["one", "every"])
@pytest.mark.parametrize(
    ("mistake", "kind"), [("EARLY", "copy-not-ended"), ("UNFLUSHED", "not-flushed"), ("STALE", "no-invalidate")]
)
def test_a_mistake_of_the_example_is_its_finding(
    tmp_path: Path, mistake: str, kind: str, flags: tuple[str, ...]
) -> None:
    program = build(EXAMPLES / "device_copy.c", f"-D{mistake}")
    code, (found,), _ = execute(program, "/dev/shm/message", flags, "P send : P receive")
    assert (code, found["kind"], found["host"], found["other_host"]) == (1, kind, 1, 0)
    source = (EXAMPLES / "device_copy.c").read_text().split("\n")
    lines = {step["role"]: source[step["line"] - 1].strip() for step in found["steps"]}  # type: ignore[attr-defined]
    assert lines["store"] == ASKS and lines["access"].startswith("cxl_device_copy(words, m->words")


def test_a_round_is_left_out_where_another_host_has_made_steps_before_it() -> None:
    """Else the next run asks for it, and ends where it would go round again: the search has no verdict."""
    right = build(EXAMPLES / "device_copy.c")
    assert execute(right, "/dev/shm/message", EVERY, "P send : P receive")[:2] == (0, [])


def test_past_the_cache_no_flush_is_missing_and_everything_else_is(tmp_path: Path) -> None:
    unflushed = build(EXAMPLES / "device_copy.c", "-DUNFLUSHED")
    assert execute(unflushed, "/dev/shm/message", (*MEMORY, *ONE), "P send : P receive")[0] == 0
    early = build(EXAMPLES / "device_copy.c", "-DEARLY")
    code, (found,), _ = execute(early, "/dev/shm/message", (*MEMORY, *ONE), "P send : P receive")
    assert (code, found["kind"]) == (1, "copy-not-ended")
    again = CliRunner().invoke(main, shlex.split(str(found["replay"]))[1:])
    assert "--dma-writes memory" in str(found["replay"]) and again.exit_code == 1
    assert "another trace" not in again.output


USES = {
    "a flush before the end is none": (EVERY, "P flushed-early :: @1 P read", ["not-flushed"]),
    "past the cache it is not needed": ((*MEMORY, *EVERY), "P flushed-early :: @1 P read", []),
    "nobody waits for it": (ONE, "P left", ["dirty-at-exit"]),
    "in time": (EVERY, "P in-time : P read", []),
    "in time, past the cache": ((*MEMORY, *EVERY), "P in-time : P read", []),
    "one after another": (("--seeds", "2", "--no-shrink"), "P many", []),
    "two at a time": (("--seeds", "2", "--no-shrink"), "P both", []),
}


@pytest.mark.parametrize("name", USES)
def test_bytes_of_a_copy_may_be_used_once_it_has_ended(devices: Path, name: str) -> None:
    flags, stages, kinds = USES[name]
    code, found, _ = execute(devices, "/dev/shm/devices", flags, stages)
    assert (code, [one["kind"] for one in found]) == (int(bool(kinds)), kinds)


@pytest.mark.parametrize(
    ("stages", "kind"),
    [
        ("P load", "copy-not-ended"),
        ("P store", "copy-not-ended"),
        ("P twice", "copy-not-ended"),
        ("P beside : P look-beside", "copy-not-ended"),
        ("P fenced-early : P await", "fence-too-late"),
    ],
)
def test_what_comes_too_early_is_found_in_each_run(devices: Path, stages: str, kind: str) -> None:
    """Also where the copy was made in time, as the device may take longer."""
    flags = ("--seeds", "10", "--keep-going", "--no-shrink", *(MEMORY if kind == "fence-too-late" else ()))
    code, (found,), _ = execute(devices, "/dev/shm/devices", flags, stages)
    assert (code, found["kind"], found["runs"]) == (1, kind, 13)


@pytest.mark.parametrize(("dma", "seen"), [("cache", {"0"}), ("memory", {"0", "1"})])
def test_every_tries_all_times_at_which_a_copy_may_happen(devices: Path, dma: str, seen: set[str]) -> None:
    """What is on its way to the pool may be there for the other host, or not; what stays in the cache is not."""
    from faults.programs.commands import parse_commands, parse_pools
    from faults.programs.result import ExecSetting
    from tests.helpers.every_programs import verdicts

    commands = parse_commands(f"{devices} left : {devices} look".split(), 2)
    setting = ExecSetting(commands, parse_pools(["/dev/shm/devices=2M"]), check=False, every=True, dma_writes=dma)
    assert {loaded for loaded, *_ in verdicts(setting)[0]} == seen


@pytest.mark.parametrize("recovers", ["@0", "@1"])
@pytest.mark.parametrize("every", [(), ("--every",)], ids=["one", "every"])
def test_a_device_dies_with_its_host(devices: Path, every: tuple[str, ...], recovers: str) -> None:
    """Nobody can wait for the copy then. And each run of the search comes to where it was to crash."""
    flags = (*every, "--crash", "every", "--no-shrink", "--budget", "300s")
    code, found, output = execute(devices, "/dev/shm/devices", flags, f"P in-time :: {recovers} P repair")
    assert (code, found) == (0, []), output


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("again", "cxl_device_copy: nobody has seen this event's last copy (cxl_device_wait)"),
        ("crowd", "cxl_device_copy: more than 64 copies whose events nobody has seen"),
    ],
)
def test_a_program_that_asks_for_it_wrongly_ends_with_a_sentence(devices: Path, what: str, says: str) -> None:
    code, _, output = execute(devices, "/dev/shm/devices", ONE, f"P {what}")
    assert code == 1 and says in output


def test_devices_that_copy_nothing_are_no_test_of_where_they_write(devices: Path) -> None:
    code, _, output = execute(devices, "/dev/shm/devices", (*MEMORY, *ONE), "P look")
    assert code == 3 and "--dma-writes memory changed nothing: no device copied to a pool" in output


HOOKS = """
#define CXL_DEVICE_HOOKS
#include <cxl.h>
void cxl_hook_copy(volatile void *to, const volatile void *from, size_t nbytes, cxl_event *event) {
    event->copy = *(const volatile uint64_t *)from + nbytes, *(volatile uint64_t *)to = 0;
}
int cxl_hook_query(cxl_event *event) { return event->copy == 13; }
void cxl_hook_wait(cxl_event *event) { event->copy++; }
"""


@pytest.mark.parametrize(("hooks", "wanted"), [("", (5, 0)), (HOOKS, (0, 14))], ids=["at once", "hooks"])
def test_outside_of_a_run_the_processor_copies_or_a_hook(tmp_path: Path, hooks: str, wanted: tuple[int, int]) -> None:
    source = tmp_path / "plain.c"
    source.write_text(
        f"""{hooks or "#include <cxl.h>"}
#include <stdio.h>
int main(void) {{
    uint64_t from = 5, to = 0;
    cxl_event event = {{0}};
    cxl_device_copy(&to, &from, sizeof to, &event);
    const int ended = cxl_device_query(&event);
    cxl_device_wait(&event);
    printf("%d %d %d\\n", (int)to, ended, (int)event.copy);
}}"""
    )
    words = ["gcc", "-Wall", "-Wextra", "-Werror", f"-I{include_dir()}", str(source), "-o", str(tmp_path / "plain")]
    subprocess.run(words, check=True, timeout=60)
    done = subprocess.run([tmp_path / "plain"], capture_output=True, text=True, timeout=60)
    to, event = wanted
    assert done.stdout.split() == [str(to), "1", str(event)]
