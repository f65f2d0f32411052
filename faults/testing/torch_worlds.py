"""The fixture ``torch_world``: a training function on several ranks over the pool, by ``cxlemu torchrun``."""

import importlib.util
import inspect
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cxlemu.errors import ArgumentError
from cxlemu.files import read_file
from faults.testing.worlds import OWN_SEED

REPORT_BYTES_MAX = 1 << 30


@dataclass(frozen=True)
class TorchRun:
    """What became of a run."""

    results: list[Any]  # what the function returned on each rank; None where it did not return
    code: int  # the exit code of ``cxlemu torchrun``
    events: list[dict[str, Any]]  # its report: faults, errors, what was compared
    output: str  # what it and the ranks printed


@dataclass(frozen=True)
class TorchWorld:
    """A number of ranks and what happens to them."""

    folder: Path
    flags: tuple[str, ...]
    ranks: int
    faults: bool  # whether ranks may fail
    timeout_s: float

    def run(self, function: Callable[..., Any], *arguments: Any) -> TorchRun:
        """Call ``function(*arguments)`` on every rank, in a process of its own whose process group has begun.

        Args:
            function: A function of a file, by its name; what it returns goes through JSON, as its arguments do.
            *arguments: Numbers, strings, lists.

        Returns:
            What became of the run. Without faults all ranks returned.

        Raises:
            ArgumentError: The function cannot be found by its name, or JSON has nothing like an argument.
            Failed: A rank failed although no fault was asked for, a result differs, or what was asked for never
                happened; with the report.
        """
        if "<" in function.__qualname__ or "." in function.__qualname__:
            raise ArgumentError(f"torch_world runs functions of a module, not {function.__qualname__}")
        try:
            passed = json.dumps(arguments)
        except TypeError as error:
            raise ArgumentError(f"{function.__name__}: arguments pass through JSON: {error}") from None
        file = str(Path(inspect.getfile(function)).resolve())
        for old in self.folder.glob("result-*.json"):
            old.unlink()
        report = self.folder / "report.json"
        words = [
            str(Path(__file__).with_name("torch_rank.py")),
            file,
            function.__name__,
            str(self.folder),
            passed,
        ]
        command = [sys.executable, "-P", "-m", "cxlemu", "torchrun", *self.flags, "--json", str(report), *words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=self.timeout_s, errors="replace")
        except subprocess.TimeoutExpired as late:
            pytest.fail(f"{function.__name__} has not ended after {self.timeout_s:g} s\n{late.stdout!s:.4000}")
        output = done.stdout + done.stderr
        if done.returncode not in ((0, 1) if self.faults else (0,)):
            pytest.fail(f"{function.__name__}: cxlemu torchrun ended with {done.returncode}\n{output}", pytrace=False)
        events = json.loads(read_file(report, REPORT_BYTES_MAX))["events"]
        if any(event["kind"] in ("difference", "replicas") for event in events):
            pytest.fail(f"{function.__name__}: a result is wrong\n{output}", pytrace=False)
        return TorchRun([self._result(rank) for rank in range(self.ranks)], done.returncode, events, output)

    def _result(self, rank: int) -> Any:
        path = self.folder / f"result-{rank}.json"
        return json.loads(read_file(path, REPORT_BYTES_MAX)) if path.exists() else None


def worlds(folder: Path, beside: Path, seed: int) -> Callable[..., TorchWorld]:
    """Return what ``torch_world`` is: makes a `TorchWorld`."""

    def world(
        ranks: int = 2,
        *,
        backend: str = "emulated",
        adversary: int | str | None = OWN_SEED,
        compare: bool = False,
        digests: int = 0,
        faults: str | Sequence[dict[str, Any]] = (),
        card_bytes: str | None = None,
        timeout_s: float = 300.0,
    ) -> TorchWorld:
        """Describe ranks; `docs/pytest.md` has the arguments."""
        if importlib.util.find_spec("torch") is None:
            raise ArgumentError("torch_world needs PyTorch: pip install 'cxlemu[torch]'")
        flags = ["-n", str(ranks), "--backend", backend]
        number = seed if adversary == OWN_SEED else adversary
        if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
            raise ArgumentError(f'an adversary is "seeded", a seed or None, not {adversary!r}')
        if number is not None and backend == "emulated":
            flags += ["--adversary", str(number)]
        flags += ["--compare", "gloo"] * compare + ["--digests", str(digests)] * bool(digests)
        if faults:
            script = beside / faults if isinstance(faults, str) else folder / "faults.json"
            if not isinstance(faults, str):
                script.write_text(json.dumps({"faults": list(faults)}))
            flags += ["--faults", str(script)]
        flags += ["--card-bytes", card_bytes] if card_bytes else []
        return TorchWorld(folder, tuple(flags), ranks, bool(faults), timeout_s)

    return world
