"""Files that a flag names: refused before the work begins, written whole when it is done; a mistake is one sentence.

``-`` is standard output. And JSON, written and read back.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import click

from cxlemu.errors import ArgumentError
from cxlemu.files import check_writable, read_file, write_atomically

JSON_BYTES_MAX = 1 << 25
STDOUT = Path("-")
_STREAM = "cxlemu.stdout"  # of click's meta: where the output goes whose file is -
_NAMED = "cxlemu.outputs"  # of click's meta: the flag and the name of each output
_RUNS = "cxlemu.json.runs"  # of click's meta: where the documents of several runs are kept


def check_output(flag: str, path: Path | None) -> None:
    """Refuse a file before the work begins. With ``-`` standard output is this output's alone.

    What is printed for people then goes to standard error.
    """
    if path is None:
        return
    ctx = click.get_current_context(silent=True)
    if path != STDOUT:
        with writing(flag, path):
            check_writable(path)
    _check_once(flag, path)
    if path == STDOUT and ctx is not None and _STREAM not in ctx.meta:
        ctx.with_resource(_text_to_stderr(ctx))


def check_kept(flag: str, path: Path) -> None:
    """Refuse a file that another output of the command has, and ``-``: this file is read again later."""
    if path == STDOUT:
        raise ArgumentError(f"{flag} -: a file is needed, not standard output")
    _check_once(flag, path)


def _check_once(flag: str, path: Path) -> None:
    """Refuse a file that another output of the command has: the last to be written would be all that is left."""
    ctx = click.get_current_context(silent=True)
    with writing(flag, path):
        if ctx is None or path.is_char_device():  # as /dev/null
            return
    named = ctx.meta.setdefault(_NAMED, {}).setdefault(os.path.realpath(path), (flag, path))
    if named != (flag, path):
        raise ArgumentError(f"{named[0]} {named[1]} and {flag} {path} are one file: give each its own")


def check_svg(path: Path | None) -> None:
    """Refuse a file for a picture before the work begins: also one whose name promises another format."""
    if path is not None and path.suffix.lower() != ".svg":
        raise ArgumentError(f"--svg {path}: the picture is SVG: give a file that ends in .svg")
    check_output("--svg", path)


def write_output(flag: str, path: Path, data: bytes) -> None:
    if path == STDOUT:
        ctx = click.get_current_context(silent=True)
        click.echo(data, file=None if ctx is None else ctx.meta.get(_STREAM), nl=False)
        return
    with writing(flag, path):
        write_atomically(path, data)


def json_asked_for(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a file as `check_output` does. Called by click for ``--json``, before the work begins."""
    if not ctx.resilient_parsing:
        check_output("--json", path)
    return path


@contextmanager
def _text_to_stderr(ctx: click.Context) -> Iterator[None]:
    """Let stdout be stderr, in this process and in those that it starts: code of a user's may print, too."""
    with ExitStack() as stack:
        ctx.meta[_STREAM] = sys.stdout
        stack.callback(ctx.meta.pop, _STREAM)
        with suppress(OSError, ValueError):  # a stream of a test's or a program's own has no descriptor
            if sys.stderr is not None and (sys.stdout.fileno(), sys.stderr.fileno()) == (1, 2):
                sys.stdout.flush()
                ours = stack.enter_context(os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding))
                ctx.meta[_STREAM] = ours
                stack.callback(os.dup2, ours.fileno(), 1)
                os.dup2(2, 1)
        stack.enter_context(redirect_stdout(sys.stderr))
        yield


@contextmanager
def collected_json(ctx: click.Context, runs: list[Any]) -> Iterator[None]:
    """Append what is written to ``--json`` within the context to ``runs`` instead."""
    ctx.meta[_RUNS] = runs
    try:
        yield
    finally:
        del ctx.meta[_RUNS]


def write_json(path: Path | None, data: Any) -> bool:
    """Write the file of ``--json PATH``, if any; return whether it was stdout, so that nothing else may be printed."""
    ctx = click.get_current_context(silent=True)
    if path is not None and ctx is not None and _RUNS in ctx.meta:
        ctx.meta[_RUNS].append(data)
    elif path is not None:
        write_output("--json", path, (json.dumps(data, indent=2) + "\n").encode())
    return path == STDOUT


def read_json(path: Path, flag: str) -> Any:
    """Read a regular JSON file of at most JSON_BYTES_MAX bytes."""
    try:
        return json.loads(read_file(path, JSON_BYTES_MAX))
    except OSError as error:
        raise ArgumentError(f"{flag} {path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError):
        raise ArgumentError(f"{flag} {path}: not JSON") from None


@contextmanager
def writing(flag: str, path: Path) -> Iterator[None]:
    """Turn an OSError within the context into a sentence."""
    try:
        yield
    except OSError as error:
        raise ArgumentError(f"{flag} {path} cannot be written: {error.strerror or error}") from error
