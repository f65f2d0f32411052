"""Runs in a guest: Python starts once and imports cxlemu, which takes an emulated CPU ten seconds; every command is
then a process of its own, forked from that one.

An order is N.json, {"arguments": [...], "environment": {...}}; its output is N.out, its exit code N.rc.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

# The verbs are imported by name when they are called, and what they need when they run.
import collectives.cli.run
import collectives.cli.run_report
import collectives.sweep.measure  # noqa: F401
import cxlemu.cli.doctor
import cxlemu.cli.pool
import cxlemu.cli.pool_capacity
import cxlemu.cli.pool_devices  # noqa: F401
import faults.cli.exec
import faults.cli.exec_run
import faults.cli.litmus
import faults.cli.litmus_hardware
import faults.cli.litmus_run  # noqa: F401
from cxlemu.cli import main


def obey(folder: Path) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the keepers
    number = 0
    while True:
        order = folder / f"{number}.json"
        if not order.exists():
            time.sleep(0.02)
            continue
        if os.fork() == 0:
            keep(order)
        number += 1


def keep(order: Path) -> None:
    """Waits for the command's process, whatever becomes of it, and tells its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        run(order)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    draft = order.with_suffix(".code")
    draft.write_text(str(code))
    draft.rename(order.with_suffix(".rc"))
    os._exit(0)


def run(order: Path) -> None:
    told = json.loads(order.read_text())
    os.environ.update(told["environment"])
    output = os.open(order.with_suffix(".out"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    main(told["arguments"], prog_name="cxlemu")
    sys.exit(0)


if __name__ == "__main__":
    obey(Path(sys.argv[1]))
