"""Runs in a guest: Python starts once and imports cxlemu, which takes an emulated CPU ten seconds; every command is
then a process of its own, forked from that one.

An order is N.json, {"arguments": [...], "environment": {...}}; its output is N.out, its exit code N.rc.
"""

import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path

from cxlemu.cli import main

# What verbs import when they are called or run.
USED = """
collectives.cli.run collectives.cli.run_report collectives.cli.run_work collectives.sweep.measure cxlemu.backends.dax
cxlemu.cli.doctor cxlemu.cli.first_time cxlemu.cli.pool cxlemu.cli.pool_capacity cxlemu.cli.pool_devices
cxlemu.cli.pool_run faults.cli.exec faults.cli.exec_crashes faults.cli.exec_every faults.cli.exec_run faults.cli.litmus
faults.cli.litmus_hardware faults.cli.litmus_run numpy.random studies.cli
"""


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


for name in USED.split():
    importlib.import_module(name)
if __name__ == "__main__":
    obey(Path(sys.argv[1]))
