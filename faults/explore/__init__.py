"""Searches over the abstract machine: every execution of a small program, or a chosen few of a larger one."""
