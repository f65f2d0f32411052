"""What must hold, said in C: assertions, invariants of the pool, histories; by seeds, --every and --crash every."""

import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cxlemu.cli import main
from tests.faults.test_exec_every import EXAMPLES, HERE
from tests.helpers.pool_programs import build, on_x86

pytestmark = on_x86
ONE = ("--worst-case", "--seed", "0", "--no-shrink")
EVERY = ("--every", "--no-shrink", "--budget", "300s")
EVICTING = (*EVERY, "--evictions", "1")
CRASH = ("--crash", "every", "--no-shrink", "--budget", "300s")


@pytest.fixture(scope="module")
def holds() -> Path:
    return build("holds.c", f"-I{EXAMPLES}")


@pytest.fixture(scope="module")
def objects() -> Path:
    return build(EXAMPLES / "histories.c")


@pytest.fixture(scope="module")
def wrong() -> Path:
    return build(EXAMPLES / "histories.c", "-DBUG")


def execute(program: Path, pool: str, flags: tuple[str, ...], stages: str) -> tuple[Result, dict[str, object]]:
    """Run the program with the words of each stage and host."""
    commands = stages.replace(" : ", f" : {program} ").replace(" :: ", f" :: {program} ").split()
    its = CliRunner().invoke(main, ["exec", "--pool", pool, *flags, "--json", "-", "--", str(program), *commands])
    return its, json.loads(its.stdout)


def run(program: Path, flags: tuple[str, ...], stages: str) -> tuple[int, list[str], str]:
    """Return the exit code, the kinds of findings, and what was written."""
    its, document = execute(program, "/dev/shm/holds", flags, stages)
    found = document["found"]["findings"]  # type: ignore[index]
    return its.exit_code, [one["kind"] for one in found], its.output


def test_an_assertion_names_its_line_and_host(holds: Path) -> None:
    code, kinds, _ = run(holds, ONE, "assert")
    assert (code, kinds) == (1, ["assertion"])
    _, document = execute(holds, "/dev/shm/holds", ONE, "assert")
    (found,) = document["found"]["findings"]  # type: ignore[index]
    (step,) = found["steps"]
    source = (HERE / "programs/holds.c").read_text().split("\n")
    assert source[step["line"] - 1].strip() == "cxl_assert(m->data == 2);"
    assert (found["host"], step["function"], step["does"]) == (0, "main", "host 0 asserts")
    assert "--replay cxl1." in found["replay"]


def test_an_assertion_that_fails_outside_of_a_run_ends_the_program(holds: Path) -> None:
    done = subprocess.run([holds, "assert"], capture_output=True, text=True, timeout=60)
    Path("/dev/shm/holds").unlink()
    assert done.returncode == -6 and "cxl_assert(m->data == 2) does not hold in main" in done.stderr


INVARIANTS = {
    "a fence keeps the order": (ONE, "invariant", 0, []),
    "a fence keeps it always": (EVERY, "invariant 0 : invariant 1", 0, []),
    "bytes in a cache do not count": (ONE, "cached", 0, []),
    "lines that one fence lands are examined one by one": (ONE, "together", 1, ["invariant"]),
    "two flushed lines arrive in any order": (EVERY, "no-fence", 1, ["invariant"]),
    "any host's process finds it": (EVERY, "no-fence 1 : no-fence 0", 1, ["invariant"]),
    "a line leaves between two stores": (EVICTING, "halves", 1, ["invariant"]),
    "none leaves by itself": (EVERY, "halves", 0, []),
    "a line leaves amid a copy": (EVICTING, "copy", 1, ["invariant"]),
    "a line leaves before another one arrives": (EVICTING, "order", 1, ["invariant"]),
    "a line leaves when it was published": (EVICTING, "invariant 0 : invariant 1", 0, []),
    "a line leaves behind its last arrival": (EVICTING, "again", 1, ["invariant"]),
    "a line leaves before the declaration": (EVICTING, "left", 1, ["invariant"]),
    "what nobody waits for arrives": (EVERY, "posted", 1, ["invariant"]),
    "a declaration reads the pool": (EVERY, "declared 0 : declared 1", 1, ["invariant"]),
    "a crash leaves a line": (CRASH, "order 0 :: order 1", 1, ["lost-in-crash", "invariant"]),
    "nobody is there to look": (ONE, "nobody 1 :: nobody 0", 3, []),
}


@pytest.mark.parametrize("name", INVARIANTS)
def test_an_invariant_is_examined_on_what_the_pool_holds(holds: Path, name: str) -> None:
    flags, stages, code, kinds = INVARIANTS[name]
    found = run(holds, flags, stages)
    assert found[:2] == (code, kinds)
    assert ("the pool's bytes were not examined" in found[2]) == (code == 3)


def test_an_invariant_is_broken_by_the_line_that_arrives(holds: Path) -> None:
    _, document = execute(holds, "/dev/shm/holds", EVERY, "no-fence")
    (found,) = document["found"]["findings"]  # type: ignore[index]
    assert (found["offset"], found["other_host"]) == (64, 0)  # the flag, before the data that it tells of
    assert found["sentence"].endswith("(line 1) as host 0 has left it: words 0x2 and zeros"), found["sentence"]


HISTORIES = {
    "one order of turns explains it": (ONE, "late 0 : late 1", 0, []),
    "the other host reads after the end": (EVERY, "late 0 : late 1", 1, ["not-linearizable"]),
    "whichever host comes first": (EVERY, "late 1 : late 0", 1, ["not-linearizable"]),
    "a crash loses what has ended": (CRASH, "late 0 :: late 1", 1, ["lost-in-crash", "not-linearizable"]),
    "asked for, not logged": (ONE, "early", 3, []),
    "asked for, partly logged": (ONE, "partly", 3, []),
    "logged, not asked for": (ONE, "unasked", 3, []),
}
NO_OTHER = "cxl_linearizable judged nothing else: no operation of a {} was logged"
SAYS = {
    "asked for, partly logged": "\n".join((NO_OTHER.format("queue"), NO_OTHER.format("register"))),
    "asked for, not logged": "cxl_linearizable judged nothing: no operation of a register was logged",
    "logged, not asked for": "operations of a map were logged, but no program asks for cxl_linearizable",
}


@pytest.mark.parametrize("name", HISTORIES)
def test_a_history_is_judged_in_every_kind_of_run(holds: Path, name: str) -> None:
    flags, stages, code, kinds = HISTORIES[name]
    found = run(holds, flags, stages)
    assert found[:2] == (code, kinds)
    assert SAYS.get(name, "") in found[2]


def test_the_page_draws_a_history_that_no_order_explains(holds: Path, tmp_path: Path) -> None:
    page = tmp_path / "found.html"
    assert run(holds, (*EVERY, "--html", str(page)), "late 0 : late 1")[0] == 1
    assert '<div class="picture"><svg ' in (text := page.read_text())
    assert "no order explains read(0) = 0 of host 1" in text


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("twice", "cxl_op_begin: this thread has not ended its last operation (cxl_op_end)"),
        ("end", "cxl_op_end: this thread has begun no operation (cxl_op_begin)"),
        ("outside", "cxl_invariant takes 1 to 4032 bytes of one pool that is mapped"),
    ],
)
def test_a_program_that_says_it_wrongly_ends_with_a_sentence(holds: Path, what: str, says: str) -> None:
    its, document = execute(holds, "/dev/shm/holds", ONE, what)
    (its_end,) = document["runs"][0]["exits"]  # type: ignore[index]
    assert its.exit_code == 1 and its_end["code"] == 2 and says in its_end["output"]


# --- the example -----------------------------------------------------------------------------------------------------


def stages_of(kind: str) -> str:
    if kind == "register":
        return "fill register :: 0 register"
    both = f"0 {kind} : 1 {kind}"
    return both if kind == "counter" else f"fill {kind} :: {both}"


@pytest.mark.parametrize("kind", ["counter", "queue", "map", "register"])
@pytest.mark.deep(rows=lambda kind: kind in ("queue", "map"))
def test_the_example_is_right_and_its_mistake_is_a_history(objects: Path, wrong: Path, kind: str) -> None:
    flags = CRASH if kind == "register" else EVERY
    its, document = execute(objects, "/dev/shm/objects", flags, stages_of(kind))
    assert its.exit_code == 0, its.output
    assert document["verdict"] == "ok"
    its, document = execute(wrong, "/dev/shm/objects", flags, stages_of(kind))
    assert its.exit_code == 1, its.output
    found = [one for one in document["found"]["findings"] if one["kind"] == "not-linearizable"]  # type: ignore[index]
    assert len(found) == 1 and len(found[0]["history"]) >= 2
    again = found[0]["replay"].split()[2:]
    assert "not-linearizable" in CliRunner().invoke(main, ["exec", *again]).output
