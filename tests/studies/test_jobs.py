"""Two jobs on one fabric: alone as by themselves, together as in one run of the virtual engine, and what is refused."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from collectives.algorithms.catalog import build, recipe
from collectives.layouts import world_layout
from collectives.sweep.sweep import Case, Sweep
from collectives.sweep.virtual.plans import planned
from collectives.sweep.virtual.simulated import simulate_case
from cxlemu.cost import CostModel
from cxlemu.engines.shared import SharedFabric
from cxlemu.engines.virtual import VirtualCall, simulate
from cxlemu.topology import Accelerator, Topology
from studies.jobs.beside import compare
from studies.jobs.rounds import CollectiveJob, TrainingJob
from studies.jobs.server import ServingJob
from studies.serving.outcome import ServingOutcome
from studies.serving.requests import generate
from studies.serving.simulation import ServingSetup
from studies.serving.simulation import simulate as serve
from studies.training.language_model import LanguageModel
from studies.training.machine import TrainingMachine
from studies.training.parallelism import Parallelism
from studies.training.step import train
from studies.training.symmetric import fabric_of
from tests.helpers.commands import cxlemu
from tests.helpers.serving import BLOCK_BYTES, iterations, machine, request
from tests.helpers.tables import with_rows

TWELVE = Topology.load("twelve-hosts")


def case_of(collective: str, size: int, ranks: int) -> Case:
    (case,) = Sweep((collective,), [size], check=False).cases(ranks)
    return case


def invoked(line: str, **how: Any) -> Result:
    return cxlemu("simulate", *shlex.split(line), **how)


# --- the engine -------------------------------------------------------------------------------------------------------


def test_calls_begun_one_by_one_take_what_they_take_in_one_run() -> None:
    """Two tenants' first calls, on ranks 0 to 4 and 5 to 11, and the second one's, which starts on a new ring."""
    cases = case_of("all_reduce", 8 << 20, 5), case_of("all_to_all", 4 << 20, 7)
    places = tuple(range(5)), tuple(range(5, 12))
    plans = [planned(TWELVE, case, space=TWELVE.pool_space, levels=False)[0] for case in cases]
    model = CostModel.of(TWELVE, 12)
    calls = [VirtualCall(plan, ranks) for plan, ranks in zip(plans, places, strict=True)]
    together = simulate(model, calls)
    fabric, ends = SharedFabric(model), dict[int, int]()
    for number, call in enumerate(calls):
        fabric.begin(call, 0, lambda now_ns, number=number: ends.setdefault(number, now_ns))  # type: ignore[misc]
    fabric.run(lambda: len(ends) < 2)
    assert [ends[0], ends[1]] == [together.call_ns(0), together.call_ns(1)]
    assert max(ends.values()) > simulate(model, calls[1:]).time_ns
    uses = [(use.resource.name, use.bytes, use.busy_ns) for use in together.uses]
    assert [(use.resource.name, use.bytes, use.busy_ns) for use in fabric.transfers.uses] == uses
    again = list[int]()
    fabric.begin(calls[0], fabric.now_ns, again.append)
    before_ns = fabric.now_ns
    fabric.run(lambda: not again)
    assert again[0] - before_ns == simulate(model, calls[:1]).time_ns


def test_a_call_that_begins_again_waits_for_its_own_rounds() -> None:
    """Its ring wraps: writers wait for readers, who were done with as many rounds of the call before."""
    call = replace(case_of("broadcast", 8 << 20, 3).call, algorithm="all")
    plan = build(recipe("broadcast", "all"), world_layout(TWELVE, 3, region_bytes=1 << 20), call)
    assert plan.rounds > 2 * plan.layout.slots
    fabric, ends = SharedFabric(CostModel.of(TWELVE, 3)), [0]
    for count in (2, 3):
        fabric.begin(VirtualCall(plan, (0, 1, 2)), fabric.now_ns, ends.append)
        fabric.run(lambda count=count: len(ends) < count)  # type: ignore[misc]
    assert ends[2] - ends[1] == ends[1] - ends[0] > 0


def test_a_rank_is_in_one_call_at_a_time() -> None:
    plan = planned(TWELVE, case_of("all_gather", 1 << 20, 3), space=TWELVE.pool_space)[0]
    fabric = SharedFabric(CostModel.of(TWELVE, 4))
    fabric.begin(VirtualCall(plan, (0, 1, 2)), 0, lambda _: None)
    with pytest.raises(ValueError, match="in no other call"):
        fabric.begin(VirtualCall(plan, (1, 2, 3)), 0, lambda _: None)


# --- jobs alone -------------------------------------------------------------------------------------------------------


def test_a_job_alone_is_what_its_own_command_says() -> None:
    case = case_of("all_gather", 16 << 20, 4)
    shape = LanguageModel.load("llama3-8b").varied(batch_sequences=4)
    trainer = TrainingMachine(Accelerator.load("h100-sxm"), fabric_of(TWELVE, 4))
    step = train(shape, Parallelism.parse("fsdp", 4), trainer)
    found = compare(TWELVE, [CollectiveJob(TWELVE, case, 3), TrainingJob(TWELVE, step, 1)])
    assert found.jobs[0].alone_ns == 3 * simulate_case(TWELVE, case)[1].time_ns
    assert found.jobs[1].alone_ns == step.time_ns
    setup = ServingSetup(machine(4), iterations(), "rdma")
    requests = generate(60, 2000, 1)
    alone = ServingOutcome.of(serve(ServingSetup(machine(2), iterations(), "rdma"), requests))
    other = ServingJob(setup, [request(0, [1])], 2)
    for jobs in ([ServingJob(setup, requests, 2), other], [other, ServingJob(setup, requests, 2)]):
        its = next(its for its in compare(setup.topology, jobs).jobs if its.job is not other)
        assert its.alone_ns == alone.run.now_ns
        assert [one.alone for one in its.figures[:3]] == [ns / 1e6 for ns in alone.first_token.percentiles]


# --- jobs beside each other -------------------------------------------------------------------------------------------


def test_two_servers_share_what_their_cards_carry() -> None:
    """Hosts with links of 300 GB/s each read a block at once from cards that carry 200 GB/s together."""
    setup = ServingSetup(machine(2, 300), iterations(3), "pool", warm=True)
    jobs = [ServingJob(setup, [request(0, [1, 2]), request(0, [1, 3])], 1) for _ in range(2)]
    found = compare(setup.topology, jobs)
    ns = BLOCK_BYTES // 200
    firsts = [[its.figures[0].alone, its.figures[0].beside] for its in found.jobs]
    assert firsts[1][1] - firsts[1][0] == pytest.approx(ns / 1e6)
    assert firsts[0][1] >= firsts[0][0]
    assert {use.resource.kind for use in found.shared} == {"link", "card"}
    assert found.together == pytest.approx(1, abs=0.01)


def test_a_training_job_and_a_server_slow_each_other_down(tmp_path: Path) -> None:
    job, file = tmp_path / "serve.yaml", tmp_path / "found.json"
    job.write_text("simulate: serving\nhosts: 8\nworkload: documents\nwarm: true\nrequests: 60\nrate: 40\n")
    done = invoked(f"training -c twelve-hosts -n 4 --batch 4 --with {job} --json {file}", code=0)
    found = json.loads(file.read_text())
    trained, served = ({row["name"]: row for row in its["figures"]} for its in found["jobs"])
    assert trained["step, ms"]["slowdown"] > 1.1
    assert served["time to first token, ms, p50"]["slowdown"] > 1
    assert [its["job"] for its in found["jobs"]] == ["training", "serving"]
    assert found["jobs"][1]["first_rank"] == 4
    assert "hosts 4 to 11" in done.output
    assert re.search(r"is the busiest, for \d+% of the time. Both run for 100% of it", done.output)


def test_two_collectives_from_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("simulate: all_to_all\nranks: 6\nminbytes: 8M\niters: 2\n")
    done = invoked(
        f"all_gather -c twelve-hosts -n 6 -b 64M --iters 3 --with {tmp_path / 'other.yaml'} --json -", code=0
    )
    rows = [its["figures"][0] for its in json.loads(done.stdout)["jobs"]]
    assert all(row["slowdown"] > 1.05 for row in rows)


def test_jobs_that_share_nothing_are_not_compared(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("simulate: serving\nhosts: 1\nplace: accelerator\nrequests: 5\n")
    done = invoked(f"all_gather -c twelve-hosts -n 3 -b 1M --with {job}")
    assert (done.exit_code, "share no link and no card" in done.output) == (3, True), done.output


@with_rows(
    ("ranks: 3\n", "simulate is empty, which is not a job"),
    ("simulate: all_gater\n", "did you mean all_gather"),
    ("simulate: training\nranks: 4\nstages: 2\n", "job.yaml:3: stages is not a key of training"),
    ("simulate: training\nranks: 4\nbatch: many\n", "job.yaml:3: batch 'many' is not a valid integer"),
    ("simulate: training\nranks: [4]\n", "job.yaml:2: ranks is [4] but should be text"),
    ("simulate: training\nranks: 2-4\n", "job.yaml:2: ranks should be one number"),
    ("simulate: training\nranks: 4\nparallel: tp=2\n", "training is fsdp"),
    ("simulate: training\n", "its number of ranks, 2 or more: --ranks, or the key ranks"),
    ("simulate: serving\n", "its number of hosts: --hosts, or the key hosts"),
    ("simulate: serving\nhosts: 2\nplace: pool,rdma\n", "has one --place"),
    ("simulate: serving\nhosts: 10\n", "has places for 12 ranks, but the jobs take 3 + 10"),
    ("simulate: all_reduce\nranks: 3\nvariant: every\n", "one variant"),
    ("- 1\n", "a job is a mapping"),
)
def test_a_job_that_cannot_be_is_refused_with_a_sentence(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(text)
    done = invoked(f"all_gather -c twelve-hosts -n 3 -b 1M --with {tmp_path / 'job.yaml'}", code=2)
    assert said in re.sub(r"\s+", " ", done.output), done.output


@with_rows(
    ("serving -c twelve-hosts --hosts 2 --crash 0@1", "--crash does not go with --with"),
    ("training -c twelve-hosts -n 4 --batch 4 --against six-cards", "--against does not go with --with"),
    ("all_gather -c twelve-hosts -n 3 --check", "--check does not go with --with"),
    ("all_gather all_reduce -c twelve-hosts -n 3", "one collective"),
    ("all_gather -c infiniband-3xh100 -n 2", "has no pool"),
)
def test_flags_that_mean_nothing_beside_another_job_are_refused(line: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("simulate: all_gather\nranks: 3\nminbytes: 1M\n")
    done = invoked(f"{line} --with {tmp_path / 'job.yaml'}", code=2)
    assert said in re.sub(r"\s+", " ", done.output), done.output
