"""All ranks' measurements of a fused operator, together: metrics, whether they may be called overlap, and events."""

import statistics
from collections.abc import Iterator, Sequence

from collectives.choices import STYLES
from collectives.fused.choice import call_of
from collectives.fused.plans import build
from collectives.sweep.fused.measure import Job, Seen, cut
from collectives.sweep.fused.metrics import Metrics, Wait
from cxlemu.engines.trace import TraceEvent
from cxlemu.plan import Op, Plan
from cxlemu.units import counted

KEEPS_UP = 1.5  # communication alone, against what its model says: beyond, the machine is measured and not the model


def times_ns(seen: Sequence[Seen], name: str) -> list[int]:
    """How long every timed call took, from its first rank's begin to its last rank's end, in ns."""
    entered, left = ([getattr(seen, which)[name] for seen in seen] for which in ("entered_ns", "left_ns"))
    return [
        max(ends) - min(begins)
        for begins, ends in zip(zip(*entered, strict=True), zip(*left, strict=True), strict=True)
    ]


def median_ns(seen: Sequence[Seen], name: str) -> float:
    return statistics.median(times_ns(seen, name))


def metrics(seen: Sequence[Seen], job: Job) -> Metrics | None:
    """Compute the metrics from medians of all timed calls; None unless all styles were run."""
    if set(job.styles) != set(STYLES):
        return None
    names = ("gemm", "tiled", "comm", "unfused", "medium", "fused")
    return Metrics(**{f"{name}_ns": median_ns(seen, name) for name in names}, wait_ns=_wait_ns(seen, job))


def refusal(seen: Sequence[Seen], comm_ns: float | None) -> str:
    """Say why nothing can be claimed about overlap; "" if it can be. ``comm_ns`` is modelled, None without a pace."""
    if comm_ns is None:
        return "a rank copies and computes on one core, one after the other: with --pace its copies take modelled time"
    if not all(seen.a_core_each for seen in seen):
        return f"{len(seen)} ranks share {counted(seen[0].cores, 'core')}: their products wait for each other"
    slower = median_ns(seen, "comm") / comm_ns
    if slower > KEEPS_UP:
        return f"this machine does not keep up: communication takes {slower:.1f} times as long as modelled"
    return ""


def plan_of(seen: Seen, job: Job, style: str) -> Plan:
    """Rebuild the plan that ranks measured for a style: "fused", "medium" or "unfused"."""
    return build(seen.layout, call_of(job.operator, style, seen.layout.ranks, cut(job, style)))


def waits(seen: Sequence[Seen], job: Job) -> list[Wait]:
    """The waits for doorbells in the traced fused call, of all ranks."""
    plan, waits_seen = plan_of(seen[0], job, "fused"), []
    for one in seen:
        for step in one.steps.get("fused", ()):
            instruction = plan.part(one.rank).streams[step.stream].instructions[step.at]
            if instruction.op == Op.WAIT:
                waits_seen.append(Wait(one.rank, instruction.arg, step.end_ns - step.begin_ns))
    return waits_seen


def _wait_ns(seen: Sequence[Seen], job: Job) -> float:
    """The mean wait for a doorbell in the fused call over all ranks, in ns."""
    seen_waits = waits(seen, job)
    return statistics.mean(wait.ns for wait in seen_waits) if seen_waits else 0.0


def events(seen: Sequence[Seen], job: Job) -> Iterator[TraceEvent]:
    """Yield the traced calls, one style after another, for `cxlemu.engines.trace.perfetto`."""
    start_ns = 0
    for style in job.styles:
        plan = plan_of(seen[0], job, style)
        steps = [step for seen in seen for step in seen.steps[style]]
        if not steps:
            continue
        begin_ns = min(step.begin_ns for step in steps)
        for one in seen:
            for step in one.steps[style]:
                stream = plan.part(one.rank).streams[step.stream]
                instruction = stream.instructions[step.at]
                kernel = f" {plan.frame.kernels[instruction.arg]}" if instruction.op == Op.COMPUTE else ""
                yield TraceEvent(
                    "ranks",
                    f"rank{one.rank} {stream.name}",
                    instruction.op.name + kernel,
                    start_ns + step.begin_ns - begin_ns,
                    start_ns + step.end_ns - begin_ns,
                    {"style": style, "at": step.at, "bytes": instruction.nbytes},
                )
        start_ns += max(step.end_ns for step in steps) - begin_ns
