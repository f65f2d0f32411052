"""Python objects among ranks, by pickle: only these verbs unpickle, and only what all ranks asked for by calling them.

Unpickling can execute code chosen by the sender, so no other call ever does it, whatever bytes arrive: a rank that
does not call these verbs cannot be made to. They are for configurations; arrays travel faster as arrays.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from io import BytesIO
from typing import Any

import numpy as np

from collectives.communicator.arrays import Array
from collectives.communicator.calls.agreed import UnevenArguments
from collectives.communicator.calls.uneven_blocks import BlocksGiven
from collectives.communicator.verbs.uneven import UnevenVerbs
from collectives.communicator.verbs.verbs import Verbs
from cxlemu.errors import ArgumentError
from cxlemu.numbers import root_of


class ObjectVerbs(Verbs, UnevenVerbs):
    """Collectives of Python objects that pickle accepts. Every rank trusts what its peers send in them."""

    # (verb, collective, x, out, root, timeout_s): runs a collective as a part of a verb, whose name errors have
    _in_verb: Callable[..., Any]

    def broadcast_object(self, obj: Any = None, *, root: int = 0, timeout_s: float | None = None) -> Any:
        """Send an object of ``root`` to all other ranks.

        Args:
            obj: At the root, the object; ignored elsewhere.
            root: The rank whose object is sent.
            timeout_s: How long each of its calls waits for peers without progress, in seconds (default: the
                communicator's deadline).

        Returns:
            The object; at the root ``obj`` itself, elsewhere a copy.

        Raises:
            ArgumentError: The object cannot be pickled; nothing was sent.
            RunError: As for collectives, see `Communicator`.
        """
        root = root_of("broadcast_object", root, self.size)
        data = _pickled("broadcast_object", obj) if self.rank == root else np.empty(0, np.uint8)
        length = np.array([data.size], np.int64)
        self._in_verb("broadcast_object", "broadcast", length, length, root, timeout_s)
        if self.rank != root:
            data = np.empty(int(length[0]), np.uint8)
        self._in_verb("broadcast_object", "broadcast", data, data, root, timeout_s)
        return obj if self.rank == root else pickle.loads(data.tobytes())

    def gather_object(self, obj: Any, *, root: int = 0, timeout_s: float | None = None) -> list[Any] | None:
        """Gather an object of every rank at ``root``.

        Args:
            obj: The object.
            root: The rank that gets all objects.
            timeout_s: As in `broadcast_object`.

        Returns:
            At the root, copies of all ranks' objects, by rank; elsewhere None.

        Raises:
            ArgumentError: The object cannot be pickled; nothing was sent.
            RunError: As for collectives, see `Communicator`.
        """
        root = root_of("gather_object", root, self.size)
        uneven = self._uneven_of("gather_object", "gatherv", _pickled("gather_object", obj), None, root, timeout_s)
        return None if uneven is None else self._unpickled(uneven)

    def all_gather_object(self, obj: Any, *, timeout_s: float | None = None) -> list[Any]:
        """Gather an object of every rank on every rank.

        Args:
            obj: The object.
            timeout_s: As in `broadcast_object`.

        Returns:
            Copies of all ranks' objects, by rank.

        Raises:
            ArgumentError: The object cannot be pickled; nothing was sent.
            RunError: As for collectives, see `Communicator`.
        """
        data = _pickled("all_gather_object", obj)
        return self._unpickled(self._uneven_of("all_gather_object", "all_gatherv", data, None, 0, timeout_s))

    def scatter_object(
        self, objs: Iterable[Any] | None = None, *, root: int = 0, timeout_s: float | None = None
    ) -> Any:
        """Send object k of the root's ``objs`` to rank k.

        Args:
            objs: At the root, an object for each rank; ignored elsewhere.
            root: The rank whose objects are sent.
            timeout_s: As in `broadcast_object`.

        Returns:
            A copy of this rank's object.

        Raises:
            ArgumentError: The number of objects is wrong, or one cannot be pickled; nothing was sent.
            RunError: As for collectives, see `Communicator`.
        """
        root = root_of("scatter_object", root, self.size)
        data: list[Array] | None = None
        if self.rank == root:
            given = list(objs) if isinstance(objs, Iterable) else []
            if len(given) != self.size:
                raise ArgumentError(
                    f"scatter_object: pass a list of {self.size} objects at the root, one for each rank"
                )
            data = [_pickled("scatter_object", obj) for obj in given]
        lengths = None if data is None else np.array([each.size for each in data], np.int64)
        mine = np.empty(1, np.int64)
        self._in_verb("scatter_object", "scatter", lengths, mine, root, timeout_s)
        got = np.empty(int(mine[0]), np.uint8)
        self._uneven_of("scatter_object", "scatterv", data, got, root, timeout_s)
        return pickle.loads(got.tobytes())

    def _uneven_of(self, verb: str, collective: str, x: Any, out: Any, root: int, timeout_s: float | None) -> Any:
        """Run an uneven collective as a part of a verb, whose name errors have."""
        sends, takes = (self.size, 1) if collective == "scatterv" else (1, self.size)
        send, receive = BlocksGiven(x, "x", sends), BlocksGiven(out, "out", takes)
        asked = UnevenArguments(collective, send, receive, "none", root, "auto", timeout_s=timeout_s, verb=verb)
        return self._uneven(asked, False)

    def _unpickled(self, found: Array) -> list[Any]:
        """Unpickle one object of each rank; they lie one after another, and each says where it ends."""
        stream = BytesIO(found.tobytes())
        return [pickle.load(stream) for _ in range(self.size)]


def _pickled(verb: str, obj: Any) -> Array:
    """Pickle an object into 1-D uint8. Raises ArgumentError for an object that cannot be pickled."""
    try:
        return np.frombuffer(bytearray(pickle.dumps(obj)), np.uint8)
    except Exception as error:  # pickle raises what the object's own methods raise
        raise ArgumentError(f"{verb}: a {type(obj).__name__} cannot be pickled: {error}") from error
