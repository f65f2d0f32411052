"""Reports of a program's mistakes: lines, litmus tests that confirm them, pictures, JSON, SARIF, suppressions."""

import json
import re
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from cxlemu.errors import ConfigError
from faults.explore.result import Budget
from faults.litmus import language
from faults.litmus.run import run as run_litmus
from faults.programs import reports, suppressions, words
from faults.programs.chain import chain
from faults.programs.findings import KINDS, ROLES, ProgramFinding
from faults.programs.page import page
from faults.programs.picture import picture
from faults.programs.positions import Position, SourcePlace, located
from faults.programs.reports import Checked, ProgramReport
from faults.verdict import Verdict
from tests.helpers.tables import with_rows

UNSHOWN = {"out-of-room", "invalidate-overtakes", "lost-in-crash", "assertion", "invariant", "not-linearizable"}
UNSHOWN |= {"copy-not-ended", "torn-in-crash", "torn", "torn-load"}
NUMBER = {kind.name: number for number, kind in KINDS.items()}


class Place(NamedTuple):
    module: str
    offset: int
    caller_module: str = ""
    caller_offset: int = 0


def finding(kind: str, manifest: bool = True, **more: object) -> ProgramFinding:
    """Host 1 goes wrong; position k is that of role k - 1."""
    sites = tuple(range(1, len(ROLES) + 1))
    fields: dict[str, object] = {"kind": NUMBER[kind], "manifest": manifest, "host": 1, "other_host": 0, "pool": 0}
    fields |= {"thread": 1, "other_thread": 0, "times": 2, "offset": 0x48, "nbytes": 8, "number": 9}
    return ProgramFinding(**(fields | {"sites": sites, "numbers": (0,) * len(ROLES)} | more))  # type: ignore[arg-type]


# --- from a finding to litmus tests ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS.values()])
@pytest.mark.parametrize("late", [False, True])
def test_the_abstract_machine_confirms_every_kind_and_its_repair(kind: str, late: bool) -> None:
    its = chain(finding(kind, flush_late=late), {"store": "queue.c:3 in push, by é\n"})
    if kind in UNSHOWN:
        assert its is None
        return
    for text in (its.broken, its.fixed):
        litmus = language.parse(text.encode(), "chain")
        assert run_litmus(litmus, Budget(), "search").verdict is Verdict.OK, text
    assert "queue.c:3" in its.broken and "allowed:" in its.broken and "forbidden:" in its.fixed


@pytest.mark.parametrize("kind", ["no-invalidate", "not-flushed", "two-writers"])
def test_a_picture_shows_the_programs_lines(kind: str) -> None:
    its = chain(finding(kind))
    assert its is not None
    drawn = picture(its, "byte 0x48 of q", ("host 0", "host 1"), {"store": "queue.c:12", "access": "queue.c:40"})
    assert drawn is not None
    ET.fromstring(drawn)
    assert "queue.c:12" in drawn and "host 1" in drawn
    assert ("reads the old version" in drawn) == (kind != "two-writers")


# --- positions -------------------------------------------------------------------------------------------------------

SOURCE = """
#include <stdatomic.h>
static inline __attribute__((always_inline)) void deep(volatile int *p) {
    *p = 1;
}
void push(volatile int *p) {
    deep(p);
}
int main(void) {
    int x;
    push(&x);
    return x;
}
"""


def symbol(program: Path, name: str) -> int:
    listed = subprocess.run(["nm", str(program)], capture_output=True, text=True, check=True).stdout
    return int(next(line for line in listed.splitlines() if line.endswith(f" {name}")).split()[0], 16)


def compiled(folder: Path, *flags: str) -> Path:
    source, into = folder / "queue.c", folder / "queue"
    source.write_text(SOURCE)
    subprocess.run(["gcc", "-O1", "-fno-inline-small-functions", *flags, str(source), "-o", str(into)], check=True)
    return into


def test_positions_are_lines_functions_and_callers(tmp_path: Path) -> None:
    program = str(compiled(tmp_path, "-g"))
    push, main = symbol(Path(program), "push"), symbol(Path(program), "main")
    unknown, place = located([Place("", 0), Place(program, push, program, main)])
    assert unknown is None and place is not None and place.caller is not None
    assert place.at.file.endswith("queue.c") and place.at.line in (4, 6, 7) and place.at.function in ("push", "deep")
    if place.at.function == "deep":  # in line
        assert (place.caller.line, place.caller.function) == (7, "push")
    assert place.callers[-1].line in range(9, 14) and place.callers[-1].function == "main"
    assert len(place.callers) == 2 - (place.at.function == "push")
    assert re.fullmatch(r".*queue\.c:\d in (push|deep)(, called from .*queue\.c:\d+ in (push|main)){1,2}", str(place))


def test_a_librarys_line_is_no_ones_where_the_program_calls_it(tmp_path: Path) -> None:
    library, caller, program = tmp_path / "library.c", tmp_path / "caller.c", tmp_path / "program"
    library.write_text("void put(volatile int *at) {\n    *at = 1;\n}\n")
    caller.write_text("void put(volatile int *at);\nint main(void) {\n    int x;\n    put(&x);\n    return x;\n}\n")
    mapped = ["-O1", "-g", f"-fdebug-prefix-map={library}=/rustc/0/library.c"]
    subprocess.run(["gcc", *mapped, str(library), str(caller), "-o", str(program)], check=True)
    put, main = symbol(program, "put"), symbol(program, "main")
    whole, alone = located([Place(str(program), put, str(program), main), Place(str(program), put)])
    assert whole is not None and whole.at.file.endswith("caller.c") and whole.callers == ()
    assert alone is not None and alone.at.file == "/rustc/0/library.c"


def test_arguments_of_templates_are_left_out_where_a_line_is_too_long() -> None:
    long = (
        "src/ring.hh:120 in ring<std::map<std::string, long>, 64ul>::push<main::<lambda(int)> >(std::array<int, 4ul>)"
    )
    assert words.shortened(long) == "src/ring.hh:120 in ring<std::map<...>, 64ul>::push<main::<...> >(std::array<...>)"
    assert (
        words.shortened(f"{long} const volatile")
        == "src/ring.hh:120 in ring<...>::push<...>(std::array<...>) const volatile"
    )
    assert words.shortened("a.cc:1 in f<int>(long)") == "a.cc:1 in f<int>(long)"
    assert words.shortened(f"a.cc:1 in {'x' * 80}::operator<<<int>") == f"a.cc:1 in {'x' * 80}::operator<<<...>"


def test_without_debug_information_a_position_is_a_symbol(tmp_path: Path) -> None:
    program = compiled(tmp_path)
    (place,) = located([Place(str(program), symbol(program, "push"))])
    assert place is not None and str(place) == f"queue+0x{symbol(program, 'push'):x} in push"


def test_a_file_that_is_gone_is_an_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place,) = located([Place(str(tmp_path / "gone"), 16)])
    assert str(place) == "gone+0x10"
    monkeypatch.setenv("PATH", str(tmp_path))  # no addr2line
    assert str(located([Place("/bin/true", 16)])[0]) == "true+0x10"


# --- reports ---------------------------------------------------------------------------------------------------------

POSITIONS = {role: Position("queue.c", 10 + k, f"f_{role}", k) for k, role in enumerate(ROLES)}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ProgramReport]:
    """Reports of findings whose position k is line 9 + k of queue.c."""

    def locate(places: list[Place]) -> list[SourcePlace | None]:
        return [SourcePlace(POSITIONS[ROLES[place.offset - 1]]) for place in places]

    monkeypatch.setattr(reports, "located", locate)
    places = [Place("", 0), *(Place("q", k + 1) for k in range(len(ROLES)))]

    def make(*runs: list[ProgramFinding], **more: list[suppressions.Suppression]) -> ProgramReport:
        checked = [Checked(found, places, f"seed {k}", f"cxlemu exec --replay {k}") for k, found in enumerate(runs)]
        return reports.report(checked, ["/dev/dax0.0"], **more)

    return make


def test_a_mistake_of_many_runs_is_told_once_and_as_it_goes_wrong(told: Callable[..., ProgramReport]) -> None:
    report = told([finding("no-invalidate", manifest=False)], [finding("no-invalidate")], [finding("not-flushed")], [])
    assert [(its.kind.name, its.run, its.runs, its.times) for its in report.mistakes] == [
        ("no-invalidate", "seed 1", 2, 4),
        ("not-flushed", "seed 2", 1, 2),
    ]
    text = words.text(report)
    assert "host 1 reads byte 0x48 of /dev/dax0.0 (line 1) but did not invalidate it\n   after the wait\n" in text
    assert re.search(r"host 0 stores +queue\.c:10 in f_store\n", text)
    assert re.search(r"host 1 loads +queue\.c:15 in f_access\n", text)
    assert "missing: invalidate the line (cxl_invalidate) before the load" in text
    assert "again" not in text
    assert words.repeats(report) == "again (seed 1): cxlemu exec --replay 1\nagain (seed 2): cxlemu exec --replay 2\n"
    assert words.repeats(report, {"cxlemu exec --replay 2": "seed 2", "c": "seed 3"}).endswith("again (seed 3): c\n")


def test_a_run_counts_once_for_a_mistake_that_was_found_at_several_places_of_one_line(
    told: Callable[..., ProgramReport],
) -> None:
    one, other = (finding("two-writers", sites=(100 + k,) * len(ROLES)) for k in range(2))
    assert [(its.runs, its.times) for its in told([one, other], [one], []).mistakes] == [(2, 6)]


def test_what_a_program_states_of_itself_comes_after_the_causes(told: Callable[..., ProgramReport]) -> None:
    report = told([finding("assertion"), finding("not-flushed"), finding("invariant"), finding("no-invalidate")])
    kinds = [its.kind.name for its in report.mistakes]
    assert kinds == ["not-flushed", "no-invalidate", "assertion", "invariant"]


@with_rows(("not-flushed", "store", "access"), ("no-invalidate", "access", "store"))
def test_one_mistake_is_one_finding_with_all_its_stores_and_loads(
    kind: str, own: str, other: str, told: Callable[..., ProgramReport]
) -> None:
    """One instruction is missing where the side at fault is the same; or the other side, and what told of it."""

    def at(**roles: int) -> ProgramFinding:
        return finding(kind, sites=tuple(roles.get(role, k) for k, role in enumerate(ROLES, 1)))

    elsewhere = ROLES.index("drop") + 1
    for joins in (at(**{other: elsewhere, "told": elsewhere}), at(**{own: elsewhere})):
        (mistake,) = (report := told([at(), joins])).mistakes
        role = other if joins.site(own) == at().site(own) else own
        assert (mistake.times, mistake.runs) == (4, 1)
        assert [its.runs for its in told([at()], [joins]).mistakes] == [2]
        assert mistake.more == ((role, SourcePlace(POSITIONS["drop"])),)
        assert len(reports.as_json(report)["findings"][0]["steps"]) == len(list(mistake.steps())) + 1
        assert words.text(report).count("in f_drop\n") == 2
    assert len(told([at(), at(**{own: elsewhere, "published": elsewhere})]).mistakes) == 2
    assert len(told([at(), at(store=elsewhere, access=elsewhere)]).mistakes) == 2


def test_two_writers_that_have_a_store_in_common_are_one_mistake(told: Callable[..., ProgramReport]) -> None:
    store, access, *_, other = range(1, len(ROLES) + 1)

    def at(*pair: int) -> ProgramFinding:
        return finding("two-writers", sites=(pair[0], 0, 0, 0, 0, pair[1], 0, 0, 0))

    for pair in ((access, store), (store, other), (other, access), (other, store)):
        (mistake,) = (report := told([at(store, access), at(*pair)])).mistakes
        steps = reports.as_json(report)["findings"][0]["steps"]
        assert mistake.times == 4 and len({step["line"] for step in steps}) == len({store, access, *pair})
    assert len(told([at(store, access), at(other, other - 1)]).mistakes) == 2
    assert len(told([at(0, access), at(0, other)]).mistakes) == 2


def test_findings_of_one_run_have_one_command(told: Callable[..., ProgramReport]) -> None:
    report = told([finding("no-invalidate"), finding("not-flushed")])
    assert len(report.mistakes) == 2 and words.repeats(report) == "again: cxlemu exec --replay 0\n"


def test_a_fence_that_did_not_come_before_a_run_ended_came_too_late_in_others(
    told: Callable[..., ProgramReport],
) -> None:
    none, late = finding("not-fenced"), finding("fence-too-late")
    for runs in ([[none, late]], [[none], [late]], [[late], [none]]):
        (mistake,) = told(*runs).mistakes
        assert (mistake.kind.name, mistake.times) == ("fence-too-late", 4)


def test_a_report_without_mistakes_says_nothing(told: Callable[..., ProgramReport]) -> None:
    assert words.text(told([], [])) == "" and told([], []).runs == 2


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS.values()])
def test_every_kind_has_words_in_every_form(kind: str, told: Callable[..., ProgramReport]) -> None:
    report = told([finding(kind)])
    text = words.text(report)
    assert f"{'warning:' if report.warnings else '1.'} {kind}: " in text and "{" not in text
    assert (kind == "invalidate-overtakes") == bool(report.warnings) != bool(report.mistakes)
    assert max(map(len, text.splitlines())) <= 80
    json.dumps(reports.as_json(report))
    for result in reports.as_sarif(report)["runs"][0]["results"]:
        assert result["message"]["text"] and result["locations"]


def test_what_hangs_and_what_an_sfence_does_not_do_is_said(told: Callable[..., ProgramReport]) -> None:
    text = words.text(told([finding("not-fenced", stuck=True), finding("invalidate-unfenced", sfence=True)]))
    assert "waits for ever" in text and "mfence in place of sfence" in text
    for kind, missing in (("not-flushed", "and fence (cxl_fence)"), ("no-invalidate", "before the load, each time")):
        text = words.text(told([finding(kind, stuck=True, so_far=True)]))
        assert f"warning: {kind}: " in text and "may wait for ever" in text and text.count(f"{missing}\n") == 1


def test_sarif_is_as_its_schema_wants(told: Callable[..., ProgramReport]) -> None:
    why = suppressions.Suppression("not-flushed", "queue.c:10", "a test", 3)
    report = told([finding("no-invalidate"), finding("not-flushed")], suppressions=[why])
    sarif = json.loads(json.dumps(reports.as_sarif(report)))
    assert sarif["version"] == "2.1.0" and sarif["$schema"].endswith("sarif-2.1.0.json")
    (run,) = sarif["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert len({rule["id"] for rule in rules}) == len(KINDS)
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        at = result["locations"][0]["physicalLocation"]
        missing_at = {"no-invalidate": "access", "not-flushed": "store"}[result["ruleId"]]
        assert at["artifactLocation"]["uri"] == "queue.c"
        assert at["region"]["startLine"] == 10 + ROLES.index(missing_at)
        related = {its["physicalLocation"]["region"]["startLine"] for its in result["relatedLocations"]}
        assert related >= {10 + ROLES.index(role) for role in ("store", "access")}
        flow = result["codeFlows"][0]["threadFlows"][0]["locations"]
        assert flow[0]["location"]["message"]["text"] == "host 0 stores"
    assert "suppressions" not in run["results"][0]
    assert run["results"][1]["suppressions"] == [{"kind": "external", "justification": "a test"}]


def test_the_page_needs_nothing_else(told: Callable[..., ProgramReport]) -> None:
    html = page(told([finding("no-invalidate"), finding("flush-outside", pool=255, offset=0x7FFF0000)]), "queue & co")
    assert "<title>queue &amp; co</title>" in html and "2 findings" in html
    assert html.count("<svg") == 2 and "address 0x7fff0000" in html
    assert "src=" not in html and 'href="http' not in html


# --- suppressions ----------------------------------------------------------------------------------------------------


def test_suppressions_match_files_lines_and_functions(tmp_path: Path) -> None:
    file = tmp_path / "list"
    file.write_text("# comment\n\nno-invalidate ring.c:12  # optimistic\n* pop*   # all of them\nmsync lib/a.c # old\n")
    line, function, path = suppressions.read(file)
    at = [SourcePlace(Position("src/ring.c", 12, "push", 0), (Position("main.c", 3, "popped", 0),))]
    assert line.matches("no-invalidate", at) and not line.matches("not-flushed", at) and line.reason == "optimistic"
    assert function.matches("not-flushed", at)
    assert not function.matches("msync", [SourcePlace(Position("a.c", 1, "push", 0))])
    assert path.matches("msync", [SourcePlace(Position("/home/x/lib/a.c", 1, "f", 0))])
    assert not path.matches("msync", [SourcePlace(Position("/home/x/notlib/a.c", 1, "f", 0))])
    assert not line.matches("no-invalidate", [SourcePlace(Position("src/ring.c", 120, "push", 0))])


def test_suppressed_findings_do_not_count_and_unused_ones_are_said(told: Callable[..., ProgramReport]) -> None:
    some = [suppressions.Suppression("*", "queue.c", "known", 1), suppressions.Suppression("msync", "*", "none", 2)]
    report = told([finding("no-invalidate")], suppressions=some)
    assert report.mistakes == [] and report.suppressed[0].reason == "known" and report.unused == [some[1]]
    assert "suppressed: no-invalidate at queue.c:15 in f_access: known" in words.text(report)
    assert words.unused(report) == "note: 1 suppression matched nothing: line 2 (msync *)\n"
    both = [suppressions.Suppression("*", "*", "known", 1), *some[:1]]
    assert words.unused(told([finding("no-invalidate")], suppressions=both)) == ""  # though the first one hides it


def test_suppressed_findings_of_one_place_are_one_line(told: Callable[..., ProgramReport]) -> None:
    sites = tuple(range(1, len(ROLES) + 1))
    two = [finding("no-invalidate"), finding("no-invalidate", sites=(2, *sites[1:]))]
    report = told(two, suppressions=[suppressions.Suppression("*", "queue.c", "known", 1)])
    assert words.text(report) == "suppressed: no-invalidate at queue.c:15 in f_access: known (2 findings)\n"


@with_rows(
    ("no-invalidate ring.c:12", "list:1: the reason is missing"),
    ("no-invalidate ring.c:12 #  ", "list:1: the reason is missing"),
    ("\nno-invalid ring.c:12 # x", "list:2: there is no kind 'no-invalid'"),
    ("ring.c # x", "list:1: write a kind, a place and a reason"),
    ("a b c # x", "list:1: write a kind"),
    ("\xff", "not UTF-8"),
)
def test_a_suppression_without_a_reason_is_bad_input(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "list"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=re.escape(says)):
        suppressions.read(file)
    with pytest.raises(ConfigError, match="No such file"):
        suppressions.read(tmp_path / "none")
