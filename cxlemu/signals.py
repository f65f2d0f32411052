"""Signals that tell a command or a world to stop: Ctrl-C, the terminal's end, a launcher's or an administrator's."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from functools import partial
from types import CodeType, FrameType
from typing import Any

from cxlemu.interrupt import end_interrupted

STOPS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})

_CLEAN_UP_S = 10.0  # a stop after this is no impatient repetition: the first one was swallowed
_AGAIN_S = 0.05  # until a destructor that swallowed a stop is over
_PATIENT_S = 2.0  # most imports end sooner; one of a user's file may run a whole world
_IMPORTING = "<frozen importlib._bootstrap>"
_ASKED_BY_C = frozenset({"__getattr__", "__getattribute__", "__eq__", "__hash__", "__len__", "__bool__", "__index__"})
_TO_THE_END = _ASKED_BY_C | {"__exit__"}  # who leaves a context would otherwise leave behind what it takes away

_at_termination: Callable[[FrameType | None], None] | None = None
_CAME = "_signal_came"  # an attribute of the KeyboardInterrupt that SIGINT raised, not code of users


class Stop(BaseException):
    """Stops whatever runs, also code of users: raised by us, and never by that code. No Exception, so that the code
    does not catch it."""


class TerminatedStop(Stop, SystemExit):
    """Another signal came; the code is 128 and its number."""


def is_stop(error: BaseException) -> bool:
    """Decide whether an exception stops code from outside; Python's own handler of SIGINT raises nothing that tells."""
    pythons = isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return pythons or isinstance(error, Stop) or _CAME in vars(error)


def is_from_handler(error: BaseException) -> bool:
    """Decide whether a handler of a signal raised an exception: it is of no call, only came while one ran."""
    handlers = (signal.getsignal(number) for number in signal.valid_signals())
    codes = {code for handler in handlers if (code := _code_of(handler)) is not None}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def interrupts(error: BaseException) -> bool:
    """Decide whether an exception only came while a call ran: from a handler, or one that no call raises."""
    return not isinstance(error, Exception) or is_from_handler(error)


def _code_of(handler: Any) -> CodeType | None:
    """The code of a function, a method, a partial of one, or an object that is called; None for what is in C."""
    while isinstance(handler, partial):
        handler = handler.func
    method = handler if hasattr(handler, "__code__") else getattr(handler, "__func__", type(handler).__call__)
    return getattr(getattr(method, "__func__", method), "__code__", None)


def terminates_in_order(first: Callable[[FrameType | None], None] | None = None) -> None:
    """Let SIGTERM first end this process's workers, and remove what multiprocessing keeps in /tmp, as a Manager does.

    A forked child is ended at once, as by the system.

    Args:
        first: Called before that, with the frame that SIGTERM interrupts; None: nothing is.
    """
    global _at_termination
    _at_termination = first
    signal.signal(signal.SIGTERM, _end_workers)
    os.register_at_fork(after_in_child=_end_at_once)


def _end_workers(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)  # a second one does not wait
    try:
        if _at_termination is not None:
            _at_termination(frame)
        if (util := sys.modules.get("multiprocessing.util")) is not None:
            from multiprocessing import active_children

            util._run_finalizers()
            for worker in active_children():
                worker.terminate()
    finally:
        os.kill(os.getpid(), number)


def _end_at_once() -> None:
    if signal.getsignal(signal.SIGTERM) is _end_workers:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler, end_interrupted, _end_workers)


@contextmanager
def stops_exit(stops: Set[signal.Signals] = STOPS) -> Iterator[None]:
    """Leave by an exception at the first stop, so that children and pool go with it, which no second stop disturbs.

    Ctrl-C raises KeyboardInterrupt, the others SystemExit with 128 and the signal's number. A handler of the user's
    stays, and so does a signal that is ignored, as under nohup. Only the main thread can do this.

    Python swallows what is raised in a destructor or a callback of a weak reference, such as those of every import, and
    tells `sys.unraisablehook` alone: a stop that ends there comes again. Modules in C may swallow it while they are
    imported, and where they ask an object for what it may lack, as NumPy does: a stop comes again after those as well,
    and after an `__exit__`, which takes away what its context has made.
    """
    stopped_at: float | None = None
    patience_ends: float | None = None
    stop: BaseException | None = None
    unraisable = sys.unraisablehook
    over, sending = False, _thread.allocate_lock()

    def leave(number: int, frame: FrameType | None) -> None:
        nonlocal stopped_at, stop, patience_ends
        now = time.monotonic()
        if stopped_at is not None and now < stopped_at + _CLEAN_UP_S:
            return
        patience_ends = patience_ends or now + _PATIENT_S
        if now < patience_ends and _is_too_early(frame):
            _thread.start_new_thread(come_again, (number,))
            return
        stopped_at = now
        if number == signal.SIGINT:
            stop = KeyboardInterrupt()  # no class of ours: of this one alone Python ends as SIGINT ends a process
            setattr(stop, _CAME, True)
        else:
            stop = TerminatedStop(128 + number)
        raise stop

    def swallowed(what: sys.UnraisableHookArgs) -> None:
        nonlocal stopped_at
        if stop is None or what.exc_value is not stop:
            unraisable(what)
            return
        stopped_at = None
        number = signal.SIGINT if isinstance(stop, KeyboardInterrupt) else stop.args[0] - 128
        _thread.start_new_thread(come_again, (number,))  # takes no lock that the interrupted code may have

    def come_again(number: int) -> None:
        time.sleep(_AGAIN_S)
        with sending:  # afterwards the default handlers are back, which would end the process
            if not over:
                signal.pthread_kill(threading.main_thread().ident or 0, number)  # which may block it, as this does not

    handlers = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.getsignal(number) for number in stops}
    defaults = {number: handler for number, handler in handlers.items() if handler in _DEFAULTS}
    try:
        for number in defaults:
            signal.signal(number, leave)
        if defaults:
            sys.unraisablehook = swallowed
        yield
    finally:
        with sending:
            over = True
        if sys.unraisablehook is swallowed:
            sys.unraisablehook = unraisable
        for number, handler in defaults.items():
            signal.signal(number, handler)


class StopsWait:
    """As a context: stops that a handler raises come only in `come`, so that nothing is half done when they do."""

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}
        self._open = False
        self._came: int | None = None

    def __enter__(self) -> StopsWait:
        if threading.current_thread() is threading.main_thread():
            handlers = {number: signal.getsignal(number) for number in STOPS}
            self._handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
        for number in self._handlers:
            signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._deliver(sys._getframe())

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = number
        if self._open:
            self._deliver(frame)

    def _deliver(self, frame: FrameType | None) -> None:
        if (number := self._came) is not None:
            self._came = None
            self._handlers[number](number, frame)

    @contextmanager
    def come(self) -> Iterator[None]:
        """Let a stop come, also one that has waited."""
        self._open = True
        try:
            self._deliver(sys._getframe())
            yield
        finally:
            self._open = False


def _is_too_early(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTING or frame.f_code.co_name in _TO_THE_END:
            return True
        frame = frame.f_back
    return False
