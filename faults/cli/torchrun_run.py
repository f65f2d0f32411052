"""What ``cxlemu torchrun`` does: starts the ranks, and tells what became of each."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import tempfile
import threading
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from cxlemu.cli.console import console
from cxlemu.cli.output import write_json
from cxlemu.errors import ArgumentError
from cxlemu.memory import MemorySpec
from cxlemu.topology import Topology
from cxlemu.units import counted
from faults.torch.launch import Round, run_ranks
from faults.torch.script import LeftOut, TrainingScript
from faults.torch.settings import VARIABLE, Settings

LINE_MAX = 240
OF_TORCH = re.compile(r"^RuntimeError: Got the following error when running the callback: ")  # what it puts before ours


def run(ctx: click.Context, /, **flags: Any) -> None:
    """Run the command with its flags; leaves the context with exit code 1 where something is wrong."""
    if flags["replay"] is not None:
        ctx.exit(_replay(flags["replay"]))
    script: Path | None = flags["script"]
    if script is None:
        raise ArgumentError("name the training script: cxlemu torchrun -n 2 train.py")
    if not script.is_file():
        raise ArgumentError(f"{script} is no file: name the training script")
    if importlib.util.find_spec("torch") is None:
        raise ArgumentError("torchrun needs PyTorch: pip install cxlemu[torch]")
    faults, pool = _script(flags), _pool(flags)
    kept = flags["save"] or Path(tempfile.mkdtemp(prefix="torchrun-", dir="."))
    kept.mkdir(parents=True, exist_ok=True)
    if faults is not None:
        (kept / "script.json").write_text(json.dumps(faults.model_dump(mode="json", exclude_none=True)))
    settings = Settings(
        str(kept.resolve()),
        compare=flags["compare"] is not None,
        digests=flags["digests"],
        script=None if faults is None else str((kept / "script.json").resolve()),
        pace=flags["pace"] is not None,
    )
    settings.write()
    environment = {**os.environ, **pool, VARIABLE: settings.folder}
    environment.setdefault("OMP_NUM_THREADS", "1")
    say = threading.Lock()

    def told(rank: int, line: str) -> None:
        with say:
            click.echo(line if rank == 0 else f"rank {rank}: {line}", nl=False)

    rounds = run_ranks(str(script), flags["arguments"], flags["ranks"], flags["max_restarts"], environment, told)
    lines = _reports(kept, flags["ranks"])
    report = {
        "ranks": flags["ranks"],
        "rounds": [{"codes": each.codes, "stopped": each.stopped} for each in rounds],
        "events": lines,
    }
    wrong = _tell(lines, rounds, kept)
    write_json(flags["json_file"], report)
    if not (kept / "call").exists() and flags["save"] is None:
        for path in kept.iterdir():
            path.unlink()
        kept.rmdir()
    if wrong or rounds[-1].failed:
        ctx.exit(1)


def _script(flags: dict[str, Any]) -> TrainingScript | None:
    """Put together the script's file and the flags that add to it."""
    script = TrainingScript() if flags["faults"] is None else TrainingScript.load(flags["faults"])
    left_out = list(script.leave_out)
    for text in flags["leave_out"]:
        rank, _, instruction = text.partition(":")
        if not rank.isdecimal() or not instruction:
            raise ArgumentError(f"--leave-out is RANK:INSTRUCTION, such as 1:INVALIDATE, not {text!r}")
        try:
            left_out.append(LeftOut(rank=int(rank), instruction=instruction))
        except ValueError:
            raise ArgumentError(f"--leave-out {text}: there is no instruction {instruction!r}") from None
    script = script.model_copy(update={"leave_out": tuple(left_out)})
    script.check(ranks=flags["ranks"], backend=flags["backend"])
    return script if script.faults or script.leave_out else None


def _pool(flags: dict[str, Any]) -> dict[str, str]:
    """Check what the flags say of the pool, and give it as the ranks' environment has it."""
    MemorySpec(flags["backend"], seed=flags["adversary"], devices=flags["devices"])
    if flags["pace"] and flags["config"]:
        raise ArgumentError("--pace names a topology itself: leave out --config")
    if flags["pace"] and flags["compare"]:
        raise ArgumentError("--pace does not go with --compare: Gloo's messages take this machine's time")
    config = flags["pace"] or flags["config"]
    if config:
        Topology.load(config)
    given = {
        "BACKEND": flags["backend"],
        "SEED": flags["adversary"],
        "DEVICES": ":".join(flags["devices"]),
        "TOPOLOGY": config,
        "CARD_BYTES": flags["card_bytes"],
        "INTEGRITY": flags["integrity"],
        "TIME_SCALE": "auto" if flags["pace"] else None,
    }
    return {f"CXLEMU_{name}": str(value) for name, value in given.items() if value not in (None, "")}


def _reports(folder: Path, ranks: int) -> list[dict[str, Any]]:
    """Read what the ranks reported, in the order of time. A line that a killed rank left half is passed over."""
    found = []
    for rank in range(ranks):
        path = folder / f"rank-{rank}.jsonl"
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return sorted(found, key=lambda event: float(event["at"]))


def _tell(events: list[dict[str, Any]], rounds: list[Round], kept: Path) -> bool:
    """Print what happened. Returns whether a result was wrong."""
    wrong = [event for event in events if event["kind"] in ("difference", "replicas")]
    for event in wrong:
        click.echo(f"wrong: {event['sentence']}", err=True)
        if event["kind"] == "difference" and (kept / "call").exists():
            click.echo(f"again, alone: cxlemu torchrun --replay {kept / 'call'}", err=True)
    _tell_compared([event for event in events if event["kind"] == "compared"], len(wrong))
    _tell_steps([event for event in events if event["kind"] == "steps" and event["rank"] == 0])
    happened = [event for event in events if event["kind"] == "fault"]
    if not happened and not any(each.failed for each in rounds):
        return bool(wrong)
    begin = min((float(event["at"]) for event in happened), default=None)
    table = Table("rank", "round", "what", "after", box=None)
    rows: list[tuple[float, int, str, str]] = []
    for event in events:
        if event["kind"] in ("fault", "error"):
            told = f"fault: {event['what']}" if event["kind"] == "fault" else _error(event["text"], wrong)
            rows.append((float(event["at"]), event["rank"], _round_of(event, rounds), told))
    for number, each in enumerate(rounds):
        for rank, code in each.codes.items():
            if code < 0:
                told = "stopped by cxlemu torchrun" if rank in each.stopped else f"ended by signal {-code}"
                rows.append((each.ended[rank], rank, str(number), told))
    for at, rank, number_of_round, told in sorted(rows):
        table.add_row(str(rank), number_of_round, escape(told), _after(at, begin))
    console().print(table, soft_wrap=False)
    return bool(wrong)


def _error(text: str, wrong: list[dict[str, Any]]) -> str:
    """Shorten an error to its first line, or to its kind where it tells of a difference that is printed above."""
    line = OF_TORCH.sub("", text.splitlines()[0])
    if any(event["sentence"].partition(":")[0] in line for event in wrong):
        return f"{line.partition(':')[0]}: what differs, see above"
    return line[:LINE_MAX]


def _tell_compared(events: list[dict[str, Any]], wrong: int) -> None:
    """Print how many calls were compared: of each group as often as a member of it has made one."""
    calls: dict[str, int] = {}
    for event in events:
        calls[event["group"]] = max(calls.get(event["group"], 0), event["calls"])
    if calls:
        made, groups = counted(sum(calls.values()), "call"), counted(len(calls), "group")
        click.echo(f"# compared with Gloo: {made} of {groups}, {wrong} wrong")


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


def _round_of(event: dict[str, Any], rounds: list[Round]) -> str:
    for number, each in enumerate(rounds):
        if float(event["at"]) <= max(each.ended.values()) + 0.5:
            return str(number)
    return str(len(rounds) - 1)


def _after(at: float, begin: float | None) -> str:
    return "" if begin is None else f"{at - begin:.2f} s"


def _replay(folder: Path) -> int:
    """Make a kept call again. Returns the exit code."""
    from faults.torch.saved import load, replay

    its, inputs = load(folder)
    click.echo(f"kept: {its.sentence}")
    found = replay(its, inputs)
    for sentence in found:
        click.echo(f"wrong again: {sentence}")
    if not found:
        click.echo("right this time: the call alone, after calls of other bytes, gives what it must")
    return 1 if found else 0
