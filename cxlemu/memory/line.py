"""The unit in which memory moves."""

LINE_BYTES = 64
