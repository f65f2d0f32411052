"""Atomic operations on 16 bytes link and are judged, as cmpxchg16b and as calls of libatomic, in C and in C++."""

import pytest

from faults.programs.result import RunChoice
from tests.helpers.compilers import use_compiler
from tests.helpers.pool_programs import CHOICES, MODES, built, is_quiet, kinds, on_x86, ran

pytestmark = on_x86
LANGUAGES = {"c": (), "c++": ("-std=c++20", "-xc++")}


@pytest.fixture(params=["gcc", "clang"])
def compiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    use_compiler(monkeypatch, request.param)
    return str(request.param)


def program(mode: str, language: str, *flags: str) -> str:
    words = [*flags, *LANGUAGES[language], "-Wno-atomic-alignment"]
    if mode == "preloaded":
        words += ["-Wl,--no-as-needed", "-l:libatomic.so.1"]
    its = built(mode, "atomic16.c", *words, language=language)
    return f"{its} /dev/dax0.0 w : {its} /dev/dax0.0 r"


@pytest.mark.each_value_once
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("width", ["-mcx16", "-mno-cx16"])
def test_they_return_what_they_should_and_are_quiet(mode: str, language: str, width: str) -> None:
    words = program(mode, language, width)
    for choice in CHOICES:
        assert is_quiet(ran(words, choice)), choice


@pytest.mark.each_value_once
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(("flag", "kind"), [("-DNOT_FLUSHED", "not-flushed"), ("-DSHARED", "locked-across-hosts")])
def test_their_mistakes_are_found(mode: str, language: str, flag: str, kind: str) -> None:
    assert kind in kinds(ran(program(mode, language, flag), RunChoice(None, 0)))
