"""Plans for people: instructions as text, tables, sums; and the verbs of ``cxlemu plan``."""

import io
import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from collectives.algorithms.catalog import build, recipe, variants
from collectives.communicator.communicator import Communicator
from collectives.contracts import COLLECTIVES
from collectives.layouts import layout_for
from cxlemu.memory import MemorySpec
from cxlemu.plan import Call, Flag, Instruction, Kernel, Kind, Layout, Op, Operand, Plan, RedOp
from cxlemu.plan import file as plan_file
from cxlemu.plan.text import amount, counts, text
from cxlemu.plan.view import PlanView
from cxlemu.topology import Topology
from cxlemu.world import RankContext, launch
from faults.zero_copy_calls import lent_if_zero_copy
from tests.helpers import commands
from tests.helpers.tables import with_rows


def made(collective: str, variant: str, ranks: int = 4, nbytes: int = 1 << 16, **changes: object) -> Plan:
    redop = "sum" if COLLECTIVES[collective].reduces else "none"
    call = lent_if_zero_copy(replace(Call(collective, variant, ranks, nbytes, "f32", redop), **changes))
    layout = replace(layout_for(ranks, 6, 32 << 20, 64 << 10), heap_card_bytes=1 << 20)
    return build(recipe(collective, variant), layout, call)


PLAN = made("all_reduce", "all")
IN, OUT = Operand(Kind.BUFFER, 0), Operand(Kind.BUFFER, 1)
R1, R2 = Operand(Kind.REGION, 1), Operand(Kind.REGION, 2, 3, 4096)
F32 = 6

TEXTS = {
    "WRITE r1+0 <- in+0 256K": Instruction(Op.WRITE, nbytes=256 << 10, dst=R1, a=IN),
    "WRITE_NT r2+4K@3 <- in+100 1M": Instruction(Op.WRITE_NT, nbytes=1 << 20, dst=R2, a=IN.at(100)),
    "FLUSH r1+0 1000": Instruction(Op.FLUSH, nbytes=1000, a=R1),
    "FENCE": Instruction(Op.FENCE),
    "SIGNAL published[0][2] = e+0": Instruction(Op.SIGNAL, arg=2),
    "SIGNAL done[3] = e+1": Instruction(Op.SIGNAL, arg=PLAN.layout.done(3), value=1),
    "WAIT published[1][0] >= e+2": Instruction(Op.WAIT, arg=PLAN.layout.published(1, 0), value=2),
    "WAIT_ALL done >= e-4": Instruction(Op.WAIT_ALL, arg=0, value=-4),
    "WAIT_ALL group 7 >= e+0": Instruction(Op.WAIT_ALL, arg=7),
    "INVALIDATE r2+4K@3 64": Instruction(Op.INVALIDATE, nbytes=64, a=R2),
    "READ out+0 <- r1+0 64": Instruction(Op.READ, nbytes=64, dst=OUT, a=R1),
    "REDUCE out+0 <- in+0 sum r1+0 sum r2+4K@3 64K": Instruction(
        Op.REDUCE, F32, RedOp.SUM, nbytes=64 << 10, dst=OUT, a=IN, b=R1, c=R2
    ),
    "REDUCE out+0, r2+4K@3 <- in+0 avg r1+0 / 4 as f64 64": Instruction(
        Op.REDUCE, F32 + 1, RedOp.AVG, Flag.DIVIDE, 4, nbytes=64, dst=OUT, dst2=R2, a=IN, b=R1
    ),
    "COPY out+0 <- in+0 0": Instruction(Op.COPY, dst=OUT, a=IN),
    "REDUCE_LOCAL out+0 <- in+0 max buffer9+0 64": Instruction(
        Op.REDUCE_LOCAL, F32, RedOp.MAX, nbytes=64, dst=OUT, a=IN, b=Operand(Kind.BUFFER, 9)
    ),
    "COMPUTE gemm_f32(2, 3, 4) out+0 <- in+0, in+24 24": Instruction(Op.COMPUTE, nbytes=24, dst=OUT, a=IN, b=IN.at(24)),
    "RECORD event 1": Instruction(Op.RECORD, arg=1),
    "AWAIT event 1": Instruction(Op.AWAIT, arg=1),
    "SIGNAL_DATA published[0][2] = e+0 <- in+56 56": Instruction(Op.SIGNAL_DATA, arg=2, nbytes=56, a=IN.at(56)),
    "WAIT_DATA published[0][2] >= e+0 -> scratch+0 56": Instruction(
        Op.WAIT_DATA, arg=2, nbytes=56, dst=Operand(Kind.BUFFER, 2)
    ),
}


@pytest.mark.parametrize("line", TEXTS)
def test_an_instruction_as_text(line: str) -> None:
    with_kernel = replace(PLAN.frame, kernels=(Kernel("gemm_f32", (2, 3, 4)),))
    plan = Plan(PLAN.call, PLAN.layout, lambda rank: (with_kernel, PLAN.part(rank)))
    assert text(TEXTS[line], plan) == line


def test_every_opcode_has_a_text() -> None:
    assert {instruction.op for instruction in TEXTS.values()} == set(Op)


def test_a_group_of_published_doorbells_has_a_name() -> None:
    barrier = made("barrier", "line", nbytes=0)
    assert text(barrier.part(0).streams[0].instructions[1], barrier) == "WAIT_ALL published[*][0] >= e+0"


def test_amounts_are_exact() -> None:
    sizes = (0, 1, 1000, 1023, 1024, 1536, 65536, 1 << 20, 3 << 30)
    assert [amount(size) for size in sizes] == ["0", "1", "1000", "1023", "1K", "1536", "64K", "1M", "3G"]


# --- how much ------------------------------------------------------------------------------------------------

M = 69_120  # a block: 64 * 1080, so that rounds, slices and shares of cards need no rounding for 4 ranks


def formulas(n: int) -> dict[str, tuple[list[int], list[int]]]:
    """Written and read by each rank (root 0), as the docstrings of the algorithms say."""
    every, root, others = [1] * n, [1] + [0] * (n - 1), [0] + [1] * (n - 1)

    def times(who: list[int], nbytes: int) -> list[int]:
        return [one * nbytes for one in who]

    return {
        "all_gather": (times(every, M), times(every, (n - 1) * M)),
        "broadcast": (times(root, M), times(others, M)),
        "gather": (times(others, M), times(root, (n - 1) * M)),
        "scatter": (times(root, (n - 1) * M), times(others, M)),
        "all_reduce": (times(every, M), times(every, (n - 1) * M)),
        "reduce_scatter": (times(every, (n - 1) * M), times(every, (n - 1) * M)),
        "reduce": (times(others, M), times(root, (n - 1) * M)),
        "all_to_all": (times(every, (n - 1) * M), times(every, (n - 1) * M)),
        "barrier": (times(every, 0), times(every, 0)),
        "send": (times(root, M), [0, M] + [0] * (n - 2)),
    }


@pytest.mark.each_value_once
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("collective", [name for name, its in COLLECTIVES.items() if its.basic])
def test_the_bytes_counted_are_those_the_docstrings_give(collective: str, ranks: int) -> None:
    written, read = formulas(ranks)[collective]
    for variant in variants(collective):
        others = (
            "two_shot",
            "two_shot_staged",
            "two_shot_batched",
            "two_shot_crosswise",
            "two_shot_apart",
            "doubling",
            "binomial",
            "rabenseifner",
        )
        if variant in others or (collective, variant) == ("all_reduce", "zero_copy"):
            continue
        nbytes = 0 if collective == "barrier" else M
        found = [counts(part) for part in made(collective, variant, ranks, nbytes).parts]
        assert [c.written_bytes for c in found] == written, variant
        assert [c.read_bytes for c in found] == read, variant


@pytest.mark.parametrize("variant", ["two_shot", "two_shot_staged", "two_shot_batched", "two_shot_crosswise"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_two_shots_write_a_vector_and_read_two_without_a_slice_each(variant: str, ranks: int) -> None:
    nbytes = 64 * 1092  # whole lines for 2 and 4 slices
    for part in made("all_reduce", variant, ranks, nbytes).parts:
        c = counts(part)
        assert c.written_bytes == nbytes
        assert c.read_bytes == 2 * (ranks - 1) * nbytes // ranks


@pytest.mark.parametrize("variant", ["two_shot_staged", "two_shot_batched", "two_shot_crosswise"])
def test_the_root_of_two_shots_reads_little_more_than_others(variant: str) -> None:
    ranks, nbytes = 4, 64 * 1092
    slices = nbytes // ranks
    for part in made("reduce", variant, ranks, nbytes).parts:
        c, root = counts(part), part.rank == 0
        assert c.written_bytes == (ranks - 1) * slices + (0 if root else slices)
        assert c.read_bytes == (ranks - 1) * slices * (2 if root else 1)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("root", [0, 1])
def test_a_root_apart_reads_a_vector_once(ranks: int, root: int) -> None:
    nbytes = 64 * 2520  # whole lines for any number of slices
    for part in made("reduce", "two_shot_apart", ranks, nbytes, root=root).parts:
        c = counts(part)
        assert c.written_bytes == c.read_bytes == nbytes


@pytest.mark.parametrize("ranks", [2, 4])
def test_halving_and_doubling_write_each_part_once(ranks: int) -> None:
    nbytes = 64 * 1024  # whole lines for every slice of every chunk
    for part in made("all_reduce", "rabenseifner", ranks, nbytes).parts:
        c = counts(part)
        assert c.written_bytes == nbytes * (ranks - 1) // ranks + nbytes // 2
        assert c.read_bytes == 2 * nbytes * (ranks - 1) // ranks


def test_counts_of_instructions() -> None:
    c = counts(made("all_gather", "all").part(0))
    assert c.instructions == {
        Op.COPY: 1, Op.WAIT_ALL: 1, Op.WRITE: 4, Op.FLUSH: 4, Op.FENCE: 4, Op.SIGNAL: 5,
        Op.WAIT: 12, Op.INVALIDATE: 12, Op.READ: 12,
    }  # fmt: skip
    assert c.rung == 5


# --- tables --------------------------------------------------------------------------------------------------


def shown(plan: Plan, width: int, limit: int | None = None) -> list[str]:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(PlanView(plan, limit=limit))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize(("ranks", "width"), [(2, 80), (4, 120), (4, 160), (9, 1000)])
@pytest.mark.parametrize("variant", ["all", "naive"])
def test_ranks_stand_side_by_side_and_no_instruction_is_folded(variant: str, ranks: int, width: int) -> None:
    plan = made("all_gather", variant, ranks, 1 << 16)
    lines = shown(plan, width)
    assert max(map(len, lines)) <= width
    for index, stream in enumerate(plan.part(0).streams):
        heading = next(n for n, line in enumerate(lines) if line.strip() == f"stream {stream.name}")
        assert [f"rank {rank}" in lines[heading + 1] for rank in range(ranks)] == [True] * ranks
        for row in range(len(stream.records)):
            cells = [cell.strip() for cell in lines[heading + 3 + row].split("│")]
            expected = [text(part.streams[index].instructions[row], plan, part.rank) for part in plan.parts]
            assert cells == [str(row), *expected]


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_ranks_that_do_not_fit_follow_below(width: int) -> None:
    plan = made("all_gather", "all", 5, 1 << 16)
    lines = shown(plan, width)
    assert max(map(len, lines)) <= width
    page = "\n".join(lines)
    for rank in range(5):
        assert page.count(f"SIGNAL done[{rank}] = e+0") == 1


def test_a_limit_says_what_it_leaves_out() -> None:
    plan = made("all_gather", "all")
    lines = shown(plan, 160, limit=10)
    rows = len(plan.part(0).streams[1].records)
    assert sum(line.lstrip().startswith("9│") for line in lines) == 2
    assert not any(line.lstrip().startswith("10│") for line in lines)
    assert f"... {rows - 10} more instructions" in lines


def test_ranks_that_do_equally_much_share_a_line() -> None:
    lines = shown(made("broadcast", "aggregate", 4, 1 << 16), 160)
    assert "rank 0: 7 instructions, 64 KiB written, 0 B read, 2 doorbells" in [line.strip() for line in lines]
    assert "ranks 1-3, each: 4 instructions, 0 B written, 64 KiB read, 1 doorbell" in [line.strip() for line in lines]


# --- the command line ----------------------------------------------------------------------------------------


cxlemu = partial(commands.cxlemu, "plan")


def test_show_prints_every_rank_whole_into_a_pipe() -> None:
    done = cxlemu("show", "all_gather", "-n", 12, "-b", "1M", "--limit", 3, code=0)
    assert "... " in done.output
    heading = next(line for line in done.output.splitlines() if "rank 0" in line and "rank 11" in line)
    assert len(heading) > 200


def test_bytes_are_the_total_as_in_nccl_tests() -> None:
    assert "all_gather all 262144 B f32, 4 ranks" in cxlemu("show", "all_gather", "-n", 4, "-b", "1M").output
    assert "all_reduce two_shot 1048576 B f32 sum, 4 ranks" in cxlemu("show", "all_reduce", "-n", 4, "-b", "1M").output


def test_auto_takes_what_the_communicator_takes() -> None:
    assert "all_reduce line 400 B" in cxlemu("show", "all_reduce", "-b", "400").output
    assert "all_reduce naive 400 B" in cxlemu("show", "all_reduce", "-b", "400", "--variant", "naive").output


def test_show_as_json() -> None:
    done = json.loads(cxlemu("show", "reduce", "-n", 3, "-b", "4K", "-r", 2, "-o", "max", "--json", "-").output)
    assert done["call"] == {
        "collective": "reduce", "algorithm": "aggregate", "ranks": 3, "nbytes": 4096, "dtype": "f32", "redop": "max",
        "root": 2, "in_place": False, "heap": None, "gemm": None, "cluster": 1,
        "fold_order": "rank",
        "counts": [],
    }  # fmt: skip
    assert done["rounds"] == 1
    assert [rank["written_bytes"] for rank in done["ranks"]] == [4096, 4096, 0]
    assert done["ranks"][0]["streams"]["main"][0] == "WAIT_ALL done >= e-16"


def test_saved_plans_are_checked_and_shown(tmp_path: Path) -> None:
    path = tmp_path / "a.plan"
    saved = cxlemu("save", "broadcast", "-n", 3, "-b", "64K", "-O", path)
    assert (saved.exit_code, saved.output.startswith(f"{path}: broadcast all 65536 B f32, 3 ranks")) == (0, True)
    checked = cxlemu("check", path)
    assert (checked.exit_code, checked.output.startswith(f"{path}: ok, broadcast all")) == (0, True)
    built = cxlemu("show", "broadcast", "-n", 3, "-b", "64K").output
    assert cxlemu("show", "--file", path).output == cxlemu("show", path).output == built


def test_a_wrong_file_is_told_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.plan"
    path.write_bytes(b"not a plan")
    for verb in (["check", path], ["show", "--file", path]):
        done = cxlemu(*verb)
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr == f"cxlemu: {path}: not a plan file: it must begin with CXLEMUPL\n"


@with_rows(
    ({"collective": "sort"}, "unknown collective 'sort'"),
    ({"dtype": "f128"}, "unknown dtype 'f128'"),
    ({"redop": "xor"}, "takes op sum, prod, min, max, avg, band, bor, bxor, not 'xor'"),
    ({"root": 77}, "root 77 is not one of the ranks 0..2"),
    ({"nbytes": 1002}, "1002 bytes are not a whole number of f32 elements: give a multiple of 4"),
    ({"nbytes": 1004}, "rank 0 has input of 1000 B, output of 1000 B; its call takes input of 1004 B, output of"),
    ({"in_place": True}, "its call takes input of 1000 B at 0 of output, output of 1000 B"),
    ({"collective": "all_gather", "redop": "none"}, "its call takes input of 1000 B, output of 3000 B"),
    ids=str,
)
def test_check_refuses_a_call_that_its_plan_is_not_of(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    plan = made("all_reduce", "two_shot", 3, 1000)
    path = tmp_path / "a.plan"
    plan_file.save(Plan(replace(plan.call, **changes), plan.layout, plan.build), path)
    done = cxlemu("check", path)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"cxlemu: {path}: ")
    assert says in done.stderr


@pytest.mark.each_value_once
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("flags", [[], ["--in-place"]], ids=["apart", "in place"])
def test_check_accepts_what_save_writes(tmp_path: Path, collective: str, flags: list[str]) -> None:
    sized = ["-b", "3K", *flags] if COLLECTIVES[collective].moves_data else []
    for ranks in (1, 3):
        assert cxlemu("save", collective, "-n", ranks, *sized, "-O", tmp_path / "a.plan").exit_code == 0
        cxlemu("check", tmp_path / "a.plan", code=0)


def test_save_into_a_pipe_and_through_a_link(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("a.plan")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        for name in ("pipe", "link"):
            assert cxlemu("save", "barrier", "-n", 2, "-O", tmp_path / name).exit_code == 0
        assert os.read(reader, 1 << 16) == (tmp_path / "a.plan").read_bytes()
    finally:
        os.close(reader)
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "link").is_symlink()


@with_rows(
    (["show"], "give a COLLECTIVE, or --algorithm"),
    (["show", "sort"], "unknown collective 'sort'"),
    (["show", "all_gather", "--variant", "best"], "has no variant 'best'"),
    (["show", "all_gather", "-o", "sum"], "--op does nothing here"),
    (["show", "broadcast", "-n", "2", "-r", "2"], "root 2 is not one of the ranks 0..1"),
    (["show", "all_gather", "-b", "lots"], "is not a size in bytes"),
    (["show", "all_gather", "-c", "nowhere"], "neither a file nor a shipped topology"),
    (["show", "--file", "a.plan", "-n", "3"], "--ranks does not go with --file"),
    (["show", "a.plan", "-n", "3"], "--ranks does not go with a.plan: the file defines the call"),
    (["show", "all_gather", "--file", "a.plan"], "collective does not go with --file"),
    (["show", "all_gather", "--algorithm", "mine.py:ring"], "give a COLLECTIVE, or --algorithm"),
    (["show", "--algorithm", "mine.py:ring"], "there is no file mine.py"),
    (["show", "--algorithm", "x" * 300 + ":ring"], "the file cannot be read: File name too long"),
    (["save", "barrier", "-O", "x" * 300], "cannot be written: File name too long"),
    (["show", "--algorithm", "mine.py:ring", "--variant", "all"], "--variant does not go with --algorithm"),
)
def test_wrong_arguments(arguments: list[str], says: str) -> None:
    assert says in cxlemu(*arguments, code=2).stderr


OWN = '''"""Mine."""
from collectives.builder.recipes import algorithm

@algorithm("broadcast")
def star(b):
    for chunks in b.rounds(b.nbytes, writers=[b.root], spread="cards"):
        for chunk in chunks:
            if b.is_root:
                b.publish(chunk, b.input(chunk.offset))
            else:
                b.retrieve(b.output(chunk.offset), chunk, b.root)
'''


def test_ones_own_algorithm_is_shown_and_saved(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    own = ["--algorithm", f"{tmp_path / 'mine.py'}:star", "-n", 2, "-b", "4K"]
    assert "broadcast star 4096 B f32, 2 ranks" in cxlemu("show", *own).output
    assert cxlemu("save", *own, "-O", tmp_path / "star.plan").exit_code == 0
    assert cxlemu("check", tmp_path / "star.plan").exit_code == 0


def test_an_algorithm_that_breaks_a_rule_is_shown_but_not_saved(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN.replace("b.output(chunk.offset)", "b.output(chunk.offset + 64)"))
    own = ["--algorithm", f"{tmp_path / 'mine.py'}:star", "-n", 2, "-b", "4K"]
    shown_anyway = cxlemu("show", *own, code=1)
    assert "READ out+3136 <- r0+3K 1K" in shown_anyway.stdout
    assert "operand dst is 1024 bytes at 3136 of buffer 1, which has 4096 (rule buffer: " in shown_anyway.stderr
    assert cxlemu("save", *own, "-O", tmp_path / "star.plan").exit_code == 1
    assert not (tmp_path / "star.plan").exists()


def test_list_names_every_variant() -> None:
    done = cxlemu("list", code=0)
    for collective in COLLECTIVES:
        rows = [line for line in done.output.splitlines() if line.startswith(f"{collective} ")]
        assert [name for row in rows for name in row.split("  ") if name.strip()] != []
        for variant in variants(collective):
            assert any(variant in row for row in rows), (collective, variant)
    assert "All-reduce, two shots: rank k reduces slice k" in done.output


@pytest.mark.parametrize("verb", [[], ["show"], ["save"], ["check"], ["list"]])
def test_help_has_examples(verb: list[str]) -> None:
    assert "Examples:" in cxlemu(*verb, "--help", code=0).output


@pytest.mark.parametrize(("config", "ranks"), [("laptop", 2), ("six-cards", 4)])
def test_plans_are_shown_for_the_ring_that_a_communicator_gets(config: str, ranks: int) -> None:
    where: dict[str, Any] = {"ranks": ranks, "topology": Topology.load(config), "memory": MemorySpec()}
    shown = Layout(**json.loads(cxlemu("show", "barrier", "-n", ranks, "-c", config, "--json", "-").output)["layout"])
    assert launch(_layout_of_the_world, heap_bytes="cards", **where) == [shown] * ranks
    for roomy in launch(_layout_of_the_world, **where):  # with a heap of model size the ring is the same
        assert roomy.heap_card_bytes > shown.heap_card_bytes
        assert replace(roomy, heap_card_bytes=shown.heap_card_bytes) == shown


def _layout_of_the_world(context: RankContext) -> Layout:
    return Communicator.world(context).layout
