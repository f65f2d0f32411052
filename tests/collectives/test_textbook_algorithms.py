"""The textbook algorithms of examples/algorithms: proved, explored, mutated, run and simulated like those we ship."""

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from collectives.algorithms.catalog import build
from collectives.builder import VARIANTS
from collectives.contracts import COLLECTIVES
from cxlemu.errors import ArgumentError
from cxlemu.plan import Call, Layout
from cxlemu.plan.text import counts
from faults.explore.plans import explore_plan
from faults.lockstep.counterexample import CallSequence, CounterexampleKind
from faults.lockstep.orders import in_random_order
from faults.mutate.cases import MutationCase
from faults.mutate.mutants import mutants
from faults.mutate.trial import Trial
from faults.prove.cases import prove_case
from faults.verdict import Verdict
from tests.helpers.commands import cxlemu, with_json
from tests.helpers.textbook import CLAIMS, EXAMPLES, NAMES, PAGES, asked, call, made, small_ring, steps_of, textbook

RANKS = (2, 3, 4, 5, 6, 7, 8, 16)
EACH = pytest.mark.parametrize("name", NAMES)


def matrix(name: str, ranks: int) -> Iterator[Call]:
    """Nothing, one element, odd sizes, a round and many; in place and not; operations and dtypes. All roots."""
    recipe = textbook(name)
    its = COLLECTIVES[recipe.collective]
    if not its.moves_data:
        yield call(recipe, ranks, 0)
        return
    many = 8 * small_ring(recipe, ranks).slot_bytes // ranks if ranks < 6 else 600
    for in_place in (False, True):
        for dtype, nbytes in (("u8", 1), ("f16", 2), ("f64", 8), ("f16", 2 * 77), ("f64", 8 * 33), ("u8", many + 1)):
            yield call(recipe, ranks, nbytes, dtype, in_place=in_place)
        yield call(recipe, ranks, 0, in_place=in_place)
        for op in ("avg", "max", "prod") if its.reduces else ():
            yield call(recipe, ranks, 8 * 33, "f64", op, in_place=in_place)


def test_all_twelve_are_there() -> None:
    assert set(NAMES) == set(CLAIMS)
    assert len(NAMES) == 12


@pytest.mark.each_value_once
@EACH
@pytest.mark.parametrize("ranks", RANKS)
def test_it_is_proved(name: str, ranks: int) -> None:
    """As users' algorithms run, chunked and overlapped: with every root, whatever other calls come before and after."""
    recipe = textbook(name)
    for its in matrix(name, ranks):
        if ranks > 5 and (its.nbytes not in (0, 8, 8 * 33) or its.redop in ("max", "prod")):
            continue
        proof = prove_case(recipe, small_ring(recipe, ranks), its)
        assert proof.verdict is Verdict.OK, f"{its}: {proof.reason}"


@pytest.mark.each_value_once
@EACH
@pytest.mark.parametrize("style", ["naive", "aggregate", "line"])
def test_it_is_proved_in_other_styles(name: str, style: str) -> None:
    recipe = textbook(name, style)
    for ranks, in_place in ((3, False), (4, True)):
        for nbytes in (0, 8, 200, 1000):
            its = call(recipe, ranks, nbytes, "f64", "avg", in_place=in_place)
            proof = prove_case(recipe, small_ring(recipe, ranks), its)
            assert proof.verdict is Verdict.OK, f"{its}: {proof.reason}"


@pytest.mark.each_value_once
@EACH
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_execution_is_right(name: str, ranks: int) -> None:
    for in_place in (False, True):
        for plan, calls in (
            (made(textbook(name), ranks, 64, in_place=in_place), 4),
            (made(textbook(name), ranks, 64, rounds=2, slots=1, in_place=in_place), 2),
        ):
            found = explore_plan([plan] * (calls if ranks < 4 else 1))
            assert found.verdict is Verdict.OK, found.finding or found.reason


@pytest.mark.deep(rows=lambda name: name not in ("ring_all_gather", "reduce_binomial"))
@EACH
def test_no_mutant_survives(name: str) -> None:
    """With two ranks, in place where that makes a difference. What is equivalent, no execution shows to be wrong."""
    recipe = textbook(name)
    plan = made(recipe, 2, 64, in_place=recipe.collective in ("all_reduce", "all_to_all"))
    trial = Trial(MutationCase(recipe.collective, "all" if plan.call.nbytes else "line", 2))
    trial.plan = plan
    judged = [trial.judge(mutant) for mutant in mutants(plan)]
    fates = Counter(its.fate for its in judged)
    assert not [its for its in judged if its.fate.survived], fates
    assert sum(count for fate, count in fates.items() if fate.value in ("confirmed", "refused")) > len(judged) / 3


@pytest.mark.each_value_once
@EACH
@pytest.mark.parametrize("ranks", [3, 5])
def test_executions_on_caches_that_nothing_keeps_coherent_give_numpys_bytes(name: str, ranks: int) -> None:
    for in_place, seed in itertools.product((False, True), range(2)):
        recipe = textbook(name)
        its = call(recipe, ranks, 8 * 33, "f64", "avg", root=1 % ranks, in_place=in_place)
        plan = build(recipe, small_ring(recipe, ranks), its)
        shown = CallSequence.of([plan] * 3).run(in_random_order(seed))
        assert shown.kind is CounterexampleKind.NOTHING, shown.detail


@pytest.mark.deep(rows=lambda name: name != "reduce_binomial")
@EACH
def test_threads_run_it(name: str) -> None:
    """Real ones, on an emulated pool with an adversary; the oracle's inputs are exact in any order."""
    words = ["run", *asked(name), "-n", 4, "--launch", "threads", "--adversary", 7]
    contract = COLLECTIVES[textbook(name).collective]
    if contract.moves_data:
        words += [
            "-b",
            "4K",
            "-e",
            "4K",
            "-d",
            "f32,bf16",
            "-r",
            "all",
            *(["-o", "sum,avg"] if contract.reduces else []),
        ]
    cxlemu(*words, code=0)


@EACH
def test_it_is_simulated_and_checked(name: str) -> None:
    collective = textbook(name).collective
    size = [] if collective == "barrier" else ["-b", "256K"]
    words = ["simulate", *asked(name), "-n", 4, *size, "--check"]
    document = with_json(*words, code=0)[1]
    rows = document["rows"]
    assert [(row["collective"], row["wrong"]) for row in rows] == [(collective, 0)]


# --- what the docstrings say --------------------------------------------------------------------------------------

M = 64 * 96  # a block in which no half of a half needs rounding


def wide(ranks: int) -> Layout:
    return Layout(ranks, 4, 2, ranks * 64 * M, max(64, 4 * ranks), 64)


@EACH
@pytest.mark.parametrize("ranks", RANKS)
def test_steps_and_bytes_are_those_the_docstring_gives(name: str, ranks: int) -> None:
    claim, page = CLAIMS[name], PAGES[name].read_text()
    told = " ".join(page.split('"""')[1].split())
    assert claim.steps_text in told
    for text in claim.texts:
        assert text in told
    recipe = textbook(name, "naive")
    for root in {0, ranks - 1} if COLLECTIVES[recipe.collective].rooted else {0}:
        plan = build(recipe, wide(ranks), call(recipe, ranks, M, root=root))
        assert plan.rounds == 1
        assert steps_of(plan) == claim.steps(ranks)
        for part in plan.parts:
            place, found = (part.rank - root) % ranks, counts(part)
            assert found.written_bytes == claim.written(ranks, place) * M
            assert found.read_bytes == claim.read(ranks, place) * M


def test_every_page_is_a_page_with_a_source_and_its_command() -> None:
    for name, file in PAGES.items():
        page = file.read_text()
        assert len(page.splitlines()) <= 85, name
        assert "\nSource: " in page
        assert name not in EXAMPLES or f"--algorithm examples/algorithms/{name}.py:{name}\n" in page


def test_zero_copy_says_what_it_cannot_forward() -> None:
    recipe = replace(textbook("ring_all_gather"), spec=VARIANTS["zero_copy"])
    its = replace(call(recipe, 3, 64), heap=None)
    with pytest.raises(ArgumentError, match="publishes x where it lies"):
        build(recipe, small_ring(textbook("ring_all_gather"), 3), its)
