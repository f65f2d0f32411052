"""Figures that several files share, written once: ``hardware: NAME`` in a file, and ``like: ENTRY`` in its mappings.

    hardware: scalepool                     # configs/hardware/scalepool.yaml, or a file beside this one
    links:
      - {name: port, ends: [hosts, leaf], like: nvlink-port}

An entry's keys count as if they stood in the mapping; what the mapping says itself goes before them. An entry may be
like another one of its file. A hardware file holds nothing but entries, so that files cannot go in a circle; entries
that do are an error, and so is a file that becomes too large by them. Errors name the place where a value stands.
"""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from cxlemu.errors import ConfigError
from cxlemu.topology.document import DEPTH_MAX, Document, Key, read_bytes, shown
from cxlemu.topology.fields import closest, listed
from cxlemu.topology.shipped import shipped_hardware

HARDWARE, LIKE = "hardware", "like"
NOUN = "hardware file"
COPIED_MAX = 10_000  # keys


class _Place(NamedTuple):
    """Where something stands, and through which entries it was reached."""

    document: Document
    key: Key
    trail: tuple[str, ...] = ()


def with_hardware(document: Document) -> Document | None:
    """Fill in, in place, the figures that a document takes from its hardware file; return that, if it names one."""
    if HARDWARE not in document.data:
        return None
    library = _library(document, document.data[HARDWARE])
    _Sharing(document, library).fill_in()
    return library


def _library(document: Document, name: object) -> Document:
    shipped = shipped_hardware()
    if not isinstance(name, str) or not name.isprintable() or not name:
        raise document.error((HARDWARE,), f"is {shown(name)} but should be the name of a file of figures")
    path = shipped.get(name, Path(document.file).parent / name)
    try:
        exists = path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        exists = False
    if not exists:
        what = f"is {shown(name)}, which is neither shipped ({listed(shipped)}) nor a file beside this one"
        raise document.error((HARDWARE,), what)
    return _parsed(read_bytes(path, NOUN), str(path))


@lru_cache(8)  # many topologies take their figures from one, and copy them
def _parsed(raw: bytes, file: str) -> Document:
    return Document(raw, file, NOUN)


class _Sharing:
    def __init__(self, document: Document, library: Document) -> None:
        self.document, self.library = document, library
        self._copied = 0

    def fill_in(self) -> None:
        data = self.document.data
        del data[HARDWARE]
        for name, entry in self.library.data.items():
            if not isinstance(entry, dict):
                raise self.library.error((name,), f"is {shown(entry)} but should be an entry: keys and their figures")
        for name in list(data):
            data[name] = self._whole(data[name], (name,), _Place(self.document, (name,)))

    def _whole(self, node: Any, key: Key, place: _Place) -> Any:
        """What stands at a place, as it will stand at ``key`` of the document."""
        if place.document is not self.document:
            self._copied += 1
            if self._copied > COPIED_MAX:
                raise ConfigError(f"{self.document.file}: takes more than {COPIED_MAX} keys from {self.library.file}")
            self.document.adopt(key, place.document, place.key)
        if isinstance(node, list):
            its = [place._replace(key=(*place.key, index)) for index in range(len(node))]
            return [self._whole(item, (*key, index), its[index]) for index, item in enumerate(node)]
        if not isinstance(node, dict):
            return node
        return {
            name: self._whole(item, (*key, name), place_of)
            for name, (item, place_of) in self._keys(node, place).items()
        }

    def _keys(self, node: Mapping[str, Any], place: _Place) -> dict[str, tuple[Any, _Place]]:
        keys: dict[str, tuple[Any, _Place]] = {}
        if LIKE in node:
            name, here = node[LIKE], (*place.key, LIKE)
            if name in place.trail:
                circle = ", ".join((*place.trail[place.trail.index(name) :], name))
                raise place.document.error(here, f"goes in a circle: {circle}")
            if len(place.trail) == DEPTH_MAX:
                raise place.document.error(here, f"refers to more than {DEPTH_MAX} others, one after another")
            if not isinstance(name, str) or name not in self.library.data:
                what = f"is {shown(name)}, no entry of {self.library.file}; {closest(name, self.library.data)}"
                raise place.document.error(here, what)
            keys = self._keys(self.library.data[name], _Place(self.library, (name,), (*place.trail, name)))
        own = {name: (item, place._replace(key=(*place.key, name))) for name, item in node.items() if name != LIKE}
        return keys | own
