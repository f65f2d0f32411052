"""Objects that map the pool or wait for peers: a copy would be a second owner of what there is once."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex


class Unshared:
    """A base of what can be neither copied nor pickled, alone or inside another object."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be copied or pickled: it belongs to one rank, which it connects to its "
            f"peers and the pool"
        )
