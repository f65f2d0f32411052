"""Proofs of fused plans: synchronization and values, whatever the tiles; and a tile of wrong operands is found."""

from dataclasses import replace
from itertools import product

import pytest

from collectives.checking.symbolic import verify
from collectives.fused import KINDS, STYLES, TRANSPORTS, fused_plan
from cxlemu.errors import ContractError
from cxlemu.plan import Frame, Instruction, Kernel, Layout, Op, Plan, RankPart, encode
from cxlemu.plan.kernels import KERNELS, KernelKind
from cxlemu.plan.rules import findings
from faults.explore.plans import explore_plan
from faults.mutate.cases import WIDE, MutationCase, plan_of
from faults.mutate.mutants import Mutant, apply, mutants
from faults.mutate.sweep import is_needless
from faults.mutate.trial import Fate, Trial
from faults.prove import Proof, prove, prove_calls
from faults.replay.calls import token_of
from faults.verdict import Verdict
from tests.helpers.commands import cxlemu, with_json
from tests.helpers.tables import with_rows


def small(kind: str, style: str, ranks: int, lines: int = 40, dtype: str = "f32", **tiles: object) -> Plan:
    layout = Layout(ranks, 2, 2, lines * 64 * ranks, 3 * (ranks + 1), 64)
    n = 7 * ranks if kind == "all_gather_gemm" else 7
    if style == "fused":
        tiles = {"comm_tile_rows": 3, "compute_tile": (2, 5), **tiles}
    return fused_plan(kind, style, layout, 5 * ranks, n, 6 * ranks, dtype, **tiles)  # type: ignore[arg-type]


@pytest.mark.deep(rows=lambda ranks: ranks not in (1, 2, 3))
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 7, 8, 12, 16])
@pytest.mark.parametrize("kind", KINDS)
def test_every_fused_plan_is_proved(kind: str, ranks: int) -> None:
    for style in STYLES:
        for lines in (40, max(ranks, 3)):  # one round, or several
            proof = prove(small(kind, style, ranks, lines))
            assert (proof.verdict, proof.reason) == (Verdict.OK, "")


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_the_tiles(kind: str) -> None:
    for comm, rows, cols in ((1, 1, 1), (5, 5, 7), (2, 3, 4), (4, 1, 7), (1, 5, 2)):
        for order in ("shifted", "natural"):
            plan = small(kind, "fused", 3, comm_tile_rows=comm, compute_tile=(rows, cols), order=order)
            assert prove(plan).verdict is Verdict.OK


@pytest.mark.parametrize("kind", KINDS)
def test_every_element_is_the_dot_of_its_row_and_column_on_symbols(kind: str) -> None:
    for style, lines in product(STYLES, (40, 4)):
        verify(small(kind, style, 3, lines, dtype="bf16"))
    verify(small(kind, "fused", 4, transport=TRANSPORTS[kind][1], compute_tile=(10, 3)))


@pytest.mark.parametrize("kind", KINDS)
def test_every_execution_of_a_product_is_right(kind: str) -> None:
    """Local memory that streams hand on to each other is explored as well; two rounds use a slot again."""
    for case in (MutationCase(kind, style, 2, rounds) for style, rounds in product(STYLES, (1, 2))):
        explored = explore_plan(plan_of(case))
        assert (explored.verdict, explored.reason) == (Verdict.OK, ""), case
    plan = plan_of(MutationCase(kind, "fused", 2))
    for mutant in mutants(plan):
        wrong = apply(plan, mutant)
        if mutant.rank == 0 and mutant.kind == "delete" and next(findings(wrong), None) is None:
            proof = prove_calls([wrong])
            assert explore_plan(wrong).verdict is proof.verdict, (mutant, proof.reason)


def test_push_is_proved() -> None:
    assert prove(small("all_gather_gemm", "fused", 4, transport="push")).verdict is Verdict.OK


# --- break it --------------------------------------------------------------------------------------------------------


def altered(plan: Plan, alter, rank: int = 1, which: int = 2) -> Plan:  # type: ignore[no-untyped-def]
    """The plan in which one COMPUTE of a rank is another: ``alter`` gives it, and the frame for it."""
    part, frame = plan.part(rank), plan.frame
    [number] = [index for index, stream in enumerate(part.streams) if stream.name == "compute"]
    instructions = list(part.streams[number].instructions)
    at = [index for index, i in enumerate(instructions) if i.op == Op.COMPUTE][which]
    instructions[at], frame = alter(instructions[at], frame)
    streams = list(part.streams)
    streams[number] = replace(streams[number], records=encode(instructions))
    wrong = replace(part, streams=tuple(streams))

    def build(of: int) -> tuple[Frame, RankPart]:
        return frame, wrong if of == rank else plan.part(of)

    return Plan(plan.call, plan.layout, build)


ALTERATIONS = {
    "another row of A": lambda i, f: (i._replace(a=i.a.at(-4 * _k(i, f))), f),
    "a row of A that begins an element late": lambda i, f: (i._replace(a=i.a.at(4)), f),
    "another column of B": lambda i, f: (i._replace(b=i.b.at(4)), f),
    "another place of the result": lambda i, f: (i._replace(dst=i.dst.at(4)), f),
    "a shorter sum": lambda i, f: _with_kernel(i, f, lambda m, n, k, a, b, c: (m, n, k - 1, a, b, c)),
    "rows of A that overlap": lambda i, f: _with_kernel(i, f, lambda m, n, k, a, b, c: (m, n, k - 1, a - 1, b, c)),
    "a column less": lambda i, f: _with_kernel(i, f, lambda m, n, k, a, b, c: (m, n - 1, k, a, b, c)),
}


def _k(i: Instruction, frame: Frame) -> int:
    return frame.kernels[i.arg].parameters[2]


def _with_kernel(i: Instruction, frame: Frame, change) -> tuple[Instruction, Frame]:  # type: ignore[no-untyped-def]
    """The instruction with a kernel that is not in the table yet."""
    kernel = frame.kernels[i.arg]
    new = Kernel(kernel.name, change(*kernel.parameters))
    nbytes = KERNELS[new.name].sizes(new.parameters)[0]
    return i._replace(arg=len(frame.kernels), nbytes=nbytes), replace(frame, kernels=(*frame.kernels, new))


@pytest.mark.each_value_once
@pytest.mark.parametrize("what", ALTERATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_tile_of_wrong_operands_is_found(kind: str, what: str) -> None:
    wrong = altered(small(kind, "fused", 3), ALTERATIONS[what])
    proof = prove(wrong)
    assert proof.violation.rule == "contract", proof.reason
    assert "is not what the contract says" in proof.reason
    with pytest.raises(ContractError, match="the contract says"):
        verify(wrong)
    assert explore_plan(wrong).verdict is Verdict.VIOLATION


def test_a_product_of_another_dtype_is_found() -> None:
    def wider(i: Instruction, frame: Frame) -> tuple[Instruction, Frame]:
        kernel = Kernel("gemm_bf16", frame.kernels[i.arg].parameters)
        return i._replace(arg=len(frame.kernels)), replace(frame, kernels=(*frame.kernels, kernel))

    proof = prove(altered(small("all_gather_gemm", "fused", 2, dtype="f16"), wider))
    assert proof.violation is not None and proof.violation.rule == "contract"


def test_a_sum_in_another_order_is_found() -> None:
    """Ranks fold in rank order: another one gives other bits, but for a + b and b + a."""
    assert _with_sources_exchanged("b", "a").verdict is Verdict.OK
    proof = _with_sources_exchanged("b", "c")
    assert proof.violation is not None and proof.violation.rule == "fold_order"
    assert "folded in another order" in proof.reason


def _with_sources_exchanged(one: str, other: str) -> Proof:
    plan = small("gemm_reduce_scatter", "medium", 3)
    part = plan.part(0)
    [number] = [index for index, stream in enumerate(part.streams) if stream.name == "retrieve"]
    swapped = [
        i._replace(**{one: getattr(i, other), other: getattr(i, one)}) if i.op == Op.REDUCE else i
        for i in part.streams[number].instructions
    ]
    streams = tuple(
        replace(stream, records=encode(swapped)) if index == number else stream
        for index, stream in enumerate(part.streams)
    )
    return prove(plan.with_part(replace(part, streams=streams)))


def test_what_an_unknown_kernel_makes_stays_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    gemm = KERNELS["gemm_f32"]
    monkeypatch.setitem(KERNELS, "gemm_f32", KernelKind(gemm.run, gemm.touches))
    for kind in KINDS:
        proof = prove(small(kind, "fused", 2))
        assert proof.verdict is Verdict.UNKNOWN
        assert "values computed by kernel gemm_f32 are not" in proof.reason


# --- the commands ----------------------------------------------------------------------------------------------------


def test_prove_names_products() -> None:
    document = with_json("prove", "gemm_all_reduce", "barrier", "-n", "2", code=0)[1]
    rows = document["rows"]
    named = [(row["collective"], row["variant"], row["verdict"]) for row in rows if row["collective"] != "barrier"]
    assert named == [("gemm_all_reduce", style, "ok") for style in STYLES]


@with_rows(
    (["gemm_all_reduce", "--variant", "fine"], "gemm_all_reduce has no style 'fine': it has fused, medium, unfused"),
    (["gemm_all_reduce", "--in-place"], "matrix products are proved without"),
)
def test_prove_says_what_products_do_not_have(arguments: list[str], says: str) -> None:
    done = cxlemu("prove", *arguments)
    assert (done.exit_code, says in done.output) == (2, True)


@pytest.mark.each_value_once
@pytest.mark.parametrize(
    "form", ["1", "2", *(pytest.param(form, marks=pytest.mark.deep) for form in ("transport", WIDE))]
)
@pytest.mark.parametrize("kind", KINDS)
def test_every_mutant_is_killed_or_proved_right_and_nothing_is_needless(kind: str, form: str) -> None:
    if form.isdigit():
        trial = Trial(MutationCase(kind, "fused", 2, int(form)))
    else:
        trial = Trial(MutationCase(kind, "fused", 2, form=TRANSPORTS[kind][1] if form == "transport" else form))
    judged = [trial.judge(mutant) for mutant in trial.mutants() if mutant.rank == 0 and mutant.kind != "duplicate"]
    assert not [judgement for judgement in judged if judgement.fate.survived or is_needless(trial.plan, judgement)]
    killed = [judgement for judgement in judged if judgement.fate in (Fate.CONFIRMED, Fate.REFUSED)]
    assert {judgement.instruction for judgement in killed} >= {"AWAIT", "RECORD", "WAIT", "FLUSH", "FENCE", "SIGNAL"}


def test_a_mutant_of_a_product_has_a_token_that_replays() -> None:
    trial = Trial(MutationCase("gemm_reduce_scatter", "fused", 2))
    part = trial.plan.part(0)
    [(stream, at)] = [
        (s, at)
        for s, its in enumerate(part.streams)
        for at, i in enumerate(its.instructions)
        if its.name == "publish" and i.op == Op.AWAIT
    ][:1]
    judgement = trial.judge(Mutant(0, stream, at, "delete"))
    assert judgement.fate is Fate.CONFIRMED and judgement.shown is not None
    plans = trial.program(0).plans
    token = token_of(plans, judgement.shown, mutated=trial.plan, mutant=str(judgement.mutant))
    replayed = cxlemu(*token.command().split()[1:])
    assert judgement.shown.detail in replayed.output, replayed.output
