"""The progress of a command: a line on the terminal, which is gone in the end; without a terminal there is none.

It stands on standard error. Where standard output is a terminal as well, it takes that console, so that lines printed
meanwhile stand above it.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

T = TypeVar("T")


def bar(out: Console | None = None, *, silent: bool = False) -> Progress:
    """Make a bar with as many steps as each of its tasks has; ``out`` prints the command's lines while it is shown."""
    columns = TextColumn("{task.description}"), BarColumn(None), MofNCompleteColumn(), TimeElapsedColumn()
    return _progress(columns, out, silent)


def _progress(columns: tuple[object, ...], out: Console | None, silent: bool) -> Progress:
    shared = out is not None and _is_terminal(out)
    console = out if out is not None and shared else Console(stderr=True)
    return Progress(
        *columns,  # type: ignore[arg-type]
        console=console,
        transient=True,
        redirect_stdout=shared,  # else click.echo's lines would go to standard error
        redirect_stderr=True,
        disable=silent or not _is_terminal(console),  # or rich would leave an empty line
    )


def _is_terminal(console: Console) -> bool:
    """Whether lines can be taken back there: FORCE_COLOR alone, as logs of CI have it, makes no terminal."""
    return console.is_terminal and console.file.isatty()


def counting(steps: Iterable[T], what: str, total: int | None = None, out: Console | None = None) -> Iterator[T]:
    """Yield each step, and show how many are done; ``total`` None: of an unknown number."""
    with bar(out) if total is not None else _without_end(out) as progress:
        task = progress.add_task(what, total=total)
        for step in steps:
            yield step
            progress.advance(task)


def _without_end(out: Console | None) -> Progress:
    columns = SpinnerColumn(), TextColumn("{task.description}: {task.completed} done"), TimeElapsedColumn()
    return _progress(columns, out, silent=False)


@contextmanager
def spinning(what: str, out: Console | None = None) -> Iterator[Callable[[str], None]]:
    """Show that work without steps goes on, and for how long; yield a function that renames the work."""
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with _progress(columns, out, silent=False) as progress:
        task = progress.add_task(what, total=None)
        yield lambda now: progress.update(task, description=now)
