"""Programs in C on emulated hosts: a ring queue that is right, its mistakes, and what a run promises."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from cxlemu.cli import main
from cxlemu.errors import ArgumentError, TokenError
from faults.programs.commands import hosts_of, parse_commands, parse_pool, parse_pools
from faults.programs.compile import compiler_arguments
from faults.programs.compile import main as compile_main
from faults.programs.folders import PREFIX
from faults.programs.judge import report_of
from faults.programs.replays import choice_of, read_token, shrink, token_of
from faults.programs.result import WORST_CASES, ExecSetting, RunChoice, RunEnding, RunResult
from faults.programs.run import run
from tests.helpers import commands
from tests.helpers.compilers import installed, use_compiler
from tests.helpers.device_answers import ANSWERS, read_answers
from tests.helpers.pool_programs import SOURCES, build, ran
from tests.helpers.tables import with_rows


def queue(program: Path, **setting: object) -> ExecSetting:
    """A queue that a first stage makes, and two hosts use."""
    path = str(program) + ".pool"
    words = f"{program} {path} new :: {program} {path} produce : {program} {path} consume".split()
    return ExecSetting(parse_commands(words, 2), parse_pools([path]), check=False, **setting)  # type: ignore[arg-type]


def first_failure(setting: ExecSetting, seeds: int = 10) -> RunResult | None:
    for choice in [RunChoice(None, 2), RunChoice(None, 0), *(RunChoice(k, k) for k in range(seeds))]:
        result = run(setting, choice)
        if result.failed:
            return result
        assert result.ending is RunEnding.ENDED
    return None


def worst(setting: ExecSetting, schedule: int = 2) -> RunResult:
    return run(setting, RunChoice(None, schedule))


# --- the queue -------------------------------------------------------------------------------------------------------


def test_a_right_queue_is_right() -> None:
    assert first_failure(queue(build("queue.c")), 12) is None


@pytest.mark.deep
def test_a_right_queue_is_right_for_fifty_seeds() -> None:
    assert first_failure(queue(build("queue.c")), 50) is None


MISTAKES = {
    1: "the entry is not flushed",
    3: "the producer's index is not flushed",
    4: "the consumer's index is not flushed",
    5: "the producer's index is not invalidated",
    6: "the consumer's index is not invalidated",
    7: "the header is not flushed",
    8: "the header's last word is not flushed",
    9: "the entry is invalidated before the index is known",
    10: "invalidates are ordered by sfence only",
}


@pytest.mark.parametrize("mistake", [pytest.param(n, marks=[pytest.mark.deep] if n > 5 else []) for n in MISTAKES])
def test_a_mistake_shows_in_the_program(mistake: int) -> None:
    """Also with nobody who checks: the queue hangs, or reads what it should not."""
    failed = first_failure(queue(build("queue.c", f"-DMISTAKE={mistake}"), idle_budget=8_000))
    assert failed is not None, MISTAKES[mistake]
    assert failed.ending in (RunEnding.FAILED, RunEnding.NO_PROGRESS)


# --- every access, by every compiler -------------------------------------------------------------------------------

COMPILERS = installed()  # pytest's header says which
FLAGS = ("-O0", "-O1", "-O2", "-O3", "-O3 -mavx2")


def store_then_load(program: Path) -> ExecSetting:
    path = str(program) + ".pool"
    words = f"{program} {path} store :: @1 {program} {path} load".split()
    return ExecSetting(parse_commands(words, 2), parse_pools([path]), check=False)


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("name", COMPILERS)
@pytest.mark.deep(rows=lambda name, flags: (name, flags) != ("gcc", "-O2"))
def test_every_access_is_announced(monkeypatch: pytest.MonkeyPatch, name: str, flags: str) -> None:
    if "avx2" in flags and " avx2 " not in Path("/proc/cpuinfo").read_text():
        pytest.skip("no AVX2")
    use_compiler(monkeypatch, name)
    program = build("accesses.cc", "-std=c++17", *flags.split(), language="c++")
    for choice in (RunChoice(None, 2), RunChoice(4, 4)):
        result = run(store_then_load(program), choice)
        assert [its.output for its in result.exits] == ["", ""]
        assert result.ending is RunEnding.ENDED and result.unannounced == 0


def test_a_store_that_nobody_announced_is_counted() -> None:
    result = worst(store_then_load(build("accesses.cc", "-std=c++17", "-DUNANNOUNCED", language="c++")))
    assert result.unannounced == 1


@pytest.mark.parametrize("name", COMPILERS)
@pytest.mark.deep(rows=lambda name: name not in ("gcc", "clang"))
def test_the_queue_by_each_compiler(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    use_compiler(monkeypatch, name)
    assert first_failure(queue(build("queue.c")), 4) is None
    assert first_failure(queue(build("queue.c", "-DMISTAKE=1"))) is not None


def test_assembly_beside_c_leaves_the_c_announced(tmp_path: Path) -> None:
    """Also where only the output is assembly: -S -o queue.s."""
    for words in (["main.c", "part.S", "-o", "both"], ["-S", "main.c", "-o", "main.s"]):
        assert "-include" in compiler_arguments("c", words, clang=False)
    (tmp_path / "main.c").write_text("int seven; int part(int *); int main(void) { return part(&seven) - 7; }\n")
    (tmp_path / "part.S").write_text(
        '#define X $7\n.globl part\npart: movl X, %eax\n ret\n.section .note.GNU-stack,"",@progbits\n'
    )
    words = compiler_arguments("c", ["main.c", "part.S", "-o", "both"], clang=False)
    subprocess.run(["gcc", *words], cwd=tmp_path, check=True, timeout=120)
    assert b"__tsan_func_entry" in (tmp_path / "both").read_bytes()


def test_intels_syntax_by_clang_is_refused() -> None:
    """Behind inline assembly it goes on in the other syntax."""
    with pytest.raises(ArgumentError, match="no assembler reads what clang writes for -masm=intel"):
        compiler_arguments("c", ["-masm=intel", "queue.c"], clang=True)
    assert "-masm=intel" in compiler_arguments("c", ["-masm=intel", "queue.c"], clang=False)


@pytest.mark.deep
def test_make_and_cmake_take_it_for_a_compiler(tmp_path: Path) -> None:
    if not shutil.which("cmake") or not shutil.which("make"):
        pytest.skip("there is no cmake or no make")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.10)\nproject(q C CXX)\nadd_library(part SHARED part.c)\n"
        "add_executable(q main.cc)\ntarget_link_libraries(q part)\n"
    )
    (tmp_path / "part.c").write_text("int part(int *at) { return ++*at; }\n")
    (tmp_path / "main.cc").write_text('extern "C" int part(int *);\nint main() { int x = 41; return part(&x) - 42; }\n')
    cxlemu_command = f"{sys.executable} -m cxlemu"
    environment = {**os.environ, "CC": f"{cxlemu_command} cc", "CXX": f"{cxlemu_command} c++"}
    for words in (["cmake", "-B", "build", "."], ["cmake", "--build", "build"], ["build/q"]):
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
    for binary in ("q", "libpart.so"):
        symbols = subprocess.run(["nm", "-D", tmp_path / "build" / binary], capture_output=True, text=True).stdout
        assert "__tsan_write4" in symbols or "__tsan_func_entry" in symbols


# --- the examples ----------------------------------------------------------------------------------------------------

EXAMPLES = {"queue": "send : receive", "hash_table": "0 : 1", "kv_index": "publish : read"}
BUGS = {"queue": "not-flushed", "hash_table": "fence-too-late", "kv_index": "no-invalidate"}
POOLS = {"queue": "/dev/shm/queue", "hash_table": "/dev/shm/table", "kv_index": "/dev/shm/kv"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.deep] if n != "queue" else []) for n in EXAMPLES])
def test_an_example_is_right_and_its_bug_is_found(name: str) -> None:
    def setting(*flags: str) -> ExecSetting:
        program = build(f"{SOURCES.parents[2]}/examples/programs/{name}.c", "-Wextra", "-Werror", *flags)
        words = [word for part in EXAMPLES[name].split() for word in ([part] if part == ":" else [str(program), part])]
        return ExecSetting(parse_commands(words, 2), parse_pools([POOLS[name]]))

    assert first_failure(setting(), 6) is None
    failed = first_failure(setting("-DBUG"))
    assert failed is not None
    assert [its.kind.name for its in report_of(setting("-DBUG"), [failed], (), ()).mistakes] == [BUGS[name]]


def test_a_run_side_by_side_is_not_said_to_be_made_again() -> None:
    its = build(f"{SOURCES.parents[2]}/examples/programs/queue.c", "-DBUG")
    words = f"--pool {POOLS['queue']} -- {its} send : {its} receive".split()
    done = CliRunner().invoke(main, ["exec", "--free", *words])
    assert done.exit_code == 1 and " --free -- " in done.output and "--replay" not in done.output


@pytest.mark.parametrize(
    ("name", "others"),
    [("queue", 0), ("queue", 2), pytest.param("hash_table", 0, marks=pytest.mark.deep)],
    ids=["queue", "queue that two more hosts watch", "hash table"],
)
def test_the_checker_keeps_256_bytes_of_a_line(name: str, others: int) -> None:
    """More only where a line has more than four hosts, or more than four versions that somebody may still load."""
    program = build(f"{SOURCES.parents[2]}/examples/programs/{name}.c")
    looks = [f"{how}:{64 * line}" for line in range(6) for how in "il"] * 2
    words = [word for part in EXAMPLES[name].split() for word in ([part] if part == ":" else [str(program), part])]
    for _ in range(others):
        words += [":", str(build("litmus.c")), POOLS[name], *looks]
    setting = ExecSetting(parse_commands(words, 2 + others), parse_pools([POOLS[name]]), hosts=2 + others)
    for choice in (*(RunChoice(None, k) for k in WORST_CASES), RunChoice(0, 0), RunChoice(4, 4)):
        result = run(setting, choice)
        assert result.ending is RunEnding.ENDED
        lines = 6 if name == "queue" else 48
        assert result.watched_lines == lines if choice.seed is None else result.watched_lines >= lines
        assert result.watched_bytes <= 256 * result.watched_lines


def test_lines_of_which_copies_were_torn_come_back_to_two_versions() -> None:
    copies = build(SOURCES.parents[2] / "studies/benchmarks/programs.c")
    result = ran(f"{copies} /dev/shm/copies copies 2000", RunChoice(1, 1), pool="/dev/shm/copies")
    assert result.watched_bytes < 1.1 * 128 * result.watched_lines


# --- threads and processes -----------------------------------------------------------------------------------------


def one_host(program: Path) -> ExecSetting:
    path = str(program) + ".pool"
    return ExecSetting(parse_commands([str(program), path], 1), parse_pools([path]), hosts=1, check=False)


def test_threads_of_one_host_are_coherent_and_repeat() -> None:
    setting = one_host(build("threads.c"))
    for choice in (RunChoice(None, 2), *(RunChoice(k, k) for k in range(6))):
        results = [run(setting, choice) for _ in range(2)]
        assert [its.ending for its in results] == [RunEnding.ENDED] * 2
        assert len({its.trace for its in results}) == 1 and not results[0].notes


# --- a device ---------------------------------------------------------------------------------------------------------


def test_a_pool_that_is_a_device_answers_as_linux_does() -> None:
    device = "/dev/dax0.0"
    commands = parse_commands([sys.executable, str(SOURCES / "device.py"), device], 1)
    (ended,) = run(ExecSetting(commands, parse_pools([f"{device}=64M"]), hosts=1), RunChoice(0, 0)).exits
    assert read_answers(ended.output) == ANSWERS
    assert "mmap() of 4096 bytes, not in whole pages of 2 MiB, is refused for /dev/dax0.0 (EINVAL)" in ended.output


def test_a_device_that_is_there_tells_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, device = tmp_path / "devices/dax0.0", "/dev/dax0.0"
    real.mkdir(parents=True)
    (real / "size").write_text("6291456\n")
    (real / "align").write_text("2097152\n")
    for link in ("dev/char/1:5", "bus/dax/devices/dax0.0"):
        (tmp_path / link).parent.mkdir(parents=True)
        (tmp_path / link).symlink_to(real)
    monkeypatch.setattr("cxlemu.pool.device.SYSFS", tmp_path)
    there, of_it, zero = Path.exists, Path.stat, Path("/dev/zero").stat()  # which has the number 1:5
    monkeypatch.setattr(Path, "exists", lambda path: str(path) == device or there(path))
    monkeypatch.setattr(Path, "stat", lambda path, **how: zero if str(path) == device else of_it(path, **how))
    pool = parse_pool(device)
    assert (pool.size, pool.capacity, pool.content, pool.dax) == (6 << 20, 6 << 20, None, True)
    (real / "size").write_text(f"{1 << 40}\n")
    with pytest.raises(ArgumentError, match=r"size 1T exceeds the limit of 64 GiB; write /dev/dax0\.0=64M"):
        parse_pool(device)


# --- what a run promises ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", [0, 2, 4])
def test_the_same_choice_is_the_same_trace(schedule: int) -> None:
    setting = queue(build("queue.c"))
    runs = [run(setting, RunChoice(7, schedule)) for _ in range(4)]
    assert len({(its.trace, its.steps) for its in runs}) == 1
    assert run(setting, RunChoice(8, schedule)).trace != runs[0].trace


@pytest.mark.deep
def test_one_token_is_one_trace_twenty_times() -> None:
    setting = queue(build("queue.c"))
    result = run(setting, RunChoice(3, 3))
    body = read_token(str(token_of(setting, result)))
    again = {run(setting, RunChoice(body.seed, body.schedule)).trace for _ in range(20)}
    assert again == {body.trace}


def test_the_turns_of_a_run_are_a_schedule() -> None:
    setting = queue(build("queue.c"))
    free = run(setting, RunChoice(5, 5))
    followed = run(setting, RunChoice(5, 5, tuple(free.turns)))
    assert (followed.trace, followed.turns) == (free.trace, free.turns)


def test_a_failure_is_shortened_and_its_token_fails_again() -> None:
    setting = queue(build("queue.c", "-DMISTAKE=1"))
    failed = worst(setting, 0)
    short = shrink(setting, failed)
    assert short.failed and len(short.turns) < len(failed.turns) / 4
    body = read_token(str(token_of(setting, short)))
    again = run(setting, choice_of(body))
    assert again.trace == body.trace and again.signature() == failed.signature()


def test_a_failure_that_names_no_instruction_says_how_to_go_on_and_which_run_it_became(tmp_path: Path) -> None:
    program = build("queue.c")
    pool = str(tmp_path / "pool")  # nobody has made a queue in it
    words = ["exec", "--pool", pool, "--no-worst-case", "--seeds", "2", "--", str(program), pool, "consume"]
    said = " ".join(CliRunner().invoke(main, words).output.split())
    assert "seed 0: fails without random moves of lines, too; it is worst case 0 from here on" in said
    assert "no missing instruction was found in this run: --keep-going tries the other ones, too; or" in said
    assert "--keep-going tries" not in CliRunner().invoke(main, [*words[:3], "--seed", "0", *words[6:]]).output


def test_a_section_that_clang_means_for_its_own_assembler_is_no_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    use_compiler(monkeypatch, "clang")
    source = tmp_path / "linked.c"
    source.write_text('#pragma comment(lib, "m")\nint main(void) { return 0; }\n')
    assert compile_main("c", [str(source), "-o", str(tmp_path / "linked")]) == 0
    assert "section" not in capfd.readouterr().err


def test_nobody_is_sent_to_look_for_an_instruction_where_none_is_looked_for(tmp_path: Path) -> None:
    program, pool = build("queue.c"), str(tmp_path / "pool")
    words = ["exec", "--pool", pool, "--no-worst-case", "--seeds", "2"]
    said = " ".join(
        CliRunner().invoke(main, [*words, "--no-check", "--", str(program), pool, "consume"]).output.split()
    )
    assert "--no-check looks for none: leave it out" in said and "--keep-going" not in said
    assert "missing instruction" not in CliRunner().invoke(main, [*words, "--", "/bin/false"]).output
    (tmp_path / "reasons").write_text("* queue.c:* # not now\n")
    its = str(build("queue.c", "-DMISTAKE=1"))
    stages = f"{its} {pool} new :: {its} {pool} produce : {its} {pool} consume".split()
    output = CliRunner().invoke(main, [*words[:3], "--suppressions", str(tmp_path / "reasons"), "--", *stages]).output
    assert "suppressed: not-flushed" in output and "1 failed" in output and "missing instruction" not in output


def test_a_crash_ends_a_host_and_its_cache() -> None:
    setting = queue(build("queue.c"), crash=(1, 60), idle_budget=2_000)
    result = worst(setting)
    assert any(its.asked and its.code == -signal.SIGKILL for its in result.exits)


def test_a_poisoned_line_is_a_bus_error() -> None:
    setting = queue(build("queue.c"), poison=(0, 0, 1))
    result = worst(setting)
    assert -signal.SIGBUS in [its.code for its in result.exits]


def test_side_by_side_a_right_queue_is_right_too() -> None:
    setting = replace(queue(build("queue.c")), free=True)
    for seed in range(3):
        result = run(setting, RunChoice(seed, seed))
        assert result.ending is RunEnding.ENDED and not result.failed


def test_a_deadline_ends_what_does_not_end() -> None:
    program = Path(sys.executable)
    words = [str(program), "-c", "import time; time.sleep(1000)"]
    setting = ExecSetting(
        parse_commands(words, 1), parse_pools(["/dev/shm/none"]), hosts=1, deadline_s=0.5, check=False
    )
    assert worst(setting).ending is RunEnding.DEADLINE


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    program = build("queue.c", "-DMISTAKE=3")
    words = f"{program} {tmp_path}/q new :: {program} {tmp_path}/q produce : {program} {tmp_path}/q consume".split()
    flags = ["--pool", f"{tmp_path}/q", "--steps", "1000000000", "--deadline-s", "120", "--no-check"]
    driver = subprocess.Popen([sys.executable, "-m", "cxlemu", "exec", *flags, "--", *words], stderr=subprocess.PIPE)
    folder = None
    while folder is None and driver.poll() is None:
        folder = next(Path("/dev/shm").glob(f"{PREFIX}{driver.pid}-*"), None)
        time.sleep(0.05)
    assert folder is not None
    while not (folder / "output-2").exists() and driver.poll() is None:
        time.sleep(0.05)
    driver.send_signal(signal.SIGINT)
    _, said = driver.communicate(timeout=60)
    assert driver.returncode == 130 and b"interrupted" in said
    assert not folder.exists()
    assert subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True).stdout == b""


# --- the command -----------------------------------------------------------------------------------------------------


cxlemu = partial(commands.cxlemu, "exec")


def test_exit_codes_and_json(tmp_path: Path) -> None:
    right, wrong = build("queue.c"), build("queue.c", "-DMISTAKE=1")

    def words(program: Path) -> list[str]:
        return f"{program} {tmp_path}/q new :: {program} {tmp_path}/q produce : {program} {tmp_path}/q consume".split()

    done = cxlemu("--pool", tmp_path / "q", "--seeds", "1", "--no-check", "--", *words(right))
    assert done.exit_code == 0 and "4 runs: 0 failed" in done.output
    done = cxlemu("--pool", tmp_path / "q", "--no-check", "--error-exitcode", "9", "--", *words(wrong))
    assert done.exit_code == 9 and "exited with 1" in done.output and "message 1: sequence 0" in done.output
    token = done.output.split("--replay ")[1].split()[0]
    done = cxlemu("--pool", tmp_path / "q", "--no-check", "--replay", token, "--", *words(wrong))
    assert done.exit_code == 1 and "another trace" not in done.output
    done = cxlemu("--pool", tmp_path / "q", "--no-check", "--replay", token, "--", *words(right))
    assert done.exit_code == 3 and "another trace than the token's" in done.output
    assert not (tmp_path / "q").exists()


@with_rows(
    (["--pool", "/dev/dax0.0", "--", "true"], "there is no such device; give a size or a file"),
    (["--pool", "/p=4x", "--", "true"], "neither a size"),
    (["--pool", "/p", "--", "true", ":"], "a command is missing"),
    (["--pool", "/p", "--hosts", "2", "--", "@2", "true"], "hosts 0 to 1"),
    (["--pool", "/p", "--", "@16", "true"], "these commands need 17 hosts, and 16 is the limit"),
    (["--pool", "/p", "--crash", "2@5", "--", "true"], "hosts 0 to 1"),
    (["--pool", "/p", "--replay", "cxl1.AAAA", "--", "true"], "token"),
    (["--pool", "/p", "--", "/nowhere/at/all"], "No such file"),
    (
        ["--pool", "/p"] + [word for k in range(8) for word in ("--pool", f"/p{k}")] + ["--", "true"],
        "8 pools at most",
    ),
)
def test_bad_input_is_a_sentence(words: list[str], said: str) -> None:
    done = cxlemu(*words)
    assert done.exit_code == 2 and said in done.output


def test_commands_and_hosts() -> None:
    commands = parse_commands(["a", "1", ":", "b", "::", "@1", "c", ":", "d"], 2)
    assert [(its.words, its.host, its.stage) for its in commands] == [
        (("a", "1"), 0, 0),
        (("b",), 1, 0),
        (("c",), 1, 1),
        (("d",), 1, 1),
    ]


@with_rows(
    ("a", 2), ("a :: b : c", 2), ("a : b : c :: d", 3), ("@0 a : @0 b : @1 c", 2), ("@0 a : b : c", 3), ("@4 a", 5)
)  # fmt: skip
def test_each_command_of_a_stage_has_a_host_by_default(words: str, hosts: int) -> None:
    assert hosts_of(words.split()) == hosts


def test_a_third_command_runs_on_a_third_host() -> None:
    done = cxlemu("--pool", "/p=2M", "--crash", "2@5", "--", "true", ":", "true", ":", "true")
    assert done.exit_code == 3 and "no program touched the pool" in done.output


def test_pools_are_whole_pages(tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(b"x" * 5000)
    pool = parse_pool(f"/dev/dax0.0={tmp_path}/image")
    assert (pool.capacity, pool.size, pool.dax) == (2 << 20, 5000, True)
    assert parse_pool("/dev/shm/new").size is None


@pytest.mark.parametrize(
    ("given", "written"), [("/dev/shm/new", ""), ("/dev/shm/new=64K", "=2M"), ("/dev/dax0.0=4G", "=4G")]
)
def test_a_pool_is_written_with_the_room_that_its_run_had(given: str, written: str) -> None:
    pool = parse_pool(given)
    assert str(pool) == given.partition("=")[0] + written and parse_pool(str(pool)).capacity == pool.capacity


def test_another_token_is_refused() -> None:
    with pytest.raises(TokenError):
        read_token("cxl1.AAAA")


def test_the_library_has_no_python_in_it() -> None:
    from faults.programs.area import library_path

    undefined = subprocess.run(["nm", "-D", "--undefined-only", library_path()], capture_output=True, text=True)
    assert undefined.returncode == 0 and " Py" not in undefined.stdout


def test_commands_that_open_no_pool_are_no_success(tmp_path: Path) -> None:
    json_file = tmp_path / "exec.json"
    done = CliRunner().invoke(main, ["exec", "--pool", "/x=64K", "--json", str(json_file), "--", "true"])
    assert done.exit_code == 3
    assert "nothing was judged: no program touched the pool; do they open and use /x?" in done.output
    its = json.loads(json_file.read_text())
    assert (its["verdict"], len(its["runs"])) == ("unknown", 1)  # another seed would open no pool either


@with_rows(
    ([], "--pool is missing: the path that the commands open"),
    (["--pool", "/x=0"], "a pool has at least a byte"),
    (["--pool", "/x=64Y"], "'64Y' is neither a size, such as 64M, nor a file"),
    (["--pool", "/x", "--pool", "/x"], "two pools have the same path"),
)
def test_pools_that_make_no_sense_are_refused(pools: list[str], says: str) -> None:
    done = CliRunner().invoke(main, ["exec", *pools, "--", "true"])
    assert done.exit_code == 2 and says in " ".join(done.output.split())


def test_runs_that_find_nothing_load_no_large_package() -> None:
    """Importing takes longer than the runs of a small program."""
    program = build("queue.c")
    words = f"{program} q new :: {program} q produce : {program} q consume".split()
    arguments = ["exec", "--pool", "q", "--seed", "1", "--", *words]
    code = (
        f"import sys\nfrom cxlemu.cli import main\nmain({arguments}, standalone_mode=False)\n"
        "print('loaded:', *sorted({'numpy', 'pydantic', 'yaml', 'torch'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert "1 run: 0 failed" in done.stdout and done.stdout.endswith("loaded:\n"), done.stdout + done.stderr
