"""Which programs can be followed as they are; the others are refused in a sentence, whatever their headers say."""

import platform
import shutil
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cxlemu.errors import ArgumentError
from faults.programs.binary import check_binary, is_recompiled

TRUE = Path(shutil.which("true") or "/bin/true").resolve()
pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="this machine's programs are not of x86-64")


def program(folder: Path, image: bytes, mode: int = 0o755) -> Path:
    file = folder / "program"
    file.write_bytes(image)
    file.chmod(mode)
    return file


def headers(image: bytes) -> list[int]:
    """Where the program headers begin."""
    (at,), (size, count) = struct.unpack_from("<Q", image, 32), struct.unpack_from("<HH", image, 54)
    return [at + k * size for k in range(count)]


def changed(at: int, form: str, value: int) -> bytes:
    image = bytearray(TRUE.read_bytes())
    struct.pack_into(form, image, at, value)
    return bytes(image)


def without_interpreter() -> bytes:
    image = bytearray(TRUE.read_bytes())
    for at in headers(image):
        if struct.unpack_from("<I", image, at)[0] == 3:
            struct.pack_into("<I", image, at, 0)
    return bytes(image)


REFUSED = {
    "arm64": (changed(18, "<H", 183), "for arm64; .* followed on x86-64 only"),
    "32 bits": (changed(4, "<B", 1), "followed on x86-64 only"),
    "static": (without_interpreter(), "statically linked"),
    "static, by a count that is not believed": (changed(56, "<H", 65535), "statically linked"),
    "static, by headers that are not there": (changed(32, "<Q", 2**63), "statically linked"),
    "musl": (TRUE.read_bytes().replace(b"ld-linux", b"ld-musl-"), "only the GNU C library"),
    "Go": (TRUE.read_bytes() + b"\xff Go buildinf:", "a Go program"),
    "a sanitizer": (TRUE.read_bytes() + b"\0__tsan_init\0libtsan.so.2\0", "built with -fsanitize=thread"),
    "text": (b"hello\n", "neither a program nor a script"),
    "nothing": (b"", "neither a program nor a script"),
    "a script of nothing": (b"#!\n", "names no program"),
    "a script of what is not here": (b"#!/no/such/shell\n", "which does not exist"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_followed_is_refused_in_a_sentence(what: str, tmp_path: Path) -> None:
    image, sentence = REFUSED[what]
    with pytest.raises(ArgumentError, match=sentence):
        check_binary(program(tmp_path, image))


def test_a_program_that_changes_its_user_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="setuid"):
        check_binary(program(tmp_path, TRUE.read_bytes(), 0o4755))


def test_a_script_that_runs_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="a chain of more than"):
        check_binary(program(tmp_path, f"#!{tmp_path / 'program'}\n".encode()))


@pytest.mark.parametrize("first", [b"#!/usr/bin/env sh\n", b"#! /bin/sh -e\n"])
def test_a_script_is_as_good_as_what_runs_it(first: bytes, tmp_path: Path) -> None:
    check_binary(TRUE)
    check_binary(program(tmp_path, first))


def test_what_was_compiled_for_it_names_our_runtime(tmp_path: Path) -> None:
    assert not is_recompiled(TRUE)
    assert is_recompiled(program(tmp_path, TRUE.read_bytes() + b"\0__tsan_init\0"))


@given(changes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=8), length=st.integers(0, 1000))
def test_no_header_is_believed(
    changes: list[tuple[int, int]], length: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    image = bytearray(TRUE.read_bytes())
    for at, value in changes:
        image[at] = value
    try:
        check_binary(program(tmp_path_factory.getbasetemp(), bytes(image[: length if length < 500 else None])))
    except ArgumentError as error:
        assert str(error).startswith("program: ")
