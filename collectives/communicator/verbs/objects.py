"""Python objects among ranks, by pickle: only these verbs unpickle, and only what all ranks asked for by calling them.

Unpickling can execute code chosen by the sender, so no other call ever does it, whatever bytes arrive: a rank that
does not call these verbs cannot be made to. They are for configurations; arrays travel faster as arrays.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from io import BytesIO
from itertools import pairwise
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
    """Collectives of Python objects that pickle accepts. Every rank trusts what its peers send in them.

    ``timeout_s`` is how long each call within waits for peers without progress, in seconds (default: the communicator's
    deadline). All raise ArgumentError where an object cannot be pickled or the number of objects is wrong (nothing was
    sent), and RunError as collectives do: see `Communicator`.
    """

    # (verb, collective, x, out, root, timeout_s): runs a collective as a part of a verb, whose name errors have
    _in_verb: Callable[..., Any]

    def broadcast_object(self, obj: Any = None, *, root: int = 0, timeout_s: float | None = None) -> Any:
        """Send an object of ``root`` to all other ranks.

        Args:
            obj: At the root, the object; ignored elsewhere.
            root: The rank whose object is sent.

        Returns:
            The object; at the root ``obj`` itself, elsewhere a copy.
        """
        root = root_of("broadcast_object", root, self.size)
        data, _ = _pickled("broadcast_object", *[obj] if self.rank == root else [])
        length = np.array([data.size], np.int64)
        self._in_verb("broadcast_object", "broadcast", length, length, root, timeout_s)
        if self.rank != root:
            data = np.empty(int(length[0]), np.uint8)
        self._in_verb("broadcast_object", "broadcast", data, data, root, timeout_s)
        return obj if self.rank == root else pickle.loads(data.data)

    def gather_object(self, obj: Any, *, root: int = 0, timeout_s: float | None = None) -> list[Any] | None:
        """Gather an object of every rank at ``root``.

        Args:
            root: The rank that gets all objects.

        Returns:
            At the root, copies of all ranks' objects, by rank; elsewhere None.
        """
        root = root_of("gather_object", root, self.size)
        return self._gathered_objects("gather_object", "gatherv", obj, root, timeout_s)

    def all_gather_object(self, obj: Any, *, timeout_s: float | None = None) -> list[Any]:
        """Gather an object of every rank on every rank.

        Returns:
            Copies of all ranks' objects, by rank.
        """
        found = self._gathered_objects("all_gather_object", "all_gatherv", obj, 0, timeout_s)
        assert found is not None
        return found

    def scatter_object(
        self, objs: Iterable[Any] | None = None, *, root: int = 0, timeout_s: float | None = None
    ) -> Any:
        """Send object k of the root's ``objs`` to rank k.

        Args:
            objs: At the root, an object for each rank; ignored elsewhere.
            root: The rank whose objects are sent.

        Returns:
            A copy of this rank's object.
        """
        root = root_of("scatter_object", root, self.size)
        given: list[Any] = []
        if self.rank == root:
            given = list(objs) if isinstance(objs, Iterable) else []
            if len(given) != self.size:
                raise ArgumentError(
                    f"scatter_object: pass a list of {self.size} objects at the root, one for each rank"
                )
        data, lengths = _pickled("scatter_object", *given)
        mine = np.empty(1, np.int64)
        x = np.array(lengths, np.int64) if given else None
        self._in_verb("scatter_object", "scatter", x, mine, root, timeout_s)
        got = np.empty(int(mine[0]), np.uint8)
        send = BlocksGiven(data, "x", self.size, lengths) if given else BlocksGiven(None, "x", self.size)
        self._moved("scatter_object", "scatterv", send, BlocksGiven(got, "out", 1), root, timeout_s)
        return pickle.loads(got.data)

    def _gathered_objects(
        self, verb: str, collective: str, obj: Any, root: int, timeout_s: float | None
    ) -> list[Any] | None:
        """Gather an object of every rank, by rank; None on a rank that gets none."""
        data, length = _pickled(verb, obj)
        lengths = np.empty(self.size, np.int64)
        self._in_verb(verb, "all_gather", np.array(length), lengths, 0, timeout_s)
        receive = BlocksGiven(None, "out", self.size, lengths.tolist())
        found = self._moved(verb, collective, BlocksGiven(data, "x", 1), receive, root, timeout_s, known=True)
        if found is None:
            return None
        return [pickle.loads(each.data) for each in np.split(found, np.cumsum(lengths)[:-1])]

    def _moved(
        self,
        verb: str,
        collective: str,
        send: BlocksGiven,
        receive: BlocksGiven,
        root: int,
        timeout_s: float | None,
        *,
        known: bool = False,
    ) -> Any:
        """Run an uneven collective as a part of a verb, whose name errors have."""
        asked = UnevenArguments(collective, send, receive, "none", root, "auto", known, timeout_s, verb)
        return self._uneven(asked, False)


def _pickled(verb: str, *objs: Any) -> tuple[Array, list[int]]:
    """Pickle objects into 1-D uint8, one after another; also return how many bytes each has."""
    stream, ends = BytesIO(), [0]
    for obj in objs:
        try:
            pickle.dump(obj, stream)
        except Exception as error:  # pickle raises what the object's own methods raise
            raise ArgumentError(f"{verb}: a {type(obj).__name__} cannot be pickled: {error}") from error
        ends.append(stream.tell())
    return np.frombuffer(stream.getbuffer(), np.uint8), [end - begin for begin, end in pairwise(ends)]
