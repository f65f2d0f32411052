"""Calls: from a verb's arguments to a plan, its run, and what the other ranks hear of it."""
