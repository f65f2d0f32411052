"""One run: the commands of each stage as processes of emulated hosts, until they end or nothing gets on."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from faults.programs.area import NO_PROGRESS, PATH_BYTES, Area, RunOptions, making
from faults.programs.processes import RunProcesses
from faults.programs.result import ExecSetting, RunChoice, RunEnding, RunResult


def run(setting: ExecSetting, choice: RunChoice) -> RunResult:
    """Run all stages once.

    Args:
        setting: What is run.
        choice: The seed or the schedule.

    Raises:
        ArgumentError: A command cannot be started.
    """
    with making(_options(setting, choice)) as area:
        area.script(choice.script)
        _fill(area, setting)
        result = RunResult(choice)
        running = RunProcesses(area, setting, result)
        try:
            running.all_stages()
        finally:
            running.end_all()
        status = area.status()
        if status.outcome == NO_PROGRESS:
            result.ending = RunEnding.NO_PROGRESS
        area.judge()
        result.steps, result.trace, result.unannounced = status.steps, status.hash, status.unannounced
        watched = area.status()
        result.watched_lines, result.watched_bytes = watched.watched_lines, watched.watched_bytes
        result.turns, result.findings, result.places = area.turns(), area.findings(), area.places()
        return result


def _options(setting: ExecSetting, choice: RunChoice) -> RunOptions:
    seed = choice.seed if choice.seed is not None else 0
    options = RunOptions(
        hosts=setting.hosts,
        pools=len(setting.pools),
        nature=choice.seed is not None,
        free_running=setting.free,
        check=setting.check,
        crash_host=-1,
        link_host=-1,
        poison_pool=-1,
        lost_pool=-1,
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
    return options


def _fill(area: Area, setting: ExecSetting) -> None:
    """Make the files that programs open: their sizes are theirs, their bytes are the pool's."""
    for k, pool in enumerate(setting.pools):
        if pool.size is not None:
            with (area.folder / f"file-{k}").open("wb") as file:
                file.truncate(pool.size)
        if pool.content is not None:
            area.pool(k, pool.content.read_bytes())
        if pool.dax:
            for name in (Path(pool.path).name, f"252:{k}"):
                system = area.folder / "sys" / name
                system.mkdir(parents=True)
                (system / "size").write_text(f"{pool.size}\n")
                (system / "align").write_text(f"{2 << 20}\n")
