"""faults is the machine's adversary and its judge.

    machine/    the memory model as an abstract machine: the definition, in plain Python
    litmus/     small programs in YAML, and all that can come of them
    explore/    every execution of a protocol or a small plan, in C; or some, by strategies
    prove/      plans of any size: happens-before, in all executions at once
    mutate/     every mistake in a plan's synchronization, to be found by all of these
    lockstep    all ranks of a world in one thread, on real bytes; schedule, orders: who goes on, and what caches do
    witness     a violation, executed until it shows
    model       what may break, and what is owed then; script: which of it does; inject/: that it does
    campaign/   many of these; token, replay, shown: what was found, to be seen again elsewhere
    worlds, pytest_plugin   the same for a user's own tests

Verdicts have three values (verdict): a search that ran out of budget says unknown.
"""
