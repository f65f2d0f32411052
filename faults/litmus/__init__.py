"""Litmus tests: small programs in YAML, and the complete set of their outcomes."""
