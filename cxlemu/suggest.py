"""The name that was probably meant where another was typed. Imports nothing of ours."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_TYPED_MAX = 80  # a name of a file may be anything


def meant(typed: str, names: Iterable[str]) -> str:
    """Return the end of a sentence that refuses a name: ``; did you mean NAME?``, or nothing where no name is near.

    A name is near if it begins with what was typed, or differs from it in few letters.

    Args:
        typed: What was typed.
        names: Those that there are.
    """
    typed, known = typed[:_TYPED_MAX].lower(), list(names)
    close = [name for name in known if len(typed) > 2 and name.lower().startswith(typed)]
    close = close or difflib.get_close_matches(typed, known, n=3)
    return f"; did you mean {' or '.join(close[:3])}?" if close else ""
