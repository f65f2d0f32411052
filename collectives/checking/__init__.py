"""Checks of results: oracles in NumPy, and what a plan computes, in symbols."""
