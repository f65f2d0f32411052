"""Measurements beside other tools: not installed, run from a checkout."""
