"""An execution as a table: a column for each thread and one for nature, a row for each move."""

from itertools import islice

from rich import box
from rich.table import Table
from rich.text import Text

from faults.machine.schedule import Schedule
from faults.machine.steps import Machine
from faults.machine.text import rows


def schedule_table(machine: Machine, schedule: Schedule, left_out: int = 0) -> Table:
    """Make the table, without its first ``left_out`` rows."""
    names = [thread.name for thread in machine.program.threads]
    hosts = _hosts(machine)
    table = Table("", *names, "nature", box=box.SIMPLE_HEAD)
    for number, row in islice(enumerate(rows(machine, schedule), 1), left_out, None):
        cells = [""] * (len(names) + 1)
        cells[row.thread] = row.text if row.thread >= 0 else f"{hosts[row.host]}: {row.text}"
        table.add_row(str(number), *map(Text, cells))
    return table


def _hosts(machine: Machine) -> dict[int, str]:
    """Name each host as the one rank on it, or as a litmus test names it."""
    ranks: dict[int, set[str]] = {}
    for thread in machine.program.threads:
        ranks.setdefault(thread.host, set()).add(thread.name.split(".")[0])
    return {host: names.pop() if len(names) == 1 else f"host {host}" for host, names in ranks.items()}
