"""Worlds of ranks with faults for a user's own tests: the pytest plugin."""
