"""Which rank runs which thread of a litmus test: threads of one host need one machine, hosts take different ones."""

from collections.abc import Sequence


def placed(hosts: Sequence[int], machines: Sequence[int]) -> tuple[int, ...] | None:
    """Return the rank of each thread of a test; None if a host's threads find no machine with a rank for each."""
    free = {machine: [r for r, its in enumerate(machines) if its == machine] for machine in dict.fromkeys(machines)}
    on = dict.fromkeys(free, 0)  # hosts on each machine
    ranks = [0] * len(hosts)
    for host in sorted(set(hosts), key=lambda h: (-hosts.count(h), h)):
        threads = [thread for thread, home in enumerate(hosts) if home == host]
        fitting = [machine for machine, theirs in free.items() if len(theirs) >= len(threads)]
        if not fitting:
            return None
        machine = min(fitting, key=lambda m: (on[m], -len(free[m])))  # the first one of equals
        on[machine] += 1
        for thread in threads:
            ranks[thread] = free[machine].pop(0)
    return tuple(ranks)
