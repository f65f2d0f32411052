"""Ranges in which caches are coherent between hosts: locks work there, and the rules for everything else stay."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from cxlemu.cli import main
from cxlemu.errors import ArgumentError
from faults.programs.commands import parse_coherent, parse_pools
from faults.programs.result import RunChoice, RunResult
from tests.helpers.pool_programs import CHOICES, MODES, built, is_quiet, kinds, on_x86
from tests.helpers.pool_programs import ran as ran_words
from tests.helpers.tables import with_rows

Programs = dict[tuple[str, str], Path]


@pytest.fixture
def programs() -> Programs:
    flags = ("RIGHT", "NO_FLUSH", "NO_INVALIDATE", "PAST", "OUTSIDE")
    both = [(flag, mode) for flag in flags for mode in MODES]
    return {(flag, mode): built(mode, "coherent.c", f"-D{flag}") for flag, mode in both}


def ran(target: Path, choice: RunChoice, *coherent: str, pool: str = "/dev/dax0.0=2M", free: bool = False) -> RunResult:
    return ran_words(f"{target} /dev/dax0.0 : {target} /dev/dax0.0", choice, *coherent, pool=pool, free=free)


TICKETS = """#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
int main(int count, char **words) {
    const int file = open(words[count - 1], O_RDWR);
    uint64_t *lock = mmap(0, 2 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    for (int k = 0; k < 10; k++) {
        const uint64_t mine = __atomic_fetch_add(&lock[0], 1, __ATOMIC_ACQ_REL);
        for (uint64_t now;;) {
            __asm__ volatile("movq %1, %0" : "=r"(now) : "m"(lock[1]) : "memory");
            if (now == mine) break;
            __asm__ volatile("pause" ::: "memory");
        }
        lock[2]++;
        __atomic_store_n(&lock[1], mine + 1, __ATOMIC_RELEASE);
    }
    return 0;
}
"""


@pytest.mark.parametrize("mode", MODES)
class TestOnCoherentRanges:
    pytestmark = on_x86

    @pytest.mark.parametrize("range_", ["0+4K", "all"])
    def test_a_lock_works(self, programs: Programs, mode: str, range_: str) -> None:
        for choice in CHOICES:
            assert is_quiet(ran(programs["RIGHT", mode], choice, range_)), choice

    def test_a_wait_by_loads_in_inline_assembly_passes_the_turn_on(self, mode: str, tmp_path: Path) -> None:
        (tmp_path / "tickets.c").write_text(TICKETS)
        its = built(mode, tmp_path / "tickets.c", "-O2")
        for choice in CHOICES:
            result = ran(its, choice, "all")
            assert is_quiet(result) and result.notes == [], choice

    def test_a_lock_does_not_work_elsewhere(self, programs: Programs, mode: str) -> None:
        found = ran(programs["RIGHT", mode], RunChoice(None, 0), "1M+4K")
        assert "locked-across-hosts" in kinds(found)
        assert list(found.unfired.values()) == ["--coherent 1M+4K changed nothing: no program touched it in pool 0"]

    def test_the_rules_for_everything_else_stay(self, programs: Programs, mode: str) -> None:
        for choice in CHOICES[:3]:
            assert "not-flushed" in kinds(ran(programs["NO_FLUSH", mode], choice, "0+4K"))
            missing = kinds(ran(programs["NO_INVALIDATE", mode], choice, "0+4K"))
            assert missing and missing <= {"no-invalidate", "invalidated-early"}

    def test_where_all_is_coherent_no_step_is_missing(self, programs: Programs, mode: str) -> None:
        for flag in ("NO_FLUSH", "NO_INVALIDATE", "PAST"):
            assert is_quiet(ran(programs[flag, mode], RunChoice(3, 3), "all"))


@pytest.mark.parametrize("mode", ["recompiled"])
class TestBeginnings:
    pytestmark = on_x86

    def test_bytes_that_a_pool_begins_with_are_no_stores(self, programs: Programs, mode: str, tmp_path: Path) -> None:
        (tmp_path / "content").write_bytes(bytes(4096 + 64) + b"x" * ((2 << 20) - 4096 - 64))
        found = ran(programs["RIGHT", mode], RunChoice(None, 0), "all", pool=f"/dev/dax0.0={tmp_path / 'content'}")
        assert is_quiet(found)

    def test_a_store_is_its_writers_also_where_the_writer_makes_no_further_step(
        self, programs: Programs, mode: str
    ) -> None:
        its = programs["OUTSIDE", mode]
        words = f"{its} /dev/dax0.0 publish : {its} /dev/dax0.0 read"
        found = ran_words(words, RunChoice(None, 0), "0+4K")
        assert kinds(found) == {"no-invalidate"} and found.unannounced == 0

    def test_threads_side_by_side(self, programs: Programs, mode: str) -> None:
        found = ran(programs["RIGHT", mode], RunChoice(1, 1), "0+4K", free=True)
        assert found.findings == [] and [one.code for one in found.exits] == [0, 0]


LOCKS = ("ticket", "plain-ticket", "exchange", "look-first", "compare", "plain-release", "readers", "queue", "peterson")


def of_locks(choice: RunChoice, lock: str, *words: str, free: bool = False) -> RunResult:
    its = built("recompiled", "locks.c")
    hosts = (" ".join((str(its), "/dev/dax0.0", str(host), lock, *words)) for host in range(2))
    return ran_words(" : ".join(hosts), choice, "0+4K", free=free)


class TestWhatHostsLearnThere:
    pytestmark = on_x86

    @pytest.mark.parametrize("lock", [*LOCKS, "assembly"])
    def test_locks_work_side_by_side(self, lock: str) -> None:
        for seed in range(4):
            assert is_quiet(of_locks(RunChoice(seed, seed), lock, free=True)), seed

    @pytest.mark.parametrize("lock", [lock for lock in LOCKS if lock != "readers"])  # its readers flush, too
    def test_mistakes_under_a_lock_are_found_side_by_side(self, lock: str) -> None:
        for mistake, kind in (("no-flush", "not-flushed"), ("no-invalidate", "no-invalidate")):
            assert kind in kinds(of_locks(RunChoice(1, 1), lock, "8", mistake, free=True))

    @pytest.mark.parametrize("load", ["look-at-atomic", "look-at-plain"])
    def test_a_load_has_not_seen_what_was_stored_behind_it(self, tmp_path: Path, load: str) -> None:
        assert is_quiet(of_locks(RunChoice(1, 1), load, str(tmp_path), free=True))

    def test_an_atomic_load_has_seen_what_it_returns(self, tmp_path: Path) -> None:
        found = of_locks(RunChoice(1, 1), "sees", str(tmp_path), free=True)
        assert kinds(found) == {"no-invalidate"} and {one.code for one in found.exits} == {0}

    def test_a_store_beside_another_ones_bytes_hides_them_not(self) -> None:
        for choice in CHOICES:
            assert is_quiet(of_locks(choice, "wait")), choice


@with_rows(
    (["hello"], "OFFSET+SIZE, such as 0+64K, or 'all' is expected"),
    (["0+100"], "multiples of 4 KiB"),
    (["64+4K"], "multiples of 4 KiB"),
    (["0+0"], "multiples of 4 KiB"),
    (["0+x"], "is not a size in bytes"),
    (["1M+2M"], "ends after the pool, which has 2 MiB"),
    (["2:all"], "there are pools 0 to 1"),
    (["0+8K", "0x1000+4K"], "it overlaps --coherent 0+8K"),
    (["all", "1:0+4K"], "it overlaps --coherent all"),
    ([f"{8 * k}K+4K" for k in range(17)], "16 ranges at most, not 17"),
)
def test_what_is_no_range_is_refused(texts: list[str], says: str) -> None:
    with pytest.raises(ArgumentError, match="--coherent") as raised:
        parse_coherent(texts, parse_pools(["/dev/dax0.0=2M", "/dev/dax1.0=2M"]))
    assert says in str(raised.value)


def test_ranges_of_several_pools() -> None:
    found = parse_coherent(["0x1000+4K", "1:all"], parse_pools(["/dev/dax0.0=2M", "/dev/dax1.0=4M"]))
    assert [(its.pool, its.begin, its.end) for its in found] == [(0, 4096, 8192), (1, 0, 4 << 20)]


class TestCommand:
    pytestmark = on_x86

    def test_the_command_says_what_it_did_not_judge_and_what_had_no_effect(
        self, programs: Programs, litmus: Path
    ) -> None:
        recompiled, preloaded = (str(programs["RIGHT", mode]) for mode in MODES)
        begin = ["exec", "--pool", "/dev/dax0.0=2M", "--coherent", "0+4K", "--seeds", "1", "--no-worst-case"]
        two = ["--", recompiled, "/dev/dax0.0", ":", recompiled, "/dev/dax0.0"]
        quiet = CliRunner().invoke(main, [*begin, *two])
        assert quiet.exit_code == 0 and "(--coherent 0+4K)" in quiet.output
        past = [
            "exec",
            "--pool",
            "/dev/shm/past=2M",
            "--coherent",
            "all",
            "--",
            str(litmus),
            "/dev/shm/past",
            "n:0:1",
            "x",
        ]
        assert CliRunner().invoke(main, past).exit_code == 0
        idle = CliRunner().invoke(main, [*begin, "--coherent", "1M+4K", *two])
        assert idle.exit_code == 3 and "--coherent 1M+4K changed nothing" in idle.output
        free = CliRunner().invoke(main, [*begin, "--free", "--", preloaded, "/dev/dax0.0"])
        assert free.exit_code == 2 and "--coherent" in free.output
        every = CliRunner().invoke(main, ["exec", "--pool", "/dev/dax0.0=2M", "--coherent", "all", "--every", *two])
        assert every.exit_code == 2 and "--coherent" in every.output
