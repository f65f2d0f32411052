"""What ``cxlemu torchrun`` does: starts the ranks, and tells what became of each."""

import importlib.util
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from cxlemu.choices import DEFAULT_TOPOLOGY
from cxlemu.cli.console import console
from cxlemu.cli.output import write_json
from cxlemu.cli.params import given_flags
from cxlemu.errors import ArgumentError, name_ranks
from cxlemu.files import read_file
from cxlemu.memory import MemorySpec
from cxlemu.plan import Op
from cxlemu.signals import is_stop, stops_exit
from cxlemu.topology import Topology
from cxlemu.topology.fields import closest
from cxlemu.units import counted
from cxlemu.world.topology_of import with_card_bytes
from faults.cli.torchrun import TorchrunFlags
from faults.cli.torchrun_rounds import tell_rounds
from faults.cli.torchrun_undone import undone, without_a_word
from faults.torch.launch import Round, run_ranks
from faults.torch.script import LeftOut, TrainingScript
from faults.torch.settings import VARIABLE, Settings

FOUND_MAX = 5  # findings that are printed
REPORT_BYTES_MAX = 1 << 30


def run(ctx: click.Context, asked: TorchrunFlags) -> None:
    if asked.replay is not None:
        ctx.exit(_replay(ctx, asked.replay, asked.json_file))
    script = asked.script
    if script is None:
        raise ArgumentError("name the training script: cxlemu torchrun -n 2 train.py")
    if not script.is_file():
        raise ArgumentError(f"{script} is not a file: name the training script")
    if importlib.util.find_spec("torch") is None:
        raise ArgumentError("torchrun needs PyTorch: pip install 'cxlemu[torch]'")
    faults, pool = _script(asked), _pool(asked)
    kept = ctx.with_resource(_folder(asked.save))
    if faults is not None:
        (kept / "script.json").write_text(json.dumps(faults.model_dump(mode="json", exclude_none=True)))
    settings = Settings(
        str(kept.resolve()),
        compare=asked.compare is not None,
        digests=asked.digests,
        script=None if faults is None else str((kept / "script.json").resolve()),
        pace=asked.pace is not None,
        debug=bool(ctx.find_root().params.get("debug")),
    )
    settings.write()
    environment = {**os.environ, **pool, VARIABLE: settings.folder}
    environment.setdefault("OMP_NUM_THREADS", "1")
    say = threading.Lock()

    def told(rank: int, line: str) -> None:
        with say:
            click.echo(line if rank == 0 else f"rank {rank}: {line}", nl=False)

    if faults is not None and asked.faults is not None:
        left_out = f", {counted(len(faults.leave_out), 'instruction')} left out" if faults.leave_out else ""
        click.echo(f"# faults   {asked.faults}: {counted(len(faults.faults), 'fault')}{left_out}")
    try:
        rounds = run_ranks(str(script), asked.arguments, asked.ranks, asked.max_restarts, environment, told)
    except BaseException as error:
        if is_stop(error):
            click.echo("interrupted")
            _tell(_reports(kept, asked.ranks), [], kept)
        raise
    lines = _reports(kept, asked.ranks)
    missing = undone(asked, faults or TrainingScript(), lines)
    report = {
        "ranks": asked.ranks,
        "rounds": [{"codes": each.codes, "stopped": each.stopped} for each in rounds],
        "events": lines,
        "undone": missing,
    }
    wrong = _tell(lines, rounds, kept, debug=settings.debug)
    for sentence in missing:
        click.echo(sentence, err=True)
    write_json(asked.json_file, report)
    if wrong or rounds[-1].failed:
        ctx.exit(1)
    if missing:
        ctx.exit(3)


@contextmanager
def _folder(save: Path | None) -> Iterator[Path]:
    """The folder of a run: the user's, or a new one, which stays only where a call that went wrong is kept in it."""
    if save is not None:
        try:
            save.mkdir(parents=True, exist_ok=True)
            Path(tempfile.mkdtemp(dir=save)).rmdir()
        except OSError as error:
            raise ArgumentError(f"--save {save}: no files can be made there: {error.strerror}") from None
        for report in save.glob("rank-*.jsonl"):
            report.unlink()  # of an earlier run
        yield save
        return
    with stops_exit():
        try:
            folder = Path(tempfile.mkdtemp(prefix="cxlemu-torchrun-"))
        except OSError as error:
            where = f"no files can be made in {tempfile.gettempdir()}: {error.strerror}"
            raise ArgumentError(f"{where}; name a folder with --save") from None
        try:
            yield folder
        finally:
            if not (folder / "call").exists():
                shutil.rmtree(folder, ignore_errors=True)


def _script(asked: TorchrunFlags) -> TrainingScript | None:
    """Put together the script's file and the flags that add to it."""
    script = TrainingScript() if asked.faults is None else TrainingScript.load(asked.faults)
    left_out = list(script.leave_out)
    for text in asked.leave_out:
        rank, _, instruction = text.partition(":")
        if not rank.isdecimal() or not instruction:
            raise ArgumentError(f"--leave-out is RANK:INSTRUCTION, such as 1:INVALIDATE, not {text!r}")
        try:
            left_out.append(LeftOut(rank=int(rank), instruction=instruction))
        except ValueError:
            it = f"there is no instruction {instruction!r}; {closest(instruction, Op.__members__)}"
            raise ArgumentError(f"--leave-out {text}: {it}") from None
    script = script.model_copy(update={"leave_out": tuple(left_out)})
    if asked.faults is not None and not script.faults and not script.leave_out:
        raise ArgumentError(f"--faults {asked.faults} has neither faults nor leave_out: nothing would happen")
    script.check(ranks=asked.ranks, backend=asked.backend)
    return script if script.faults or script.leave_out else None


def _pool(asked: TorchrunFlags) -> dict[str, str]:
    """Check what the flags say of the pool, and give it as the ranks' environment has it."""
    memory = MemorySpec(asked.backend, seed=asked.adversary, devices=asked.devices)
    if asked.pace and asked.config:
        raise ArgumentError("--pace names a topology itself: leave out --config")
    if asked.pace and asked.compare:
        raise ArgumentError("--pace does not go with --compare: Gloo's messages take this machine's time")
    config = asked.pace or asked.config
    topology = Topology.load(config or DEFAULT_TOPOLOGY)
    if asked.card_bytes is not None and not memory.backend.on_devices:
        with_card_bytes(topology, asked.card_bytes)
    given = {
        "BACKEND": asked.backend,
        "SEED": asked.adversary,
        "DEVICES": ":".join(asked.devices),
        "TOPOLOGY": config,
        "CARD_BYTES": asked.card_bytes,
        "INTEGRITY": asked.integrity,
        "TIME_SCALE": "auto" if asked.pace else None,
    }
    return {f"CXLEMU_{name}": str(value) for name, value in given.items() if value not in (None, "")}


def _reports(folder: Path, ranks: int) -> list[dict[str, Any]]:
    """Read what the ranks reported, in the order of time. A line that a killed rank left half is passed over."""
    reports = []
    for rank in range(ranks):
        try:
            lines = read_file(folder / f"rank-{rank}.jsonl", REPORT_BYTES_MAX).splitlines()
        except FileNotFoundError:
            continue
        for line in lines:
            with suppress(ValueError):
                reports.append(json.loads(line))
    return sorted(reports, key=lambda event: float(event["at"]))


def _tell(events: list[dict[str, Any]], rounds: list[Round], kept: Path, *, debug: bool = False) -> bool:
    """Print what happened, and last what was wrong. Returns whether a result was wrong."""
    wrong = [event for event in events if event["kind"] in ("difference", "replicas")]
    _tell_compared(events, len(wrong))
    steps = {event["step"] for event in events if event["kind"] == "digests"}
    if steps and not any(event["kind"] in ("error", "replicas") for event in events):
        click.echo(f"# replicas compared: after {counted(len(steps), 'step')}, all equal")
    _tell_steps([event for event in events if event["kind"] == "steps" and event["rank"] == 0])
    if rounds and (any(event["kind"] == "fault" for event in events) or any(each.failed for each in rounds)):
        tell_rounds(events, rounds, wrong, debug=debug)
    sentences = list(dict.fromkeys(event["sentence"] for event in wrong))
    for sentence in sentences[:FOUND_MAX]:
        click.echo(f"wrong: {sentence}", err=True)
    if len(sentences) > FOUND_MAX:
        click.echo(f"and {len(sentences) - FOUND_MAX} more: --json has all", err=True)
    if any("call" in event for event in wrong) and (kept / "call").exists():  # it is not a message
        click.echo(f"again, alone: cxlemu torchrun --replay {kept / 'call'}", err=True)
    return bool(wrong)


def _tell_compared(events: list[dict[str, Any]], wrong: int) -> None:
    """Print how many calls were compared: of each group as often as a member of it has made one."""
    calls: dict[str, int] = {}
    compared = [event for event in events if event["kind"] == "compared"]
    for event in compared:
        calls[event["group"]] = max(calls.get(event["group"], 0), event["calls"])
    if calls:
        made, groups = counted(sum(calls.values()), "call"), counted(len(calls), "group")
        messages = sum(event["messages"] for event in compared)
        made += f" and {counted(messages, 'message')}" if messages else ""
        silent = without_a_word(events)
        but = f"; {name_ranks(silent)} ended without a word" if silent else ""
        click.echo(f"# compared with Gloo: {made} of {groups}, {wrong} wrong{but}")


def _tell_steps(events: list[dict[str, Any]]) -> None:
    """Print how long rank 0's calls took in each step, where a pace was asked for."""
    steps = [step for event in events for step in event["steps"]]
    if not steps:
        return
    table = Table("step", "calls", "paced us", "virtual us", "this machine s", box=None)
    for number, step in enumerate(steps):
        calls = str(step["calls"]) + f" ({step['not_modelled']} not modelled)" * bool(step["not_modelled"])
        times = (f"{step['paced_us']:.1f}", f"{step['virtual_us']:.1f}", f"{step['wall_s']:.3f}")
        table.add_row(str(number), calls, *times)
    console().print(table, soft_wrap=False)


def _replay(ctx: click.Context, folder: Path, json_file: Path | None) -> int:
    """Make a kept call again. Returns the exit code."""
    from faults.torch.saved import load, replay

    for name, flag in given_flags(ctx).items():
        if name not in ("replay", "json_file"):
            raise ArgumentError(f"{flag} does nothing here, because --replay makes the kept call: leave it out")
    saved, inputs = load(folder)
    click.echo(f"kept: {saved.sentence}")
    sentences = replay(saved, inputs)
    for sentence in sentences:
        click.echo(f"wrong again, perhaps in other elements: {sentence}")
    if not sentences:
        click.echo("right this time: repeated alone, after calls with other bytes, the call gives the right result")
    write_json(json_file, {"kept": saved.sentence, "wrong": sentences})
    return 1 if sentences else 0
