"""Replay tokens: what goes in comes out, and what is damaged, foreign or huge is one sentence."""

import base64
import json
import pickle
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cxlemu.errors import TokenError
from faults.token import JSON_BYTES_MAX, PREFIX, TOKEN_CHARS_MAX, Token, parse, versions_here
from tests.helpers.tables import with_rows
from tests.helpers.tiers import examples

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def packed(text: bytes) -> str:
    """A token of any text, however wrong."""
    raw = zlib.crc32(text).to_bytes(4, "little") + zlib.compress(text)
    return PREFIX + base64.urlsafe_b64encode(raw).decode().rstrip("=")


@examples(100)
@given(st.dictionaries(st.text(), JSON, max_size=5))
def test_what_goes_in_comes_out(body: dict[str, Any]) -> None:
    token = Token("scenario", body)
    word = str(token)
    assert word.isascii()
    assert not set(word) & set(" \n\"'\\$&|;<>()*?`")  # nothing that a shell would touch
    assert parse(word) == token
    assert str(parse(word)) == word


def test_the_order_of_keys_does_not_matter() -> None:
    assert str(Token("x", {"a": 1, "b": 2})) == str(Token("x", {"b": 2, "a": 1}))


def test_blanks_and_line_breaks_of_a_mail_do_not_matter() -> None:
    word = str(Token("x", {"a": list(range(100))}))
    assert parse("\n ".join(word[at : at + 20] for at in range(0, len(word), 20)) + "\n").body == {
        "a": list(range(100))
    }


def test_every_changed_character_is_noticed() -> None:
    word = str(Token("x", {"a": list(range(30))}))
    for at in range(len(word)):
        other = "A" if word[at] != "A" else "B"
        damaged = word[:at] + other + word[at + 1 :]
        try:
            token = parse(damaged)
        except TokenError:
            continue
        # the last character may hold bits that mean nothing
        assert at == len(word) - 1
        assert token == parse(word)


def test_every_cut_is_noticed() -> None:
    word = str(Token("x", {"a": 1}))
    for length in range(len(word)):
        with pytest.raises(TokenError):
            parse(word[:length])


CONTENT = {"kind": "x", "versions": {}, "body": {}}


@with_rows(
    ("", "begins with"),
    ("cxl2.AAAA", "begins with 'cxl1.'"),
    (PREFIX + "a!b", "letters, digits"),
    (PREFIX + "A" * (TOKEN_CHARS_MAX + 1), "at most"),
    ("x" * (3 * TOKEN_CHARS_MAX), "at most"),
    (packed(b"[" * 100_000), "nested more than"),
    (packed(b"not json"), "cxlemu did not make it"),
    (packed(b"\xff\xfe"), "cxlemu did not make it"),
    (packed(b'{"body":{},"kind":"x","kind":"y","versions":{}}'), "cxlemu did not make it"),
    (packed(b'{"body":{"a":NaN},"kind":"x","versions":{}}'), "cxlemu did not make it"),
    (packed(b'{"body":{"a":' + b"9" * 10_000 + b'},"kind":"x","versions":{}}'), "cxlemu did not make it"),
    (packed(b"1"), "kind, versions and body"),
    (packed(json.dumps(CONTENT | {"more": 1}).encode()), "kind, versions and body"),
    (packed(json.dumps(CONTENT | {"kind": "../x"}).encode()), "kind is not a short"),
    (packed(json.dumps(CONTENT | {"kind": 3}).encode()), "kind is not a short"),
    (packed(json.dumps(CONTENT | {"body": [1]}).encode()), "body is not an object"),
    (packed(json.dumps(CONTENT | {"versions": {"cxlemu": "\x1b[2J"}}).encode()), "versions are not short"),
    (packed(json.dumps(CONTENT | {"versions": {str(i): "1" for i in range(17)}}).encode()), "versions are not short"),
    (packed(pickle.dumps({"kind": "x"})), "cxlemu did not make it"),
    (packed(b" " * (JSON_BYTES_MAX + 1)), "exceeds"),
)
def test_what_is_no_token_is_one_sentence(word: str, sentence: str) -> None:
    with pytest.raises(TokenError, match=sentence) as caught:
        parse(word)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_bomb_is_not_inflated() -> None:
    bomb = zlib.compress(b" " * (1 << 26), 1)
    assert len(bomb) < TOKEN_CHARS_MAX // 2
    word = PREFIX + base64.urlsafe_b64encode(b"\0\0\0\0" + bomb).decode().rstrip("=")
    with pytest.raises(TokenError, match="exceeds"):
        parse(word)


def test_what_would_not_be_read_back_is_not_written() -> None:
    with pytest.raises(TokenError, match="bytes to describe"):
        str(Token("x", {"a": "b" * JSON_BYTES_MAX}))


def test_other_versions_are_named() -> None:
    assert Token("x", {}).differences() == []
    here = versions_here()
    other = Token("x", {}, here | {"numpy": "0.1"})
    assert other.differences() == [f"numpy was 0.1, here it is {here['numpy']}"]
