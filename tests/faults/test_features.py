"""Every engine and judge declares which features of plans it models, and says so of a plan that has another one."""

from dataclasses import replace
from types import ModuleType

import pytest

from collectives.algorithms.catalog import build, recipe
from collectives.builder.recipes import with_checksums
from cxlemu.accelerator import plan as accelerator
from cxlemu.cli import main
from cxlemu.cost.model import CostModel
from cxlemu.engines import native, reference, virtual
from cxlemu.engines.virtual import VirtualCall
from cxlemu.errors import ArgumentError
from cxlemu.plan import Call, Flag, InHeap, Kernel, Layout, Op, Plan
from cxlemu.plan.features import OF_FLAGS, OF_OPS, Feature, features, features_of_tables
from cxlemu.plan.kernels import KERNELS
from cxlemu.topology import Topology
from faults.explore import plans as explorer
from faults.explore.plans import explore_plan, tiny_layout
from faults.explore.result import FindingKind
from faults.lockstep import lockstep
from faults.lockstep.counterexample import CallSequence
from faults.mutate.cases import MutationCase, plan_of, sequence, shipped_and_checked
from faults.prove import calls as prover
from faults.prove import prove_calls
from faults.verdict import Verdict
from tests.helpers.plans import without

EVERYTHING = frozenset(Feature)
LACKS = {
    reference: frozenset[Feature](),
    native: frozenset[Feature](),
    prover: frozenset[Feature](),
    lockstep: frozenset[Feature](),
    explorer: {Feature.PROCESS_ARRAYS},
    virtual: {Feature.CHECKSUMS, Feature.PROCESS_ARRAYS},
    accelerator: {Feature.CHECKSUMS, Feature.PEER_WRITES},
}
JUDGES = (prover, explorer, lockstep, reference, native)
TABLES = {Feature.HEAP, Feature.TOLD_PLACES, Feature.PROCESS_ARRAYS}
GATHER = Call("all_gather", "zero_copy", 2, 64, "u8")


def in_processes() -> Plan:
    """Arrays that peers read in the ranks' processes."""
    layout = replace(tiny_layout(2, lines=3), heap_card_bytes=2 * 4096)
    return build(recipe("all_gather", "zero_copy"), layout, replace(GATHER, heap=InHeap(0, output=64, in_process=True)))


def checked() -> Plan:
    its = with_checksums(recipe("all_gather", "all"))
    return build(its, tiny_layout(2, lines=3), replace(GATHER, algorithm=its.name))


def pushed() -> Plan:
    return plan_of(MutationCase("all_gather", "push", 2))


@pytest.mark.parametrize("judge", LACKS, ids=lambda judge: judge.__name__)
def test_what_each_engine_and_judge_models(judge: ModuleType) -> None:
    assert LACKS[judge] == EVERYTHING - judge.MODELS


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.deep)])
def test_no_shipped_plan_has_a_feature_that_a_judge_lacks(ranks: int) -> None:
    for case in shipped_and_checked(ranks):
        found = features(plan_of(case))
        assert [judge.__name__ for judge in JUDGES if not found <= judge.MODELS] == [], str(case)


def test_every_part_of_the_instruction_set_has_its_feature() -> None:
    assert set(OF_OPS) == set(Op) and set(OF_FLAGS) == set(Flag)
    for name, kind in KERNELS.items():
        assert kind.checks != bool(kind.product), f"{name} is a feature of its own"
    assert set(InHeap.__dataclass_fields__) == {"input", "step", "output", "in_process", "told"}


def test_features_are_those_of_all_ranks_and_streams() -> None:
    plan = plan_of(MutationCase("all_reduce", "all", 2))
    assert features(plan) == {Feature.FOLDS}
    assert features(checked()) == {Feature.CHECKSUMS, Feature.PAYLOADS}
    assert features_of_tables(in_processes()) == TABLES and features(in_processes()) == TABLES
    assert features(pushed()) == {Feature.HEAP, Feature.PEER_WRITES, Feature.TOLD_PLACES}
    last = plan.part(1)
    records = last.streams[-1].records.copy()
    records["op"][0] = Op.WRITE_NT
    streams = (*last.streams[:-1], replace(last.streams[-1], records=records))
    assert features(plan.with_part(replace(last, streams=streams))) == {Feature.FOLDS, Feature.NON_TEMPORAL}


PROCESSES = "does not model arrays in the ranks' processes, which [all_gather zero_copy 64 B u8 process+0 to +64] uses"


def test_explore_says_unknown_of_what_it_does_not_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = explore_plan(in_processes())
    assert (found.verdict, found.reason, found.states) == (Verdict.UNKNOWN, f"the explorer {PROCESSES}", 0)
    monkeypatch.setattr(explorer, "MODELS", explorer.MODELS - {Feature.TOLD_PLACES, Feature.HEAP})
    with pytest.raises(SystemExit) as stop:
        main(["explore", "all_gather", "--variant", "zero_copy"])
    out = " ".join(capsys.readouterr().out.split())
    assert stop.value.code == 3
    assert "unknown: the explorer does not model arrays in the heap and places of arrays in doorbells, which" in out


def test_other_judges_say_so_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    assert prove_calls([checked()]).verdict is Verdict.OK
    for judge in (prover, lockstep):
        monkeypatch.setattr(judge, "MODELS", judge.MODELS - {Feature.CHECKSUMS})
    monkeypatch.setattr("faults.lockstep.counterexample.MODELS", lockstep.MODELS)
    proof = prove_calls([checked()])
    says = "does not model checksums, which [all_gather all+crc32c 64 B u8] uses"
    assert (proof.verdict, proof.reason) == (Verdict.UNKNOWN, f"the prover {says}")
    with pytest.raises(ArgumentError) as refused:
        CallSequence.of([checked()])
    assert str(refused.value) == f"lockstep {says}"


def test_engines_refuse_what_they_do_not_model() -> None:
    model = CostModel.of(Topology.load("laptop"), ranks=2)
    for plan, feature in ((checked(), "checksums"), (in_processes(), "arrays in the ranks' processes")):
        with pytest.raises(ArgumentError, match=f"the virtual engine does not model {feature}"):
            virtual.simulate(model, [VirtualCall(plan)])
    with pytest.raises(ArgumentError, match="a plan with checksums takes no device arrays"):
        _ = accelerator.device_plan(checked()).parts
    with pytest.raises(ArgumentError, match="peers write results"):
        accelerator.device_plan(pushed())


# -- what the explorer models: places in doorbells, and checksums


def altered(plan: Plan, rank: int, stream: int, at: int, **fields: object) -> Plan:
    part = plan.part(rank)
    streams = list(part.streams)
    records = streams[stream].records.copy()
    for name, value in fields.items():
        records[name][at] = value
    streams[stream] = replace(streams[stream], records=records)
    return plan.with_part(replace(part, streams=tuple(streams)))


def the(plan: Plan, rank: int, op: Op, flags: int = 0) -> tuple[int, int, int]:
    """Locate the rank's first such instruction."""
    for stream, its in enumerate(plan.part(rank).streams):
        for at, i in enumerate(its.instructions):
            if i.op == op and i.flags & flags == flags:
                return rank, stream, at
    raise AssertionError(f"rank {rank} has no {op.name}")


def test_places_that_no_signal_of_the_call_has_told_are_a_violation() -> None:
    told = plan_of(MutationCase("all_gather", "zero_copy", 2))
    silent = altered(told, *the(told, 0, Op.SIGNAL, Flag.PLACES), flags=0)
    for calls in ([silent], [told, told, silent]):  # in the last one, those of an earlier call are still there
        assert prove_calls(calls).verdict is Verdict.VIOLATION
        found = explore_plan(calls)
        assert found.verdict is Verdict.VIOLATION and found.finding is not None
        assert found.finding.kind == FindingKind.FINAL
        assert "rank 1 takes places of arrays from published[0][0], where no signal of the call" in found.finding.text
    assert explore_plan([told] * 3).verdict is Verdict.OK


def test_a_doorbell_that_may_show_what_came_later_is_a_violation() -> None:
    """Its owner tells places there while the reader of the call before may not have looked."""
    case = MutationCase("broadcast", "zero_copy", 2)
    told = plan_of(case)
    hasty = without(told, *the(told, 0, Op.WAIT_ALL))
    calls = [hasty if plan is told else plan for plan in sequence(case, told, 0)]
    found, proof = explore_plan(calls), prove_calls(calls)
    assert found.verdict is proof.verdict is Verdict.VIOLATION
    assert found.finding is not None and found.finding.kind == FindingKind.UNEXPECTED
    assert "sees payload of published[0][0]" in found.finding.text and "the next payload" in proof.reason


@pytest.mark.parametrize("rank", [0, 1])
def test_a_checksum_of_other_bytes_is_a_violation(rank: int) -> None:
    right = plan_of(MutationCase("all_gather", "all", 2, checked=True))
    place = the(right, rank, Op.COMPUTE)
    source = right.part(rank).streams[place[1]].records["a"][place[2]].copy()
    source["offset"] += 64
    wrong = altered(right, *place, a=source)
    proof, found = prove_calls([wrong]), explore_plan([wrong])
    assert proof.verdict is found.verdict is Verdict.VIOLATION and found.finding is not None
    assert "compares bytes with a checksum of other bytes or of none" in found.finding.text
    assert "compares bytes with a checksum of other bytes or of none" in proof.reason


def test_a_checksum_of_bytes_that_may_be_stale_is_a_violation() -> None:
    right = plan_of(MutationCase("all_gather", "all", 2, checked=True))
    wrong = without(right, *the(right, 1, Op.INVALIDATE))
    assert prove_calls([wrong] * 4).verdict is explore_plan([wrong] * 4).verdict is Verdict.VIOLATION
    assert explore_plan([right] * 4).verdict is Verdict.OK


def test_buffers_that_are_not_the_calls_are_refused() -> None:
    layout = Layout(2, 1, 2, 256, 2, 64)
    its = Call("all_gather", "all", 2, 64, "u8")
    plan = build(recipe("all_gather", "all"), layout, its)
    larger = Plan(replace(its, nbytes=128), layout, plan.build)
    with pytest.raises(ArgumentError, match="rank 0 has input of 64 B, output of 128 B; its call takes input of 128 B"):
        explore_plan(larger)


def test_a_kernel_that_is_unknown_is_no_feature() -> None:
    with pytest.raises(KeyError):
        plan = checked()
        features_of_tables(
            Plan(plan.call, plan.layout, lambda rank: (replace(plan.frame, kernels=(Kernel("new"),)), plan.part(rank)))
        )
