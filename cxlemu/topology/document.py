"""Untrusted YAML as plain data that remembers its lines. Every defect is a ConfigError: ``FILE:LINE: what``.

Stricter than YAML where YAML surprises: no aliases, no tags, no key twice, no ``010`` or ``1:30`` as numbers,
bounded size and depth.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from cxlemu.errors import ConfigError
from cxlemu.files import read_file

BYTES_MAX = 1 << 18
DEPTH_MAX = 16

Key = tuple[str | int, ...]  # ("links", 1, "ends") is links[1].ends

_DIGITS_MAX = 18
_PLAIN_NUMBER = re.compile(rf"[-+]?(0|[1-9][0-9]{{0,{_DIGITS_MAX - 1}}})(\.[0-9]*)?([eE][-+]?[0-9]{{1,2}})?")


class Document:
    """A parsed YAML file. Raises ConfigError where the bytes are not YAML as the module describes it."""

    def __init__(self, raw: bytes, file: str, noun: str = "topology") -> None:
        self.file, self.raw = file, raw
        self.lines: dict[Key, int] = {(): 1}
        self._adopted: dict[Key, str] = {}  # keys that stand in another file
        if len(raw) > BYTES_MAX:
            raise ConfigError(f"{file}: larger than {BYTES_MAX} bytes, which no {noun} needs")
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            line = raw.count(b"\n", 0, error.start) + 1
            raise ConfigError(f"{file}:{line}: not UTF-8 text; save the file as UTF-8") from None
        try:
            loader = _Loader(text)
            node = loader.get_single_node()
            if not isinstance(node, yaml.MappingNode):
                article = "an" if noun[0] in "aeiou" else "a"
                raise self._defect(node, f"{article} {noun} is a mapping, lines of `key: value`")
            self.data: dict[str, Any] = self._mapping(loader, node, ())
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            line = mark.line + 1 if mark else text.count("\n", 0, getattr(error, "position", 0)) + 1
            parts = (getattr(error, name, None) for name in ("context", "problem", "reason"))
            problem = ", ".join(" ".join(part.split()) for part in parts if part)
            raise ConfigError(f"{file}:{line}: not plain YAML: {problem}") from None

    @classmethod
    def read(cls, path: Path, noun: str = "topology") -> Document:
        return cls(read_bytes(path, noun), str(path), noun)

    def place(self, key: Key) -> tuple[int, str]:
        """Return line and dotted name of ``key``; the line of the nearest key above it where it is missing."""
        known, named = self._near(key)
        return self.lines[known], dotted(named)

    def adopt(self, key: Key, document: Document, there: Key) -> None:
        """Note that a value was copied from another file, so that errors name the place where it stands."""
        self.lines[key] = document.lines[there]
        self._adopted[key] = document.file

    def _near(self, key: Key) -> tuple[Key, Key]:
        """The nearest key above it, or itself, that the document has; and the first one below that it has not."""
        known: Key = ()
        for part in key:
            if (*known, part) in self.lines:
                known = (*known, part)
            elif isinstance(part, str):
                return known, (*known, part)
        return known, known

    def error(self, key: Key, text: str) -> ConfigError:
        """Make the error for a wrong value, for the caller to raise; it names file, line and key."""
        line, name = self.place(key)
        file = self._adopted.get(self._near(key)[0], self.file)
        return ConfigError(f"{file}:{line}: {f'{name} {text}'.strip()}")

    def _defect(self, node: yaml.Node | None, text: str) -> ConfigError:
        return ConfigError(f"{self.file}:{node.start_mark.line + 1 if node else 1}: {text}")

    def _plain(self, loader: _Loader, node: yaml.Node, key: Key) -> Any:
        if isinstance(node, yaml.MappingNode):
            return self._mapping(loader, node, key)
        if isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self.lines[(*key, index)] = item.start_mark.line + 1
            return [self._plain(loader, item, (*key, index)) for index, item in enumerate(node.value)]
        return self._scalar(loader, node, key)

    def _mapping(self, loader: _Loader, node: yaml.MappingNode, key: Key) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            name = key_node.value
            if not key_node.tag.endswith(":str"):
                raise self._defect(
                    key_node,
                    f"a key of {dotted(key) or 'the file'} is not a word; write names such as latency_ns",
                )
            here = (*key, name)
            if name in mapping:
                raise self._defect(key_node, f"{dotted(here)} appears twice, first in line {self.lines[here]}")
            self.lines[here] = key_node.start_mark.line + 1
            mapping[name] = self._plain(loader, value_node, here)
        return mapping

    def _scalar(self, loader: _Loader, node: yaml.Node, key: Key) -> str | int | float | bool | None:
        kind = node.tag.rpartition(":")[2]
        if kind not in {"str", "int", "float", "bool", "null"}:
            raise self._defect(node, f"{dotted(key)} {shown(node.value)} is not text or a number; quote it")
        if kind in {"int", "float"} and not _PLAIN_NUMBER.fullmatch(node.value):
            what = f"is not a plain number of {_DIGITS_MAX} digits at most"
            raise self._defect(node, f"{dotted(key)} {node.value[:40]} {what}; write 10 or 0.5")
        plain: str | int | float | bool | None = loader.construct_object(node)
        return plain


def read_bytes(path: Path, noun: str = "topology") -> bytes:
    """Read a file whole. Raises ConfigError where that cannot be."""
    try:
        return read_file(path, BYTES_MAX)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; give a {noun} file") from None


class _Loader(yaml.SafeLoader):
    """Refuses aliases, tags and great depth while composing, so that nothing grows or recurses."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        for refused, what in (
            (isinstance(event, yaml.AliasEvent), "aliases are not allowed"),
            (getattr(event, "tag", None), "tags are not allowed"),
            (self.depth == DEPTH_MAX, f"nested deeper than {DEPTH_MAX}"),
        ):
            if refused:
                raise yaml.composer.ComposerError(None, None, what, event.start_mark)
        self.depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


def dotted(key: Key) -> str:
    """Write a key for people: ("links", 1, "ends") as ``links[1].ends``.

    Words that are not names are quoted, to print safely.
    """
    words = [f"[{part}]" if isinstance(part, int) else f".{_word(part)}" for part in key]
    return "".join(words).removeprefix(".")


def shown(value: object) -> str:
    """Write a value as an error shows it: short, and safe to print."""
    text = "empty" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:56] + " ..."


def _word(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z0-9_-]{1,60}", text) else shown(text)
