"""What a command shows while it works: lines as they come, a bar below them, and the rest when all is done or fails."""

import time
from pathlib import Path
from typing import Self

from rich.text import Text

from cxlemu.cli.console import console
from cxlemu.cli.progress import bar


class LiveReport:
    """A context that begins with `_open` and ends with `_close`, which prints the sum and writes the JSON file."""

    def __init__(
        self,
        what: str,
        total: int | None,
        *,
        json_file: Path | None = None,
        launched: bool = False,
        quiet: bool = False,
        silent: bool = False,
    ) -> None:
        """Prepare the bar of ``total`` steps; a quiet report prints nothing, a silent one has no bar."""
        self._json_file = None if quiet else json_file
        self._began = time.monotonic()
        self._out = console(launched=launched, quiet=quiet)
        self._progress = bar(self._out, silent=quiet or silent)
        self._task = self._progress.add_task(what, total=total)

    @property
    def seconds(self) -> float:
        """How long the work has taken so far."""
        return time.monotonic() - self._began

    def __enter__(self) -> Self:
        self._progress.start()
        self._open()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._progress.stop()
        self._close(error)

    def _open(self) -> None: ...

    def _close(self, error: BaseException | None) -> None: ...

    def _print(self, line: str, style: str = "") -> None:
        self._out.print(Text(line, style))
