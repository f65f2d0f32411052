"""The name that was probably meant where another was typed. Imports nothing of ours."""

from collections.abc import Iterable

_LISTED_MAX = 20
_TYPED_MAX = 80  # a name of a file may be anything


def unknown(what: str, typed: object, names: Iterable[str], also: str = "") -> str:
    """Refuse a name in a sentence: ``unknown WHAT 'TYPED'; did you mean NAME? Choose from A, B``, then ``also``."""
    known, shown = list(names), str(typed)
    near = meant(shown, known)
    choose = f"{near} Choose" if near else ": choose"
    return f"unknown {what} {shown[:_TYPED_MAX]!r}{choose} from {', '.join(known)}{also}"


def with_choices(refusal: str, typed: str, names: Iterable[str], otherwise: str) -> str:
    """End a refusal with the near names, then all: ``REFUSAL; did you mean NAME? Choose from A, B``.

    ``otherwise`` ends it where no name is near; its ``{}`` stands for all names.
    """
    known = list(names)
    near = meant(typed, known)
    listed = ", ".join(known[:_LISTED_MAX]) + (", ..." if len(known) > _LISTED_MAX else "")
    return refusal + (f"{near} Choose from {listed}" if near else otherwise.format(listed))


def meant(typed: str, names: Iterable[str]) -> str:
    """Return the end of a sentence that refuses a name: ``; did you mean NAME?``, or nothing where no name is near.

    A name is near if it has the same letters and digits, or else begins with what was typed, or differs in few letters.
    """
    typed, known = typed[:_TYPED_MAX].lower(), list(names)
    close = [name for name in known if _letters(name) == _letters(typed) != ""]
    close = close or [name for name in known if len(typed) > 2 and name.lower().startswith(typed)]
    if not close:
        from difflib import get_close_matches  # most commands refuse no name

        close = get_close_matches(typed, known, n=3)
    return f"; did you mean {' or '.join(close[:3])}?" if close else ""


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))
