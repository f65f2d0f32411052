"""What a command measures when it first runs on a machine, before it times anything there."""

import click

from cxlemu.machine import keep, kept_file, thresholds
from cxlemu.pool.room import memory_left_bytes
from cxlemu.units import format_bytes

BUSY = "other work on this machine prevented a measurement"


def measure_machine() -> None:
    """Measure from which size on arrays are stored past the caches, and keep it, unless that is known.

    Says so on standard error. What cannot be kept is not taken either: ranks, which are processes of their own, would
    not find it. Where memory is short, it is not measured, and where other work has the cores, nothing is kept.
    """
    if thresholds().measured:
        return
    from cxlemu.calibrate.past_caches import needed_bytes, past_caches_bytes

    if (left := memory_left_bytes()) < 2 * needed_bytes():
        what = f"a measurement needs {format_bytes(needed_bytes())} of memory, but {format_bytes(left)} are left"
        click.echo(f"# {thresholds()}; {what}", err=True)
        return
    if (measured := past_caches_bytes()) is None:
        click.echo(f"# {thresholds()}; {BUSY}", err=True)
        return
    try:
        keep(measured)
    except OSError as error:
        click.echo(f"# {thresholds()}; a measured threshold cannot be kept: {kept_file()}: {error.strerror}", err=True)
    else:
        click.echo(f"# the first run on this machine: {thresholds()}", err=True)
