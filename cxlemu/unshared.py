"""Objects that map the pool or wait for peers: a copy would be a second owner of what there is once."""

from __future__ import annotations

import copyreg
from typing import NoReturn, SupportsIndex

from cxlemu import _native


def refuse(it: object) -> NoReturn:
    """Refuse to copy or to pickle what belongs to one rank."""
    raise TypeError(
        f"{type(it).__name__} cannot be copied or pickled: it belongs to one rank, which it connects to its peers "
        f"and the pool"
    )


class Unshared:
    """A base of what can be neither copied nor pickled, alone or inside another object."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> NoReturn:
        refuse(self)


for made_in_c in (_native.Operation, _native.Verb):  # which have no base
    copyreg.pickle(made_in_c, refuse)
