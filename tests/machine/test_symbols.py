"""External names in C begin with the prefix of their part, as in SQLite and Redis: `cache_flush`, `pass_fence`."""

import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import pytest

ROOT = Path(__file__).parents[2]
MACHINE = "cxlemu/native"
# File -> its prefixes: of the part that it belongs to and, where a file is about several types, of each type.
PREFIXES = {
    f"{MACHINE}/address.c": ("address_",),
    f"{MACHINE}/adversary.c": ("adversary_",),
    f"{MACHINE}/bus_module.c": ("bus_",),
    f"{MACHINE}/cache.c": ("cache_",),
    f"{MACHINE}/check.c": ("program_",),
    f"{MACHINE}/borrowed.c": ("borrowed_",),
    f"{MACHINE}/courier.c": ("courier_",),
    f"{MACHINE}/program_module.c": ("program_",),
    f"{MACHINE}/pulse.c": ("pulse_",),
    f"{MACHINE}/several.c": ("several_",),
    f"{MACHINE}/cost/compute.c": ("cost_",),
    f"{MACHINE}/cost/instruction.c": ("cost_",),
    f"{MACHINE}/cost/tables.c": ("cost_",),
    f"{MACHINE}/cost/transfer.c": ("cost_",),
    f"{MACHINE}/copy.c": ("copy_",),
    f"{MACHINE}/damage.c": ("damage_",),
    f"{MACHINE}/dispatch_cache.c": ("dispatch_",),
    f"{MACHINE}/executor.c": ("program_",),
    f"{MACHINE}/fold.c": ("fold_",),
    f"{MACHINE}/hostlock.c": ("host_lock_",),
    f"{MACHINE}/lines.c": ("lines_",),
    f"{MACHINE}/lines_module.c": ("lines_",),
    f"{MACHINE}/lock_module.c": ("host_lock_",),
    f"{MACHINE}/mapping_module.c": ("mapping_",),
    f"{MACHINE}/measure/module.c": ("PyInit__measure",),
    f"{MACHINE}/module.c": ("PyInit__native",),
    f"{MACHINE}/operation.c": ("operation_",),
    f"{MACHINE}/pace.c": ("pace_",),
    f"{MACHINE}/pace_module.c": ("pace_",),
    f"{MACHINE}/peer_memory.c": ("peer_", "process_"),
    f"{MACHINE}/program_type.c": ("program_",),
    f"{MACHINE}/told.c": ("told_",),
    f"{MACHINE}/rows.c": ("rows_",),
    f"{MACHINE}/sequencer.c": ("sequencer_",),
    f"{MACHINE}/shadow.c": ("shadow_",),
    f"{MACHINE}/shadow_executor.c": ("shadow_",),
    f"{MACHINE}/shadow_module.c": ("shadow_",),
    f"{MACHINE}/verbs.c": ("verb_",),
    f"{MACHINE}/virtual/engine.c": ("simulation_",),
    f"{MACHINE}/virtual/module.c": ("PyInit__virtual",),
    f"{MACHINE}/virtual/packed.c": ("packed_",),
    "faults/explore/native/line.c": ("line_",),
    "faults/explore/native/module.c": ("PyInit__search",),
    "faults/explore/native/reduce.c": ("reduction_",),
    "faults/explore/native/rows.c": ("rows_",),
    "faults/explore/native/search.c": ("search_",),
    "faults/explore/native/settle.c": ("settle_",),
    "faults/explore/native/table.c": ("table_",),
    "faults/litmus/native/straight.c": ("PyInit__straight",),
    "faults/lockstep/native/module.c": ("PyInit__world",),
    "faults/lockstep/native/world.c": ("world_",),
    "faults/prove/native/bells.c": ("bell_",),
    "faults/prove/native/clock.c": ("clock_", "drain_", "pass_"),
    "faults/prove/native/kernels.c": ("kernel_",),
    "faults/prove/native/lines.c": ("cell_", "map_", "segment_"),
    "faults/prove/native/module.c": ("PyInit__pass",),
    "faults/prove/native/pass.c": ("pass_",),
    "faults/prove/native/rules.c": ("rule_", "pass_"),
    "faults/prove/native/touch.c": ("pass_",),
    "faults/prove/native/values.c": ("contents_", "term_"),
}
INTERPOSER = (
    "faults/programs/native/"  # takes the places of the C library's functions, and shows nothing else to programs
)
COMPILE = (
    *("cc", "-std=c11", "-O0", "-w", "-fPIC", "-fvisibility=hidden", "-c", f"-I{ROOT / MACHINE}"),
    *(f"-I{sysconfig.get_path('include')}", "-isystem", numpy.get_include()),
)


def object_of(source: Path, folder: Path) -> Path:
    """The object that the build left, if it is newer than all C; else one that is made in ``folder``."""
    newest = max(file.stat().st_mtime for part in ("cxlemu", "faults") for file in (ROOT / part).rglob("*.[ch]"))
    if source.is_relative_to(ROOT):
        for built in ROOT.glob(f"build/temp*/{source.relative_to(ROOT).with_suffix('.o')}"):
            if built.stat().st_mtime > newest:
                return built
    made = folder / (source.as_posix().replace("/", "-") + ".o")
    subprocess.run([*COMPILE, str(source), "-o", str(made)], check=True)
    return made


def external_names(source: Path, folder: Path) -> list[str]:
    """What an object defines for others, functions and data."""
    command = ["nm", "--extern-only", "--defined-only", "--format=posix", str(object_of(source, folder))]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in printed.splitlines()]


def without_prefix(source: Path, prefixes: tuple[str, ...], folder: Path) -> list[str]:
    return [name for name in external_names(source, folder) if not name.startswith(prefixes)]


def test_every_file_has_a_declared_prefix() -> None:
    sources = {str(file.relative_to(ROOT)) for part in ("cxlemu", "faults") for file in (ROOT / part).rglob("*.c")}
    assert {file for file in sources if not file.startswith(INTERPOSER)} == set(PREFIXES)


@pytest.mark.deep
def test_external_names_begin_with_the_prefix_of_their_part(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        found = dict(
            zip(
                PREFIXES,
                pool.map(lambda file: without_prefix(ROOT / file, PREFIXES[file], tmp_path), PREFIXES),
                strict=True,
            )
        )
    assert {file: names for file, names in found.items() if names} == {}


@pytest.mark.parametrize("code", ["int flush(void) { return 0; }", "int page_flushes;", "int lines_of = 1;"])
def test_a_name_without_prefix_is_found(tmp_path: Path, code: str) -> None:
    source = tmp_path / "page.c"
    source.write_text(
        f"static int flush_all(void) {{ return 1; }}\nint page_flush(void) {{ return flush_all(); }}\n{code}"
    )
    assert len(external_names(source, tmp_path)) == 2
    assert bool(without_prefix(source, ("page_",), tmp_path)) == ("page_flushes" not in code)
