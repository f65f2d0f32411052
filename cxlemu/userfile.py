"""Objects in a user's own Python file, as commands take them: ``FILE.py:name``. The file runs with its asserts.

Whatever runs code of a user's in a process of ours does so inside `foreign`.
"""

import importlib.util
import os
import posix  # where a pickle finds os._exit
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import isasyncgen, iscoroutine, isgenerator
from pathlib import Path
from typing import Any, NoReturn

from cxlemu.asserts import SOURCE_BYTES_MAX, AssertingLoader
from cxlemu.budget import BudgetSpentError, within
from cxlemu.errors import ArgumentError
from cxlemu.files import read_file
from cxlemu.signals import is_stop
from cxlemu.suggest import meant

LOAD_S = 60.0  # longest time in which a file is executed

_leave_process = os._exit
_inside = threading.local()
_process = 0  # which entered `foreign`
exit_code: int | None = None  # of a command that is over: what code of a user's left for the end does not change it


class LeftError(Exception):
    """Code of a user's would have ended our process; the text says how."""


class OverdueError(LeftError):
    """Code of a user's has had its time."""


@contextmanager
def foreign() -> Iterator[None]:
    """Let code of a user's end no process of ours unheard: what would is an exception like any other, a LeftError.

    That is SystemExit, a KeyboardInterrupt without Ctrl-C, any other BaseException, and ``os._exit`` in this thread. In
    a thread that the code starts, ``os._exit`` ends the process with a sentence and code 1. A child that the code forks
    may leave as it likes.
    """
    global _process
    outer, _inside.process = getattr(_inside, "process", None), os.getpid()
    os._exit = posix._exit = _left
    _process = os.getpid()
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        if is_stop(error):
            raise
        raise LeftError(told(error)).with_traceback(error.__traceback__) from None
    finally:
        _inside.process = outer


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """As `foreign`; code that has no end by then raises an OverdueError."""
    began = time.monotonic()
    try:
        with within(seconds), foreign():
            yield
    except BudgetSpentError as spent:
        if time.monotonic() < began + seconds:  # a budget around this one ended first
            raise
        raise OverdueError(f"no end after {seconds:g} s").with_traceback(spent.__traceback__) from None


def _left(status: int) -> NoReturn:
    if getattr(_inside, "process", None) == os.getpid():
        raise LeftError(f"os._exit({status})")
    if _process == os.getpid():
        if threading.current_thread() is not threading.main_thread():
            os.write(2, f"cxlemu: a thread of your code ended the process with os._exit({status})\n".encode())
            _leave_process(1)
        status = status if exit_code is None else exit_code
    _leave_process(status)


def is_unrun(result: object) -> bool:
    """Decide whether a function that returned this is a generator or async, so that nothing of it ran."""
    if iscoroutine(result):
        result.close()  # or Python says that nobody awaited it
        return True
    return isgenerator(result) or isasyncgen(result)


def told(error: BaseException) -> str:
    """Tell the kind of an exception that code of a user's raised, and the first line of its text, if it has one."""
    if isinstance(error, LeftError):
        return str(error)
    try:
        with foreign():
            text = str(error).partition("\n")[0]
    except Exception:
        text = "its text fails"
    return f"{type(error).__name__}{': ' if text else ''}{text}"


def line_of(error: BaseException, file: str | Path) -> int | None:
    """Return the last line of a file that an exception came through, None if it came through no line there."""
    path, line, trace = str(Path(file).absolute()), None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def load(spec: str, option: str, is_meant: Callable[[Any], object] = callable) -> tuple[Any, str, str]:
    """Execute ``FILE.py:name``; return the object of that name (None: nothing), the file and the name.

    Raises ArgumentError for a name that is not there, if one is near of an object that ``is_meant``, or to list these.
    """
    file, _, name = spec.rpartition(":")
    path = Path(file)
    if not file or not name:
        raise ArgumentError(f"{option} takes FILE.py:function, not {spec!r}")
    try:
        read_file(path, SOURCE_BYTES_MAX)
    except FileNotFoundError as error:
        raise ArgumentError(f"{option} {spec}: there is no file {file}") from error
    except OSError as error:
        raise ArgumentError(f"{option} {spec!r}: the file cannot be read: {error.strerror}") from error
    module_spec = importlib.util.spec_from_file_location(f"user_file_{path.stem}", path)
    if module_spec is None or module_spec.loader is None:
        raise ArgumentError(f"{option} {spec}: {file} is not a Python file")
    module_spec.loader = loader = AssertingLoader(module_spec.name, str(path.absolute()))
    module = importlib.util.module_from_spec(module_spec)
    try:
        with limited(LOAD_S):
            loader.exec_module(module)
            value = getattr(module, name, None)
    except Exception as error:
        line = line_of(error, path)
        where = file if line is None else f"{file}:{line}"
        raise ArgumentError(f"{option} {spec}: {where} fails with {told(error)}") from error
    names = [each for each, var in vars(module).items() if is_meant(var)] if value is None else []
    near = meant(name, names)
    if near or (names and is_meant is not callable):
        raise ArgumentError(f"{option} {spec}: {file} has no {name!r}{near or ': it has ' + ', '.join(names)}")
    return value, file, name
