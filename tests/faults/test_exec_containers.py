"""Containers of C++'s library in a pool, whose nodes libstdc++.so links: right programs are quiet, wrong ones found."""

import subprocess

import pytest

from faults.programs.findings import KINDS, ProgramFinding
from faults.programs.positions import located
from faults.programs.result import RunChoice
from tests.helpers.compilers import use_compiler
from tests.helpers.pool_programs import build, built, is_quiet, kinds, on_x86, ran
from tests.helpers.tiers import seeds

pytestmark = on_x86


@pytest.mark.parametrize(
    ("compiler", "flags"),
    [
        ("gcc", "-O2"),
        pytest.param("gcc", "-O0", marks=pytest.mark.deep),
        pytest.param("clang", "-O2", marks=pytest.mark.deep),
        pytest.param("clang", "-O1 -stdlib=libc++", marks=pytest.mark.deep),
    ],
)
def test_a_right_program_is_quiet_and_a_wrong_one_is_found(
    monkeypatch: pytest.MonkeyPatch, compiler: str, flags: str
) -> None:
    use_compiler(monkeypatch, compiler)
    program = build("containers.cc", "-std=c++17", *flags.split(), language="c++")
    ways = subprocess.run([program], capture_output=True, text=True, timeout=60).stdout.split()
    assert len(ways) > 8
    for way in ways:
        words = [f"{program} /dev/dax0.0 {way} {who}" for who in "wr"]
        for seed in seeds(3):
            choice = RunChoice(seed or None, seed)
            assert is_quiet(ran(" : ".join(words), choice)), (way, choice)
        for forgotten, kind, role in (
            ("no-flush", "not-flushed", "store"),
            ("no-invalidate", "no-invalidate", "access"),
        ):
            result = ran(" : ".join(f"{word} {forgotten}" for word in words), RunChoice(None, 0))
            found = [its for raw in result.findings if KINDS[(its := ProgramFinding.one(bytes(raw))).kind].name == kind]
            assert found and result.unannounced == 0, way
            for place in located([result.places[its.site(role)] for its in found]):
                assert place and place.at.file.endswith("containers.cc"), (way, place)


@pytest.mark.parametrize(
    ("mode", "turns"), [("recompiled", 400), pytest.param("preloaded", 100, marks=pytest.mark.deep)]
)
def test_nodes_in_a_pool_are_linked_as_libstdcxx_links_them(mode: str, turns: int) -> None:
    program = built(mode, "nodes.cc", "-std=c++17", language="c++")
    result = ran(f"{program} {turns} /dev/dax0.0", RunChoice(None, 0))
    assert [one.output for one in result.exits] == [""] and [one.code for one in result.exits] == [0]
    assert kinds(result) == {"dirty-at-exit"} and result.unannounced == 0
