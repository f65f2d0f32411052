"""One run: the commands of each stage as processes of emulated hosts, until they end or nothing gets on."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Generator
from contextlib import closing, nullcontext
from pathlib import Path

from cxlemu.files import read_file
from cxlemu.memory.line import LINE_BYTES
from cxlemu.units import counted
from faults.programs.area import (
    NO_PROGRESS,
    PATH_BYTES,
    REPEATS,
    Area,
    CrashArrival,
    RawFinding,
    RunOptions,
    RunStatus,
)
from faults.programs.doing import going_round
from faults.programs.findings import (
    KINDS,
    LOST_IN_CRASH,
    NOT_LINEARIZABLE,
    OF_FAILURES,
    ROLES,
    STATED,
    TORN_IN_CRASH,
    UNKNOWN_THREAD,
    ProgramFinding,
)
from faults.programs.folders import making, run_folder
from faults.programs.histories import KINDS_OF_OBJECTS, LoggedOperation, judge, names_of
from faults.programs.processes import RunProcesses
from faults.programs.result import ExecSetting, RunChoice, RunEnding, RunResult, crashed_host, dies_of_damage
from faults.programs.servers import ForkServers
from faults.programs.turns import damage_in

BegunRun = Generator[None, None, RunResult]


def run(setting: ExecSetting, choice: RunChoice, servers: ForkServers | None = None) -> RunResult:
    """Run all stages once; in a search, ``servers`` make the processes."""
    with closing(stages(setting, choice, servers)) as begun:
        next(begun)
        return finish(begun)


def finish(begun: BegunRun) -> RunResult:
    """Wait for a run to end; return what it came to."""
    try:
        next(begun)
    except StopIteration as ended:
        result: RunResult = ended.value
        return result
    raise AssertionError("a run begins once")


def stages(setting: ExecSetting, choice: RunChoice, servers: ForkServers | None) -> BegunRun:
    """Run all stages once, in two parts: `next` begins, and the processes go on by themselves until `finish`."""
    with (
        nullcontext(servers.folder) if servers else run_folder() as folder,
        making(_options(setting, choice), folder) as area,
    ):
        area.script(choice.script)
        if choice.losses is not None:
            area.lose(choice.losses)
        _fill(area, setting)
        area.check_room()
        result = RunResult(choice)
        with RunProcesses(area, setting, result, servers) as running:
            running.begin()
            yield
            running.all_stages()
        area.check_room(failed=result.ending is RunEnding.FAILED)
        status = area.status()
        if status.outcome == NO_PROGRESS:
            result.ending = RunEnding.NO_PROGRESS
            result.doing = going_round(area, setting)
        if status.outcome == REPEATS:
            result.ending = RunEnding.REPEATS
        area.judge()
        area.check_room()
        result.steps, result.trace, result.unannounced = status.steps, status.hash, status.unannounced
        watched = area.status()
        result.invariants = area.invariants()
        crashed = crashed_host(setting, choice)
        broken = crashed is not None or setting.poison or setting.lose or damage_in(choice.script)
        searched = broken and choice.losses is not None  # what breaks may do so before any operation
        result.unfired = _unfired(setting, watched) | _judge_histories(area, watched, result, asked=not searched)
        result.unfired |= {} if searched else _unused(setting, watched)
        result.expected, result.flushed = status.expected, bool(status.flushed)
        result.early = bool(status.past_early)
        result.watched_lines, result.watched_bytes = watched.watched_lines, watched.watched_bytes
        result.touched, result.met = bool(watched.touched), bool(watched.card_met or watched.line_met)
        result.absent = [pool.path for k, pool in enumerate(setting.pools) if watched.absent >> k & 1]
        result.opened = area.opened()
        result.turns = area.turns()
        if setting.every:
            result.record = area.record()
            if status.past_left_out:
                result.undecided.append("more stores past the caches were under way at once than can be followed")
        if choice.losses is not None:
            result.crashes = area.crashes()
        left_out = result.ending is RunEnding.REPEATS  # the rest, which might excuse what was found
        torn = list[RawFinding]()
        for raw in () if left_out else area.findings():
            kind = KINDS[raw.kind]
            if raw.kind in OF_FAILURES:
                torn.append(raw)
                continue
            if kind.rule == "exit" and (result.ending is not RunEnding.ENDED or dies_of_damage(result.exits)):
                continue  # its flush may have been still to come
            (result.warnings if ProgramFinding.one(bytes(raw)).warns else result.findings).append(raw)
        if result.failed and result.ending is not RunEnding.NO_PROGRESS:
            unexplained = all(KINDS[raw.kind].rule in STATED for raw in result.findings)
            result.findings += torn if unexplained else ()
        if result.findings or result.warnings or choice.losses is not None:
            result.places = area.places()
        if result.failed and crashed is not None and result.crashes:
            result.findings += [_lost(crashed, arrival) for arrival in result.crashes.arrivals if arrival.lost]
        return result


def _judge_histories(area: Area, status: RunStatus, result: RunResult, *, asked: bool) -> dict[str, str]:
    """Judge the operations that programs have logged; say what was ``asked`` for and not logged, or the other way."""
    if status.unexamined:
        result.undecided.append(
            f"cxl_invariant: {counted(status.unexamined, 'time')} the pool's bytes were not examined: each process "
            "that lets lines arrive there must declare the invariant"
        )
    raw = area.operations()
    if status.operations > len(raw):
        result.undecided.append(f"cxl_linearizable: more than {len(raw)} operations were logged, too many to judge")
        return {}
    operations = [LoggedOperation(o.operation, o.key, o.value, o.result, o.begin, o.end, o.host, o.site) for o in raw]
    logged, judged = 0, judge(operations, status.kinds_asked)
    for operation in operations:
        logged |= operation.object[0]
    result.undecided += judged.undecided
    if judged.wrong:
        result.history = judged.wrong
        result.findings.append(_unexplained(max(judged.wrong, key=lambda operation: operation.end)))
    unfired = {}
    judged_too = " else" if logged & status.kinds_asked else ""
    for kind, name in KINDS_OF_OBJECTS.items():
        if asked and kind & status.kinds_asked & ~logged:
            why = f"cxl_linearizable judged nothing{judged_too}: no operation of a {name} was logged"
            unfired[f"cxl_linearizable {name}"] = why
    if asked and (missing := names_of(logged & ~status.kinds_asked)):
        unfired["cxl_op_begin"] = f"operations of a {missing} were logged, but no program asks for cxl_linearizable"
    return unfired


def _unexplained(last: LoggedOperation) -> RawFinding:
    """Write a history that no order explains as a finding at its last operation."""
    finding = RawFinding(kind=NOT_LINEARIZABLE, rule=True, host=last.host, other_host=255, pool=255, times=1)
    finding.thread, finding.other_thread, finding.number = UNKNOWN_THREAD, UNKNOWN_THREAD, last.end
    finding.sites[ROLES.index("access")], finding.numbers[ROLES.index("access")] = last.site, last.begin
    return finding


def _lost(crashed: int, arrival: CrashArrival) -> RawFinding:
    """Write the loss of a store in a crash as a finding of the run that fails by it."""
    kind = TORN_IN_CRASH if arrival.torn else LOST_IN_CRASH
    finding = RawFinding(kind=kind, rule=True, host=arrival.host, other_host=crashed, pool=arrival.pool, times=1)
    finding.thread, finding.other_thread = arrival.thread, UNKNOWN_THREAD
    finding.offset, finding.nbytes, finding.number = arrival.line * LINE_BYTES, LINE_BYTES, arrival.step
    for role, site, step in (("store", arrival.lost_site, arrival.lost_step), ("access", arrival.site, arrival.step)):
        finding.sites[ROLES.index(role)], finding.numbers[ROLES.index(role)] = site, step
    return finding


def _unfired(setting: ExecSetting, status: RunStatus) -> dict[str, str]:
    """Say of each fault that never happened, or that no access met afterwards, why, by its flag."""
    asked: list[tuple[str, int | None, bool]] = [
        ("--crash", setting.crash and setting.crash[-1], True),
        ("--link-down", setting.link_down and setting.link_down[-1], bool(status.link_met)),
        ("--lose-card", setting.lose and setting.lose[-1], bool(status.card_met)),
        ("--poison", setting.poison and setting.poison[-1], bool(status.line_met)),
    ]
    sentences = {}
    for flag, step, met in asked:
        if step is not None and not 1 <= step <= status.steps:
            sentences[flag] = (
                f"{flag} never happened: it is at step {step}, and the longest run made steps 1 to {status.steps}"
            )
        elif step is not None and not met:
            sentences[flag] = f"{flag} changed nothing: no access met it afterwards"
    for k, span in enumerate(setting.coherent):
        if not status.coherent_met >> k & 1:
            flag = f"--coherent {span.text}"
            sentences[flag] = f"{flag} changed nothing: no program touched it in pool {span.pool}"
    if setting.dma_writes != ExecSetting.dma_writes and not status.device_copies:
        sentences["--dma-writes"] = f"--dma-writes {setting.dma_writes} changed nothing: no device copied to a pool"
    return sentences


def _unused(setting: ExecSetting, status: RunStatus) -> dict[str, str]:
    """Say of each pool that no program touched, beside others, that it did nothing, by its flag."""
    idle = [pool.path for k, pool in enumerate(setting.pools) if status.touched and not status.touched >> k & 1]
    return {f"--pool {path}": f"--pool {path} did nothing: no program touched it" for path in idle}


def _options(setting: ExecSetting, choice: RunChoice) -> RunOptions:
    seed = choice.seed if choice.seed is not None else 0
    options = RunOptions(
        hosts=setting.hosts,
        pools=len(setting.pools),
        nature=choice.seed is not None,
        free_running=setting.free,
        check=setting.check,
        every=setting.every,
        crash_host=-1,
        crashes=choice.losses is not None,
        link_host=-1,
        poison_pool=-1,
        lost_pool=-1,
        dma_to_memory=setting.dma_writes == "memory",
        script_length=len(choice.script),
        seed=seed,
        schedule=choice.schedule,
        idle_budget=setting.idle_budget,
    )
    if setting.crash:
        options.crash_host, options.crash_step = setting.crash
    if setting.link_down:
        options.link_host, options.link_step = setting.link_down
    if setting.poison:
        options.poison_pool, options.poison_offset, options.poison_step = setting.poison
    if setting.lose:
        options.lost_pool, options.lost_step = setting.lose
    rates = setting.rates
    options.rates = (ctypes.c_double * 3)(rates.evict, rates.prefetch, rates.land)
    for k, pool in enumerate(setting.pools):
        options.capacity[k], options.dax[k] = pool.capacity, pool.dax
        options.path[k].value = os.fsencode(pool.path)[: PATH_BYTES - 1]
    for k, span in enumerate(setting.coherent):
        options.coherent[k][:] = (span.pool, span.begin, span.end)
    return options


def _fill(area: Area, setting: ExecSetting) -> None:
    """Make the files that programs open: their sizes are theirs, their bytes are the pool's."""
    for k, pool in enumerate(setting.pools):
        if pool.size is not None:
            with (area.folder / f"file-{k}").open("wb") as file:
                file.truncate(pool.size)
        if pool.content is not None:
            area.pool(k, read_file(pool.content, pool.capacity))
        if pool.dax:
            for name in (Path(pool.path).name, f"252:{k}"):
                system = area.folder / "sys" / name
                system.mkdir(parents=True)
                (system / "size").write_text(f"{pool.size}\n")
                (system / "align").write_text(f"{2 << 20}\n")
