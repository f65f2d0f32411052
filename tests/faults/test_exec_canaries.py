"""Each way to load, store, flush and fence is seen: a mistake in it is found at its line, and in no bytes beside it.

tests/faults/programs/canaries.c has the ways: what compilers make of C, what they expand, vector instructions by their
intrinsics, and functions of the C library.
"""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.programs.compile import compiler_arguments
from faults.programs.compile import main as compile_with
from faults.programs.findings import KINDS, ProgramFinding
from faults.programs.positions import located
from faults.programs.result import RunChoice, RunResult
from tests.helpers.compilers import use_compiler
from tests.helpers.pool_programs import MODES, SOURCES, built, kinds, on_x86, ran
from tests.helpers.tables import with_rows

pytestmark = on_x86
TEXT = range(64, 128)  # where the bytes lie that a canary accesses
WAYS = re.findall(r"(AVX512\s+)?(PUT|NT|GET|FLUSH|FENCE)\(\s*(\w+),\s", (SOURCES / "canaries.c").read_text())
MISTAKES = {
    "put": ("not-flushed", "store"),
    "nt": ("fence-too-late", "store"),
    "get": ("no-invalidate", "access"),
    "flush": ("", ""),
    "fence": ("", ""),
}


def ways() -> list[str]:
    found = [(target, f"{kind.lower()}_{name}") for target, kind, name in WAYS if name != "way"]
    assert len(found) == len(set(found)) > 80
    cpu = Path("/proc/cpuinfo").read_text()
    return [way for target, way in found if not target or (" avx512bw " in cpu and " avx512vl " in cpu)]


def told(way: str, mode: str, result: RunResult) -> Iterator[str]:
    """What is wrong with the findings of a canary."""
    kind, role = MISTAKES[way.partition("_")[0]]
    inside = mode == "preloaded" and re.match("get_.*printf", way)  # the C library's own loads are seen, as vectors
    found = [ProgramFinding.one(bytes(raw)) for raw in result.findings]
    meant = [its for its in found if KINDS[its.kind].name == kind]
    if kind and not meant:
        yield f"no {kind}"
    for its in (its for its in found if KINDS[its.kind].name != "dirty-at-exit"):
        if not kind or (its.offset not in TEXT and not inside):
            yield f"{KINDS[its.kind].name} at byte {its.offset}"
    for place in located([result.places[its.site(role)] for its in meant]):
        if not inside and (place is None or not place.at.file.endswith("canaries.c")):
            yield f"at {place}"
    if result.unannounced:
        yield "found without an announcement"


@pytest.mark.deep(rows=lambda mode, syntax, compiler: (mode, syntax, compiler) != ("recompiled", "att", "gcc"))
@pytest.mark.parametrize(
    ("mode", "syntax", "compiler"),
    [
        ("recompiled", "att", "gcc"),
        ("recompiled", "att", "clang"),
        ("recompiled", "intel", "gcc"),
        ("preloaded", "att", "gcc"),
    ],
)
def test_each_way_to_access_a_pool_is_seen(
    monkeypatch: pytest.MonkeyPatch, mode: str, syntax: str, compiler: str
) -> None:
    use_compiler(monkeypatch, compiler)
    assert missed(built(mode, "canaries.c", f"-masm={syntax}"), mode, ways()) == {}


# The program's own flags must not undo what cxlemu cc adds.
UNDOING = {
    "gcc": ("-O3 -mavx2 -ftree-vectorize", "-O2 -fopenmp-simd -fno-sanitize=thread -fbuiltin"),
    "clang": (
        "-O2",
        "-O3 -mavx2 -fvectorize -fslp-vectorize -mprefer-vector-width=256",
        "-O2 -fopenmp-simd -fno-sanitize=all -fintegrated-as",
    ),
}


@pytest.mark.deep(rows=lambda flags: "-fopenmp-simd" not in flags)
@pytest.mark.parametrize(("compiler", "flags"), [(name, flags) for name, many in UNDOING.items() for flags in many])
def test_plain_loads_and_stores_are_seen_whatever_a_compiler_makes_of_them(
    monkeypatch: pytest.MonkeyPatch, compiler: str, flags: str
) -> None:
    use_compiler(monkeypatch, compiler)
    its = built("recompiled", "canaries.c", *flags.split())
    assert missed(its, "recompiled", [way for way in ways() if "_plain_" in way]) == {}


@pytest.mark.parametrize("flag", ["-fno-sanitize=thread", "-fno-sanitize=all", "-fsanitize-ignorelist=list"])
def test_no_flag_exempts_a_part_of_a_program(flag: str) -> None:
    """A program without any announcement is preloaded, but one of several files would go unseen."""
    assert flag not in compiler_arguments("c", [flag, "queue.c"], clang=flag.endswith("list"))


def missed(its: Path, mode: str, canaries: list[str]) -> dict[str, list[str]]:
    """What is wrong with which canaries of a program."""
    missed = {}
    for way in canaries:
        result = ran(f"{its} /dev/dax0.0 {way} w : {its} /dev/dax0.0 {way} r", RunChoice(None, 0))
        assert [one.code for one in result.exits] == [0, 0], way
        if wrong := list(told(way, mode, result)):
            missed[way] = wrong
    return missed


@pytest.mark.parametrize("mode", MODES)
def test_functions_of_strings_return_what_they_return_outside_a_pool(mode: str) -> None:
    result = ran(f"{built(mode, 'tokens.c')} /dev/dax0.0", RunChoice(None, 0))
    assert [one.code for one in result.exits] == [0]
    assert {KINDS[ProgramFinding.one(bytes(raw)).kind].name for raw in result.findings} == {"dirty-at-exit"}


@pytest.mark.parametrize("mode", MODES)
def test_calls_that_succeed_leave_errno_as_it_is(mode: str) -> None:
    result = ran(f"{built(mode, 'errors.c')} /dev/shm/errors", RunChoice(1, 1), pool="/dev/shm/errors=4M")
    assert [(one.code, one.output) for one in result.exits] == [(0, "")]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", ["opens", "calls", "moves", "stops", "open", "openat", "openat2", "links", "folder"])
def test_a_pool_is_followed_whichever_way_the_system_gives_it(tmp_path: Path, mode: str, how: str) -> None:
    its = f"{built(mode, 'system.c')} {tmp_path} pool {how}"
    (tmp_path / "linked").symlink_to(tmp_path)
    named = tmp_path / "linked" if how == "folder" else tmp_path
    result = ran(f"{its} write : {its} read", RunChoice(None, 0), pool=f"{named}/pool=2M")
    assert [one.code for one in result.exits] == [0, 0]
    assert "not-flushed" in kinds(result) and not (tmp_path / "pool").exists()
    assert any("is stopped by a signal" in note for note in result.notes) == (how == "stops")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", ["execve", "execle", "execvpe", "fexecve", "preloads", "clearenv", "spawn"])
def test_a_process_takes_part_whichever_environment_it_is_given(tmp_path: Path, mode: str, how: str) -> None:
    its = f"{built(mode, 'system.c')} {tmp_path} pool {how}"
    result = ran(f"{its} write : {its} read", RunChoice(None, 0), pool=f"{tmp_path}/pool=2M")
    assert [one.code for one in result.exits] == [0, 0]
    assert "not-flushed" in kinds(result) and not (tmp_path / "pool").exists()


@pytest.mark.parametrize("how", ["late", "daemon", "_Fork", "SYS_fork", "forkpty", "clone", "clone3"])
def test_a_process_takes_part_whichever_call_makes_it(tmp_path: Path, how: str) -> None:
    its = f"{built('recompiled', 'system.c')} {tmp_path} pool {how}"
    result = ran(f"{its} write : {its} read", RunChoice(None, 0), pool=f"{tmp_path}/pool=2M")
    assert [one.code for one in result.exits] == [0, 0]
    assert "not-flushed" in kinds(result)


@with_rows(("shares", "clone"), ("numbers", "clone"), ("clears", "clone3"), ("unshare", "unshare"))
def test_a_clone_that_is_not_followed_is_refused(how: str, call: str, tmp_path: Path) -> None:
    its = f"{built('recompiled', 'system.c')} {tmp_path} pool {how}"
    result = ran(f"{its} write : {its} read", RunChoice(None, 0), pool=f"{tmp_path}/pool=2M")
    said = [one.output for one in result.exits if one.code == 2]
    assert len(said) == 1 and re.search(rf"cxlemu: {call} with the flags 0x\w+ is not followed", said[0])


@with_rows(
    ("pthread_mutex_lock(its), pthread_mutex_unlock(its)",),
    ("pthread_mutex_trylock(its)",),
    ("mtx_init(its, mtx_plain), mtx_unlock(its)",),
    ("mtx_lock(its), mtx_unlock(its)",),
    ("mtx_trylock(its)",),
    ("pthread_mutex_timedlock(its, &(struct timespec){1})",),
    ("pthread_rwlock_tryrdlock(its)",),
    ("pthread_rwlock_trywrlock(its)",),
    ("pthread_spin_init(its, PTHREAD_PROCESS_SHARED)",),
    ("pthread_barrier_init(its, NULL, 2)",),
    ("sem_init(its, 1, 1)",),
    ("sem_post(its)",),
)
def test_a_lock_in_a_pool_is_told_at_the_call_that_changes_it(call: str, tmp_path: Path) -> None:
    source = tmp_path / "lock.c"
    source.write_text(f"""#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/mman.h>
#include <threads.h>
int main(void) {{
    void *its = mmap(NULL, 2 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, open("/dev/dax0.0", O_RDWR), 0);
    return {call};
}}
""")
    result = ran(str(built("recompiled", source)), RunChoice(None, 0))
    found = [ProgramFinding.one(bytes(raw)) for raw in result.findings]
    assert kinds(result) == {"dirty-at-exit"} and result.unannounced == 0
    places = located([result.places[its.site("store")] for its in found])
    assert {place.at.line if place else 0 for place in places} == {8}


FROM_CHARS = """#include <charconv>
#include <cstring>
#include <cxl.h>
#include <fcntl.h>
#include <sys/mman.h>
int main(int, char **words) {
    auto *p = static_cast<volatile char *>(mmap(nullptr, 2 << 20, 3, MAP_SHARED, open(words[1], O_RDWR), 0));
    char *text = const_cast<char *>(p) + 128;
    TYPE value = 0;
    if (words[2][0] == 'w') {
        std::memcpy(text, "-2.5e1,", 7);
        *p = 1, cxl_flush(const_cast<char *>(p), 1), cxl_fence();
        return 0;
    }
    while (!*p) cxl_invalidate(const_cast<char *>(p), 1);
    if (std::from_chars(text, text + 64, value).ec == std::errc() && value != -25) return 1;
    return 0;
}
"""


@pytest.mark.deep(rows=lambda which: which == "double")
@pytest.mark.parametrize("which", ["float", "double", "long double"])
def test_a_floating_point_number_that_is_parsed_is_loaded(which: str, tmp_path: Path) -> None:
    (tmp_path / "parses.cc").write_text(FROM_CHARS)
    its = built("recompiled", tmp_path / "parses.cc", "-std=c++17", f"-DTYPE={which}", language="c++")
    result = ran(f"{its} /dev/dax0.0 w : {its} /dev/dax0.0 r", RunChoice(None, 0))
    found = [ProgramFinding.one(bytes(raw)) for raw in result.findings]
    loads = [result.places[its.site("access")] for its in found if KINDS[its.kind].name == "not-flushed"]
    assert {place.at.line for place in located(loads) if place} == {16}


STRICT = """#include <atomic>
extern "C" void AnnotateHappensBefore(const char *, int, void *);
extern "C" void __tsan_acquire(void *);
extern "C" void *__tsan_create_fiber(unsigned);
int main() {
    int it = 0;
    std::atomic_thread_fence(std::memory_order_seq_cst);
    AnnotateHappensBefore("", 1, &it);
    __tsan_acquire(&it);
    return __tsan_create_fiber(0) != nullptr;
}
"""


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_a_program_without_warnings_that_tells_a_sanitizer_of_its_order_is_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, compiler: str
) -> None:
    use_compiler(monkeypatch, compiler)
    (tmp_path / "strict.cc").write_text(STRICT)
    (tmp_path / "empty.c").write_text("int main(void) { return 0; }\n")
    flags = ("-O2", "-Werror", "-Wall", "-Wextra", "-pedantic-errors", "-o", str(tmp_path / "its"))
    assert compile_with("c", [str(tmp_path / "empty.c"), "-std=c99", *flags]) == 0
    assert compile_with("c++", [str(tmp_path / "strict.cc"), "-std=c++11", *flags]) == 0
    assert subprocess.run([tmp_path / "its"]).returncode == 0
