"""Sentences that the help of several commands shares. Imports nothing."""

ALGORITHM_HELP = "An algorithm of your own; executes the file."


def said_of(dtype: str, redop: str, root: int) -> str:
    """Say what a table has no columns for: ``f32, sum`` or ``f32, root 0``."""
    return ", ".join([dtype, *([redop] if redop != "none" else []), *([f"root {root}"] if root >= 0 else [])])
