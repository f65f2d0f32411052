"""Files that a flag names: refused before the work begins, written whole when it is done; a mistake is one sentence.

And JSON, written, to standard output where the file is ``-``, and read back.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import click

from cxlemu.errors import ArgumentError
from cxlemu.files import check_writable, write_atomically

JSON_BYTES_MAX = 1 << 25
STDOUT = Path("-")
_STREAM = "cxlemu.json"  # of click's meta: where the JSON goes
_RUNS = "cxlemu.json.runs"  # of click's meta: where the documents of several runs are kept


def check_output(flag: str, path: Path | None) -> None:
    """Refuse a file before the work begins.

    Args:
        flag: The flag that names it, for errors.
        path: The file; None: there is none.

    Raises:
        ArgumentError: It could not be written in the end.
    """
    if path is not None:
        with writing(flag, path):
            check_writable(path)


def write_output(flag: str, path: Path, data: bytes) -> None:
    """Write a file whole or not at all.

    Args:
        flag: The flag that names it, for errors.
        path: The file.
        data: All of its bytes.

    Raises:
        ArgumentError: It cannot be written after all.
    """
    with writing(flag, path):
        write_atomically(path, data)


def json_asked_for(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a file that could not be written; with ``-`` standard output is the JSON's alone.

    What is printed for people then goes to standard error. Called by click for ``--json``, before the work begins.

    Raises:
        ArgumentError: The file could not be written in the end.
    """
    if path != STDOUT:
        check_output("--json", path)
    elif _STREAM not in ctx.meta and not ctx.resilient_parsing:
        ctx.with_resource(_text_to_stderr(ctx))
    return path


@contextmanager
def _text_to_stderr(ctx: click.Context) -> Iterator[None]:
    ctx.meta[_STREAM] = sys.stdout
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        del ctx.meta[_STREAM]


@contextmanager
def collected_json(ctx: click.Context, runs: list[Any]) -> Iterator[None]:
    """Keep what is written to ``--json`` within the context, instead of writing it.

    Args:
        ctx: The command's context.
        runs: Where to.
    """
    ctx.meta[_RUNS] = runs
    try:
        yield
    finally:
        del ctx.meta[_RUNS]


def write_json(path: Path | None, data: Any) -> bool:
    """Write the file of ``--json PATH``, if there is one.

    Args:
        path: The file; ``-``: standard output; None: there is none.
        data: What `json.dumps` takes.

    Returns:
        Whether it went to standard output, so that nothing else needs to be said.

    Raises:
        ArgumentError: It cannot be written after all.
    """
    ctx = click.get_current_context(silent=True)
    if path is not None and ctx is not None and _RUNS in ctx.meta:
        ctx.meta[_RUNS].append(data)
    elif path == STDOUT:
        click.echo(json.dumps(data, indent=2), file=None if ctx is None else ctx.meta.get(_STREAM))
    elif path is not None:
        write_output("--json", path, (json.dumps(data, indent=2) + "\n").encode())
    return path == STDOUT


def read_json(path: Path, flag: str) -> Any:
    """Read a JSON file.

    Args:
        path: A regular file of JSON_BYTES_MAX bytes at most.
        flag: The flag that names it, for errors.

    Raises:
        ArgumentError: The file cannot be read, is too large, or is not JSON.
    """
    try:
        if not path.is_file():  # a FIFO or a device could be read for ever
            raise ArgumentError(f"{flag} {path}: not a regular file")
        with path.open("rb") as file:
            raw = file.read(JSON_BYTES_MAX + 1)
    except OSError as error:
        raise ArgumentError(f"{flag} {path} cannot be read: {error.strerror}") from error
    if len(raw) > JSON_BYTES_MAX:
        raise ArgumentError(f"{flag} {path}: larger than {JSON_BYTES_MAX} bytes, which no such file is")
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise ArgumentError(f"{flag} {path}: not JSON") from None


@contextmanager
def writing(flag: str, path: Path) -> Iterator[None]:
    """Turn an OSError within the context into a sentence.

    Args:
        flag: The flag that names the file, for errors.
        path: The file that is written within.

    Raises:
        ArgumentError: What is done within the context cannot write to ``path``.
    """
    try:
        yield
    except OSError as error:
        raise ArgumentError(f"{flag} {path} cannot be written: {error.strerror or error}") from error
