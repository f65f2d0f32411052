"""faults is the machine's adversary and its judge."""
