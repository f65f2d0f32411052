"""What `cxlemu exec` warns of, and its last line: what a run did not judge."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cxlemu.cli import main
from tests.helpers.pool_programs import MODES, build, built, on_x86

EXAMPLE = Path(__file__).parents[2] / "examples/programs/queue.c"

pytestmark = on_x86


def ran(program: Path, commands: str, *flags: str) -> Result:
    words = [word.replace("P", f"{program} {program}.pool") for word in commands.split()]
    pool = ["--pool", f"{program}.pool", "--seeds", "1", *flags]
    return CliRunner().invoke(main, ["exec", *pool, "--", *" ".join(words).split()])


@pytest.mark.parametrize("mode", MODES)
def test_a_clflushopt_that_may_overtake_the_load_before_it_is_a_warning(mode: str, tmp_path: Path) -> None:
    program = built(mode, "overtakes.c")
    report, sarif = tmp_path / "report.json", tmp_path / "report.sarif"
    done = ran(program, "P send : P receive", "--json", str(report), "--sarif", str(sarif))
    assert done.exit_code == 0, done.output
    assert "warning: invalidate-overtakes: an invalidate that no lfence orders" in done.output
    assert "overtakes.c:36 in receive" in done.output and "overtakes.c:34 in receive" in done.output
    assert "4 runs: 0 failed, 0 past the deadline, 1 warning; " in done.output
    found = json.loads(report.read_text())["found"]
    assert [its["kind"] for its in found["warnings"]] == ["invalidate-overtakes"] and not found["findings"]
    assert [its["level"] for its in json.loads(sarif.read_text())["runs"][0]["results"]] == ["warning"]
    (tmp_path / "known").write_text("invalidate-overtakes overtakes.c:34  # this processor does not do it\n")
    done = ran(program, "P send : P receive", "--suppressions", str(tmp_path / "known"))
    assert done.exit_code == 0 and "warning" not in done.output
    assert "suppressed: invalidate-overtakes at " in done.output
    assert " ".join(done.output.split()).endswith("1 suppressed finding")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("order", ["LFENCE", "LOCKED"])
def test_with_what_orders_it_there_is_none(order: str, mode: str) -> None:
    done = ran(built(mode, "overtakes.c", f"-DORDER={order}"), "P send : P receive")
    assert done.exit_code == 0 and "warning" not in done.output
    unseen = {
        "preloaded": "code made at run time",
        "recompiled": "loads by code that cxlemu cc did not build, if there is any",
    }[mode]
    last = " ".join(done.output[done.output.index("not judged: ") :].split())
    assert last == f"not judged: {unseen}; failures (no --crash, --link-down, --poison or --lose-card)"


@pytest.mark.parametrize("mode", MODES)
def test_a_pool_that_is_mapped_and_not_touched_is_not_judged(mode: str) -> None:
    done = ran(built(mode, "overtakes.c"), "P map")
    assert done.exit_code == 3
    assert "nothing was judged: no program touched the pool" in " ".join(done.output.splitlines()[-2:])


@pytest.mark.each_value_once
@pytest.mark.parametrize("flags", [(), ("--no-check",), ("--free",)])
@pytest.mark.parametrize("mode", MODES)
def test_a_pool_beside_others_that_no_program_opens_is_named(mode: str, flags: tuple[str, ...]) -> None:
    program = built(mode, "overtakes.c", "-DORDER=LFENCE")
    assert ran(program, "P send : P receive", *flags).exit_code == 0
    done = ran(program, "P send : P receive", *flags, "--pool", "/idle=1M")
    assert done.exit_code == 3, done.output
    assert "--pool /idle did nothing: no program touched it" in done.output


def test_programs_that_never_flush_are_told_of_coherent_caches(tmp_path: Path) -> None:
    said = "no program flushed a line, or stored past its cache: if hardware keeps these caches coherent"
    (tmp_path / "plain.c").write_text("""#include <cxl.h>
#include <fcntl.h>
#include <sys/mman.h>
int main(int count, char **words) {
    volatile int *p = mmap(0, 2 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, open(words[1], O_RDWR | O_CREAT, 0600), 0);
    if (count > 3) cxl_flush((void *)(p + 64), 4);
    p[0] = 1;
    return 0;
}
""")
    program = built("recompiled", tmp_path / "plain.c")
    for commands, flags, tells in (("P", (), True), ("P x flush", (), False), ("P", ("--coherent", "all"), False)):
        done = ran(program, commands, *flags)
        assert (said in " ".join(done.output.split())) == tells, done.output


def test_cxl_invalidate_is_in_order() -> None:
    program = build(EXAMPLE)
    words = f"{program} send : {program} receive".split()
    done = CliRunner().invoke(main, ["exec", "--pool", "/dev/shm/queue", "--seeds", "1", "--", *words])
    assert done.exit_code == 0 and "warning" not in done.output


def test_what_was_asked_for_is_not_among_what_was_not_judged() -> None:
    program = build("overtakes.c", "-DORDER=LFENCE")
    done = ran(program, "P send : P receive", "--no-check", "--poison", "0x800@1")
    last = " ".join(done.output[done.output.index("not judged: ") :].split())
    assert last == "not judged: the chain behind each load (--no-check), only what programs do"


def test_loads_that_are_stale_on_purpose_are_among_what_was_not_judged(tmp_path: Path) -> None:
    source = tmp_path / "marks.c"
    source.write_text(
        "#include <cxl.h>\n#include <fcntl.h>\n#include <sys/mman.h>\nint main(int count, char **words) {\n"
        "    char *at = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, open(words[1], O_RDWR | O_CREAT, 0600), 0);\n"
        "    if (count > 2) cxl_expect_stale(at, 8);\n    return *at;\n}\n"
    )
    program = build(source)
    for words, marked in (("P", False), ("P marks", True)):
        said = " ".join(ran(program, words).output.split())
        assert ("not judged: " in said) and ("; loads that cxl_expect_stale marks;" in said) == marked, said


@pytest.mark.parametrize(("commands", "code"), [("cat P", 1), ("cat P; true", 3)])
def test_a_pool_that_no_program_has_made_is_named(commands: str, code: int, tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    words = ["--no-check", "--seeds", "1", "--", "sh", "-c", commands.replace("P", str(pool))]
    done = CliRunner().invoke(main, ["exec", "--pool", str(pool), *words])
    assert done.exit_code == code, done.output
    assert "was opened without O_CREAT, and was not there" in " ".join(done.output.split())


@pytest.mark.parametrize("mode", MODES)
def test_what_programs_opened_instead_of_the_pool_is_named(mode: str, tmp_path: Path) -> None:
    program, other = built(mode, "overtakes.c", "-DORDER=LFENCE"), tmp_path / "misspelt"
    words = ["--seeds", "1", "--", str(program), str(tmp_path / "." / "pool"), "map"]
    (tmp_path / "pool").write_bytes(bytes(1 << 21))
    done = CliRunner().invoke(main, ["exec", "--pool", str(other), *words])
    assert done.exit_code == 3, done.output
    assert f"they opened {tmp_path}/pool, not {other}" in done.output.replace("\n  ", " ")


def test_a_pool_that_begins_with_the_bytes_of_a_file_is_noted(tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    for nbytes, noted in ((0, False), (4096, True)):
        pool.write_bytes(bytes(nbytes))
        done = CliRunner().invoke(main, ["exec", "--pool", str(pool), "--no-check", "--", "cat", str(pool)])
        assert ("The pool begins with the 4 KiB of" in done.output.replace("\n", " ")) is noted


def test_what_was_not_there_does_not_matter_to_a_run_that_went_well(tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    commands = f"cat {pool}; echo word > {pool}; cat {pool}"
    done = CliRunner().invoke(
        main, ["exec", "--pool", str(pool), "--no-check", "--seeds", "1", "--", "sh", "-c", commands]
    )
    assert done.exit_code == 0 and "O_CREAT" not in done.output, done.output


LEAVES = {
    "in a session of its own": "setsid sh -c 'echo $$ > pid; exec sleep 1000' &",
    "that clears its environment": "setsid env -i sh -c 'echo $$ > pid; exec sleep 1000' &",
    "that leaves another one": "setsid sh -c '(echo $$ > parent; sleep 1000; :) & echo $! > pid; exec sleep 1000' &",
    "that ends with an error": "setsid sh -c 'cat POOL > /dev/null; echo $$ > pid; exit 3' &",
}


@pytest.mark.parametrize("leave", LEAVES)
def test_no_process_outlives_the_run(leave: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pool").write_bytes(bytes(4096))
    commands = f"{LEAVES[leave]} while ! [ -s pid ]; do :; done; cat POOL > /dev/null".replace(
        "POOL", f"{tmp_path}/pool"
    )
    flags = ["--no-check", "--seeds", "1", "--no-worst-case"]
    other = subprocess.Popen(["sleep", "1000"])
    try:
        done = CliRunner().invoke(main, ["exec", "--pool", f"{tmp_path}/pool", *flags, "--", "sh", "-c", commands])
        assert done.exit_code == 0, done.output
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), 0)
        assert other.poll() is None, "a child that is no part of the run stays"
    finally:
        other.kill()
        other.wait()
