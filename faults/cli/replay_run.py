"""The work of ``cxlemu replay``: reads a token, and runs the failure that it describes."""

from pathlib import Path

import click

from cxlemu.cli.console import console, print_wrapped
from cxlemu.cli.output import check_svg, write_json, write_output
from cxlemu.errors import ArgumentError
from cxlemu.files import read_file
from faults.cli.replay import ReplayFlags
from faults.replay.replay import replay
from faults.token import TOKEN_CHARS_MAX, parse


def run(ctx: click.Context, asked: ReplayFlags) -> None:
    token, svg = asked.token, asked.svg
    check_svg(svg)
    parsed = parse(_read(Path(token[1:])) if token.startswith("@") else token)
    out = console()
    for difference in parsed.differences():
        print_wrapped(out, f"# {difference}", "yellow", indent="#   ")
    replayed = replay(parsed, asked.algorithm)
    print_wrapped(out, f"# {replayed.what}", indent="#   ")
    for remark in replayed.remarks:
        print_wrapped(out, f"# {remark}", "yellow", indent="#   ")
    if replayed.same and replayed.now:
        print_wrapped(out, f"fails again, exactly as recorded: {replayed.now}", "bold red")
    elif replayed.now:
        print_wrapped(out, f"fails: {replayed.now}", "bold red")
        print_wrapped(out, f"recorded was: {replayed.before}")
    elif replayed.unknown:
        print_wrapped(out, f"not reproduced: {replayed.unknown}", "yellow")
        print_wrapped(out, f"recorded was: {replayed.before}")
    else:
        print_wrapped(out, "no longer fails", "green")
        print_wrapped(out, f"recorded was: {replayed.before}")
    document = {
        "what": replayed.what,
        "fails": replayed.now or None,
        "unknown": replayed.unknown or None,
        "same": replayed.same,
        "recorded": replayed.before,
    }
    write_json(asked.json_file, document | {"remarks": list(replayed.remarks)})
    if svg is not None:
        drawn = replayed.picture()
        if drawn is None and not replayed.now:
            raise ArgumentError("--svg: nothing to draw: ranks in lockstep neither read a line wrong nor wait for ever")
        if drawn is None:
            why = "no rank reads a cache line wrong or waits for ever: what is wrong comes from a rank's own memory"
            print_wrapped(out, f"--svg: nothing is drawn, because {why}", "yellow")
        else:
            write_output("--svg", svg, drawn.encode())
    ctx.exit(1 if replayed.now else 3 if replayed.unknown else 0)


def _read(path: Path) -> str:
    try:
        return read_file(path, 2 * TOKEN_CHARS_MAX).decode("ascii", "replace")
    except OSError as error:
        raise ArgumentError(f"{path} cannot be read: {error.strerror}; give a file that holds a token") from None
