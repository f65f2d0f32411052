"""One rank of ``cxlemu torchrun``: takes hold of torch.distributed, then runs the training script as it is.

    python -P -m faults.torch.rank SCRIPT [ARGUMENT]...

The launcher's settings are in the folder that CXLEMU_TORCHRUN names.
"""

import atexit
import inspect
import os
import runpy
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import collectives.torch  # noqa: F401  (registers the backend where torch does not load it itself)
from collectives.torch.harness import Installed
from collectives.torch.options import Options
from cxlemu.errors import CxlemuError
from cxlemu.signals import terminates_in_order
from cxlemu.world.processes import die_with
from faults.torch.digests import watch_replicas
from faults.torch.harness import TrainingHarness
from faults.torch.settings import PARENT, Settings

# what torch's own errors say of those that a process group raised
OF_GROUPS = ("DistBackendError: cxl: ", "ContractError: ")
_HERE = Path(__file__).resolve().parents[2]
_NOT_SHOWN = [f"{_HERE / name}/" for name in ("collectives", "cxlemu", "faults")] + [f"{Path(torch.__file__).parent}/"]
_LIBRARY = f"{Path(os.__file__).parent}/"


def main(script: str, *arguments: str) -> None:
    """Run a training script, and report how it ended."""
    settings = Settings.of_environment()
    harness = TrainingHarness(settings, int(os.environ["RANK"]))
    terminates_in_order(lambda frame: harness.stopped(_where(traceback.extract_stack(frame))))
    die_with(int(os.environ[PARENT]))
    Installed.harness = harness
    every_group_is_cxl()
    if settings.digests:
        watch_replicas(harness, settings.digests)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        run(script)
    except SystemExit as stop:
        harness.tell("end", code=_code(stop))
        harness.tell_compared()
        raise
    except BaseException as error:
        line = "".join(traceback.format_exception_only(error)).strip()
        harness.tell(
            "error", type=type(error).__name__, text=line, where=_where(traceback.extract_tb(error.__traceback__))
        )
        harness.tell_compared()
        if not settings.debug:
            complain(error, line)
            raise SystemExit(1) from None
        raise
    harness.tell("end", code=0)


def run(script: str) -> None:
    """Run a script. Where it ends well, leave the groups that it did not destroy: what they compared is told then."""
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as stop:
        if _code(stop):
            raise
    if dist.is_initialized():
        dist.destroy_process_group()


def _code(stop: SystemExit) -> int:
    return stop.code if isinstance(stop.code, int) else int(stop.code is not None)


def complain(error: BaseException, line: str) -> None:
    """Print an error of the script, with its own frames alone; the launcher's table has those of process groups."""
    if isinstance(error, (dist.DistBackendError, CxlemuError)) or any(each in line for each in OF_GROUPS):
        return
    frames = "".join(frames_of_the_script(error))
    print(f"Traceback (most recent call last):\n{frames}{line}", file=sys.stderr, flush=True)


def frames_of_the_script(error: BaseException) -> list[str]:
    """Return an error's frames as a traceback has them, but not those of torch, of this package and of Python."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_shown(frame.filename)]
    return traceback.format_list(frames)


def _where(stack: traceback.StackSummary) -> list[str]:
    """Return the innermost frame of the user's files; a library's where there is no other."""
    frames = [frame for frame in stack if _is_shown(frame.filename)]
    return traceback.format_list(([frame for frame in frames if "site-packages" not in frame.filename] or frames)[-1:])


def _is_shown(file: str) -> bool:
    of_python = file.startswith("<frozen") or (file.startswith(_LIBRARY) and "site-packages" not in file)
    return not of_python and not file.startswith(tuple(_NOT_SHOWN))


def every_group_is_cxl() -> None:
    """Let every group be made by cxl, whatever backend the program asks for."""
    c10d = dist.distributed_c10d
    make = c10d._new_process_group_helper

    taken = inspect.signature(make)

    def made_by_cxl(*given: Any, **named: Any) -> Any:
        call = taken.bind(*given, **named)
        call.arguments["backend"] = c10d.Backend("cxl")
        if not isinstance(call.arguments.get("backend_options"), Options):
            call.arguments["backend_options"] = None  # they are another backend's
        return make(*call.args, **call.kwargs)

    c10d._new_process_group_helper = made_by_cxl


def end(code: int) -> None:
    """End the process as Python does, but for its last step: that would stop threads within Gloo, which then aborts."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for the script's own threads
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    ended = 0
    try:
        main(*sys.argv[1:])
    except SystemExit as stop:
        ended = _code(stop)
        if ended and not isinstance(stop.code, int):
            print(stop.code, file=sys.stderr)
    except Exception:
        sys.excepthook(*sys.exc_info())
        ended = 1
    end(ended)
