"""Replay tokens: a failure as one word that can be mailed, pasted and run again on another machine.

    cxl1.<base64url of: CRC-32 of the JSON, 4 bytes little-endian; the JSON, deflated by zlib>

The JSON is canonical (sorted keys, no blanks) and holds three things: the ``kind`` of what is replayed, the
``versions`` it was made with, and a ``body`` that the kind's own model checks (see faults/replay/replay.py). Tokens are
untrusted: nothing is unpickled, every length is bounded before it is used, and every defect is a TokenError of one
sentence. Equal values give equal JSON; the deflated bytes may differ between builds of zlib, and are never compared.
"""

import base64
import binascii
import json
import platform
import re
import shlex
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from cxlemu.errors import TokenError
from cxlemu.version import __version__

PREFIX = "cxl1."
TOKEN_CHARS_MAX = 1 << 20
JSON_BYTES_MAX = 1 << 24
DEPTH_MAX = 32
_CRC_BYTES = 4
_KIND = re.compile(r"[a-z][a-z0-9_]{0,31}")


def versions_here() -> dict[str, str]:
    """List the versions on which a replay may depend, and which it therefore names when they differ."""
    import numpy as np  # only here: a run that finds nothing needs no token

    return {"cxlemu": __version__, "numpy": np.__version__, "machine": platform.machine()}


@dataclass(frozen=True)
class Token:
    """A failure that can be replayed."""

    kind: str  # what is replayed, a kind that `faults.replay.replay` knows
    body: Mapping[str, Any]  # what the replay needs: JSON values only
    versions: Mapping[str, str] = field(default_factory=versions_here)  # the versions with which the token was made

    def __str__(self) -> str:
        content = {"body": self.body, "kind": self.kind, "versions": self.versions}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
        if len(text) > JSON_BYTES_MAX:
            raise TokenError(f"this failure takes {len(text)} bytes to describe, a token holds {JSON_BYTES_MAX}")
        packed = zlib.crc32(text).to_bytes(_CRC_BYTES, "little") + zlib.compress(text, 9)
        word = PREFIX + base64.urlsafe_b64encode(packed).decode().rstrip("=")
        if len(word) > TOKEN_CHARS_MAX:
            raise TokenError(f"this failure's token would have {len(word)} characters, the limit is {TOKEN_CHARS_MAX}")
        return word

    def command(self, algorithm: str | None = None) -> str:
        """Give the command that reproduces the failure."""
        return f"cxlemu replay {self}" + (f" --algorithm {shlex.quote(algorithm)}" if algorithm else "")

    def differences(self) -> list[str]:
        """Tell how the versions with which it was made differ from those here, as sentences' ends."""
        here = versions_here()
        return [
            f"{name} was {self.versions.get(name, 'unknown')}, here it is {here[name]}"
            for name in here
            if self.versions.get(name) != here[name]
        ]


def parse(word: str) -> Token:
    """Read a token from its word; blanks and line breaks in it are ignored."""
    if len(word) > 2 * TOKEN_CHARS_MAX:
        raise TokenError(f"a token has at most {TOKEN_CHARS_MAX} characters, this has {len(word)}")
    word = "".join(word.split())
    if not word.startswith(PREFIX):
        raise TokenError(f"a token begins with {PREFIX!r}, not with {word[: len(PREFIX)]!r}")
    text = _inflated(_decoded(word.removeprefix(PREFIX)))
    content = _json(text)
    if not isinstance(content, dict) or content.keys() != {"body", "kind", "versions"}:
        raise TokenError("this token does not hold just kind, versions and body: another version made it")
    kind, body, versions = content["kind"], content["body"], content["versions"]
    if not isinstance(kind, str) or not _KIND.fullmatch(kind):
        raise TokenError("this token's kind is not a short lower-case word")
    if not isinstance(body, dict):
        raise TokenError("this token's body is not an object")
    if not (isinstance(versions, dict) and len(versions) <= 16 and all(map(_is_version, versions.values()))):
        raise TokenError("this token's versions are not short words")
    return Token(kind, body, versions)


def _is_version(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[!-~]{1,64}", value) is not None


def _decoded(word: str) -> bytes:
    if len(word) > TOKEN_CHARS_MAX:
        raise TokenError(f"a token has at most {TOKEN_CHARS_MAX} characters, this has {len(word)}")
    if not re.fullmatch(r"[A-Za-z0-9_-]*", word):
        raise TokenError(
            "a token consists of letters, digits, '-' and '_' after its prefix: copy all of it, and only it"
        )
    try:
        return base64.urlsafe_b64decode(word + "=" * (-len(word) % 4))
    except binascii.Error:
        raise TokenError("this token is cut off or damaged: copy all of it") from None


def _inflated(packed: bytes) -> bytes:
    inflate = zlib.decompressobj()
    try:
        text = inflate.decompress(packed[_CRC_BYTES:], JSON_BYTES_MAX)
    except zlib.error:
        raise TokenError("this token is cut off or damaged: copy all of it") from None
    if inflate.unconsumed_tail:
        raise TokenError(f"this token's content exceeds {JSON_BYTES_MAX} bytes, the limit")
    if not inflate.eof or inflate.unused_data or zlib.crc32(text) != int.from_bytes(packed[:_CRC_BYTES], "little"):
        raise TokenError("this token is cut off or damaged: copy all of it")
    return text


def _json(text: bytes) -> Any:
    _check_depth(text)
    try:
        return json.loads(text, parse_constant=_refuse, object_pairs_hook=_object)
    except (ValueError, RecursionError):
        raise TokenError("this token's content is not valid: cxlemu did not make it") from None


def _check_depth(text: bytes) -> None:
    """Bound the nesting. Brackets within strings count as well: bodies have few of them, and the bound is generous."""
    depth = 0
    for byte in re.findall(rb"[][{}]", text):
        depth += 1 if byte in b"[{" else -1
        if depth > DEPTH_MAX:
            raise TokenError(f"this token's values are nested more than {DEPTH_MAX} deep")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of its pairs. Raises ValueError for a key that stands twice."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key stands twice")
    return fields
