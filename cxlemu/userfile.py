"""Objects in a user's own Python file, as commands take them: ``FILE.py:name``. The file is executed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from cxlemu.errors import ArgumentError


def load(spec: str, option: str) -> tuple[Any, str, str]:
    """Execute a user's Python file and look up a name in it.

    Args:
        spec: ``FILE.py:name``.
        option: The flag or command that takes it, with which messages begin.

    Returns:
        The object that the file has under that name (None: nothing), the file and the name.

    Raises:
        ArgumentError: There is no such file, or it fails.
    """
    file, _, name = spec.rpartition(":")
    path = Path(file)
    if not file or not name:
        raise ArgumentError(f"{option} takes FILE.py:function, not {spec!r}")
    try:
        exists = path.is_file()
    except OSError as error:  # the name is too long, or in a directory that is closed to us
        raise ArgumentError(f"{option} {spec}: the file cannot be read: {error.strerror}") from error
    except ValueError as error:  # a NUL in the name
        raise ArgumentError(f"{option} {spec!r} is not the name of a file") from error
    if not exists:
        raise ArgumentError(f"{option} {spec}: there is no file {file}")
    module_spec = importlib.util.spec_from_file_location(f"user_file_{path.stem}", path)
    if module_spec is None or module_spec.loader is None:
        raise ArgumentError(f"{option} {spec}: {file} is not a Python file")
    module = importlib.util.module_from_spec(module_spec)
    try:
        module_spec.loader.exec_module(module)
    except Exception as error:
        raise ArgumentError(f"{option} {spec}: {file} fails with {type(error).__name__}: {error}") from error
    return getattr(module, name, None), file, name
