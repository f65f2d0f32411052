"""Campaigns over mistakes that were put there: found, counted, made small, told, and reproduced from a token."""

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from cxlemu.errors import ArgumentError, NothingJudgedError
from faults.campaign.case import CampaignCase
from faults.campaign.executors import Workers
from faults.campaign.explain import story
from faults.campaign.judge import Judgement, executed, judge
from faults.campaign.report import as_json, as_junit
from faults.campaign.run import CampaignResult, CampaignRunner, TimedJudgement, judged
from faults.campaign.shrink import shrink
from faults.campaign.spec import Spec
from faults.cli.campaign_report import Screen
from faults.inject import Fault, Script, When
from faults.token import Token, parse
from tests.helpers.commands import cxlemu, with_json
from tests.helpers.own_algorithms import TO_ONE_RANK
from tests.helpers.tables import with_rows
from tests.helpers.tiers import PATIENT_S

ROOT = Path(__file__).parents[2]
SPEC = Spec(
    collectives=("all_gather",),
    variants=("naive",),
    ranks=(3,),
    sizes=(900,),
    launches=("lockstep",),
    mutant="1.0.7:delete",
)
BROKEN = CampaignCase(  # rank 1 does not invalidate what it reads from rank 0
    collective="all_gather", variant="naive", ranks=3, nbytes=300, calls=5, mutant="1.0.7:delete"
)


def threads() -> Executor:
    return ThreadPoolExecutor(2)


# --- finding and shrinking -----------------------------------------------------------------------------------


def test_a_mistake_is_found_once_and_made_as_small_as_it_can_be() -> None:
    result = CampaignRunner(SPEC.sweep(6), threads, 2, budget_s=PATIENT_S).run()
    assert result.complete and result.exit_code == 1
    (finding,) = result.findings
    assert finding.judgement.key == ("wrong bytes", "1.0.7:delete", "all_gather naive")
    assert finding.count == result.counts["wrong bytes"] == 6
    assert finding.shrunk and finding.first.ranks == 3
    case = finding.smallest
    # a slot comes again in the third call, and a byte is enough: nature need not do anything
    assert (case.ranks, case.nbytes, case.calls, case.moves) == (2, 1, 3, [])
    assert judge(case).key == finding.judgement.key
    assert not judge(case.model_copy(update={"calls": 2})).fails


def test_what_is_right_is_no_finding() -> None:
    result = CampaignRunner(SPEC.model_copy(update={"mutant": None}).sweep(4), threads, 2, budget_s=PATIENT_S).run()
    assert (result.exit_code, result.findings, result.counts) == (0, [], {"right": 4})


def test_a_seed_decides_all_and_a_schedule_replaces_it() -> None:
    assert judge(BROKEN) == judge(BROKEN)
    moves = executed(BROKEN).moves
    assert executed(BROKEN).moves == moves
    other = BROKEN.script.model_copy(update={"seed": 1})
    assert executed(BROKEN.model_copy(update={"script": other})).moves != moves


def test_a_schedule_is_cut_to_the_moves_that_matter() -> None:
    """Without the fence everything goes well, unless a reader comes at the right moment."""
    case = CampaignCase(collective="broadcast", variant="naive", ranks=2, nbytes=64, calls=1, mutant="0.0.4:delete")
    seeds = (case.model_copy(update={"script": case.script.model_copy(update={"seed": seed})}) for seed in range(50))
    failing, found = next((seeded, its) for seeded in seeds if (its := judge(seeded)).fails)
    shrunk = shrink(failing, found)
    assert shrunk.done and shrunk.case.moves is not None
    assert len(shrunk.case.moves) < len(executed(failing).moves)
    for at in range(len(shrunk.case.moves)):
        fewer = [*shrunk.case.moves[:at], *shrunk.case.moves[at + 1 :]]
        assert judge(shrunk.case.model_copy(update={"moves": fewer})).key != found.key


def test_a_budget_that_ends_first_is_neither_success_nor_failure() -> None:
    result = CampaignRunner(SPEC.model_copy(update={"mutant": None}).sweep(1000), threads, 2, budget_s=0).run()
    assert not result.complete
    assert result.exit_code == 3


TURNS = Spec(
    collectives=("all_gather", "broadcast"),
    variants=("naive",),
    ranks=(3,),
    sizes=(64,),
    launches=("turns",),
    kinds=("nature", "crash", "poison", "stall", "skip_doorbell"),
)


def test_faults_happen_to_real_communicators_and_are_survived_or_noticed() -> None:
    result = CampaignRunner(TURNS.sweep(2), threads, 2, budget_s=PATIENT_S).run()
    assert result.complete and result.findings == []
    assert result.counts.keys() >= {"survived", "detected"}
    assert result.counts["survived"] >= 2 * 2 * 2  # nature and stalls owe right results


@pytest.mark.parametrize("kind", ["crash", "flip_payload", "late_doorbell"])
def test_a_fault_comes_at_the_same_place_with_the_same_end_again(kind: str) -> None:
    cases = list(TURNS.model_copy(update={"kinds": (kind,)}).sweep(3))
    assert [judge(case) for case in cases] == [judge(CampaignCase.parse(case.plain()).check()) for case in cases]


def test_checksums_find_what_nothing_else_can() -> None:
    flips = TURNS.model_copy(update={"kinds": ("flip_payload",)})
    bare = CampaignRunner(flips.sweep(3), threads, 2, budget_s=PATIENT_S).run()
    checked = CampaignRunner(
        flips.model_copy(update={"integrity": "crc32c"}).sweep(3), threads, 2, budget_s=PATIENT_S
    ).run()
    assert bare.counts["unprotected"] and not bare.findings
    assert checked.counts["detected"] and not checked.counts["unprotected"] and not checked.findings


def test_faults_that_have_nothing_to_do_with_it_are_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A world that goes wrong whenever its second rank crashes, in a script of four faults."""
    faults = [
        {"kind": kind, "rank": rank, "when": {"call": call, "instruction": 2}}
        for kind, rank, call in (("land", 0, 0), ("crash", 1, 1), ("evict", 2, 0), ("tear", 0, 1))
    ]
    body = {"collective": "all_gather", "variant": "naive", "ranks": 3, "nbytes": 64, "launch": "turns"}
    case = CampaignCase.parse(body | {"script": {"seed": 9, "adversary": {"evict": 0.5}, "faults": faults}}).check()

    def crashed(case: CampaignCase) -> Judgement:
        kinds = [(fault.kind, fault.rank) for fault in case.script.faults]
        return (
            Judgement("silently wrong", "+".join(k for k, _ in kinds), "x")
            if ("crash", 1) in kinds
            else Judgement("right")
        )

    monkeypatch.setattr("faults.campaign.shrink.judge", crashed)
    shrunk = shrink(case, crashed(case))
    (fault,) = shrunk.case.script.faults
    assert (fault.kind, fault.rank, fault.when.call, fault.when.instruction) == ("crash", 1, 0, 0)
    assert (shrunk.case.ranks, shrunk.case.nbytes, shrunk.case.script.seed) == (2, 1, 0)
    assert shrunk.case.script.adversary is None
    assert shrunk.judgement.rule == "crash"


# --- workers that die ----------------------------------------------------------------------------------------


def dies_on_seed_3(case: CampaignCase) -> TimedJudgement:
    if case.script.seed == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return judged(case)


def has_no_memory_on_seed_3(case: CampaignCase) -> TimedJudgement:
    if case.script.seed == 3:
        raise MemoryError
    return judged(case)


@pytest.mark.deep
@pytest.mark.parametrize("lose", [dies_on_seed_3, has_no_memory_on_seed_3])
def test_a_worker_that_dies_is_no_verdict_and_costs_no_other_case(lose: Callable[..., TimedJudgement]) -> None:
    sweep = SPEC.model_copy(update={"mutant": None}).sweep(8)
    result = CampaignRunner(sweep, lambda: Workers(2), 2, budget_s=PATIENT_S, judge=lose).run()
    assert result.counts == {"right": 7} and not result.findings
    assert (result.exit_code, result.state, len(result.lost)) == (3, "1 lost with a worker", 1)
    assert "seed 3" in result.lost[0]
    assert as_json(result, {})["lost"] == result.lost
    assert b"1 of 8 cases not judged: 1 lost with a worker" in as_junit(result)


def test_what_is_not_known_of_a_lost_case_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with Screen(1, 1, "processes") as screen:
        screen.print(CampaignResult(1, lost=["all_gather seed 3"]))
    assert "nothing is known of [all_gather seed 3]: its worker was killed" in " ".join(capsys.readouterr().out.split())


# --- the command ---------------------------------------------------------------------------------------------

FLAGS = ("faults", "campaign", "all_gather", "-n", 3, "-b", 900, "--variant", "naive", "-j", 1, "--launch", "lockstep")
MUTANT = ("--mutant", "1.0.7:delete")


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of one campaign that finds something."""
    path = tmp_path_factory.mktemp("reports")
    files = ("--json", path / "r.json", "--junit", path / "r.xml", "--html", path / "r.html")
    result = cxlemu(*FLAGS, *MUTANT, "--seeds", 3, *files, code=1)
    (path / "printed").write_text(result.output)
    return path


def token_of(reports: Path) -> str:
    word: str = json.loads((reports / "r.json").read_text())["findings"][0]["token"]
    return word


def test_the_json_and_the_screen_say_the_same(reports: Path) -> None:
    document = json.loads((reports / "r.json").read_text())
    assert document["complete"] and document["cases"] == document["judged"] == 3
    assert document["counts"] == {"wrong bytes": 3}
    (finding,) = document["findings"]
    printed = (reports / "printed").read_text()
    assert f"cxlemu replay {finding['token']}" in printed
    assert finding["detail"] in printed
    assert "3 of 3 cases judged (complete): 3 wrong bytes; 1 finding," in printed


def test_a_token_fails_again_exactly_as_recorded(reports: Path) -> None:
    assert "fails again, exactly as recorded: wrong bytes" in cxlemu("replay", token_of(reports), code=1).output


@pytest.mark.deep
def test_a_token_fails_again_in_another_process_and_folder(reports: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(token_of(reports))
    command = [sys.executable, "-m", "cxlemu", "replay", "@token"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENT_S)
    assert done.returncode == 1, done.stderr
    assert "fails again, exactly as recorded" in done.stdout


def test_a_token_of_what_was_mended_does_not_fail(reports: Path) -> None:
    token = parse(token_of(reports))
    case = {name: value for name, value in token.body["case"].items() if name != "mutant"}
    mended = Token(token.kind, token.body | {"case": case}, token.versions | {"cxlemu": "0.0.1"})
    result = cxlemu("replay", str(mended), code=0)
    assert "no longer fails" in result.output
    assert "cxlemu was 0.0.1, here it is" in result.output


@with_rows(
    ("cxl1.x", "cut off or damaged"),
    (str(Token("nonsense", {})), "unknown kind of token 'nonsense'"),
    (str(Token("case", {})), "does not hold just a case and its findings"),
    (str(Token("case", {"case": {}, "found": {}})), "no case"),
    ("@nowhere", "No such file or directory"),
)
def test_what_cannot_be_replayed_is_one_sentence(word: str, sentence: str) -> None:
    result = cxlemu("replay", word, code=2)
    assert sentence in result.output
    assert result.output.count("\n") == 1


def test_a_token_never_names_the_code_that_is_executed(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(TO_ONE_RANK)
    own = ("--algorithm", f"{file}:mine")
    document = with_json("faults", "campaign", *own, "-n", 3, "--seeds", 1, "-j", 1, code=1)[1]  # rank 2 gets nothing
    word = document["findings"][0]["token"]
    file.write_text(TO_ONE_RANK + f"\nPath({str(tmp_path / 'executed')!r}).touch()\n")
    assert "name the file to execute" in cxlemu("replay", word, code=2).output
    assert not (tmp_path / "executed").exists()
    assert "is not the file that failed: its contents differ" in cxlemu("replay", word, *own, code=1).output
    assert (tmp_path / "executed").exists()
    file.write_text(TO_ONE_RANK.replace("elif b.rank == (b.root + 1) % b.ranks", "else"))
    mended = cxlemu("replay", word, *own)
    assert mended.exit_code == 3
    assert f"not reproduced: {file}:mine is not the file that failed" in mended.output


def test_a_campaign_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    """Ctrl-C keeps what was found: in the report, and in the journal for the next run."""
    journal, out = tmp_path / "j.jsonl", tmp_path / "r.json"
    flags = [*map(str, FLAGS), *MUTANT, "--seeds", "400", "--resume", str(journal)]
    command = [sys.executable, "-m", "cxlemu", *flags, "--json", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_for(lambda: journal.exists() and journal.read_bytes().count(b"\n") > 5)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=PATIENT_S)
    assert process.returncode == 1, printed  # something was found
    document = json.loads(out.read_text())
    assert document["interrupted"] and not document["complete"]
    kept = journal.read_bytes().count(b"\n") - 1
    assert 5 <= kept == document["judged"] < 400
    assert document["findings"][0]["token"] in printed

    cxlemu(*flags, "--budget", "0s", "--json", out, code=1)
    document = json.loads(out.read_text())
    assert document["resumed"] == document["judged"] == kept
    assert document["counts"] == {"wrong bytes": kept}


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@with_rows(
    (("--budget", "soon"), "is not a time"),
    (("-n", "two"), "invalid rank count 'two': must be 2 to 64"),
    (("-n", "1000"), "ranks"),
    (("--kinds", "crush"), "unknown fault 'crush'"),
    (("-c", "nowhere.yaml"), "neither a file nor a shipped topology"),
    (("--json", "/nowhere/r.json"), "--json /nowhere/r.json cannot be written"),
    (("--html", "/nowhere/r.html"), "--html /nowhere/r.html cannot be written"),
    (("--scheduler", "tcp://localhost:1"), "--scheduler requires --executor dask"),
)
def test_bad_input_is_one_sentence(flags: tuple[str, ...], sentence: str) -> None:
    assert sentence in cxlemu("faults", "campaign", "barrier", *flags, code=2).output


# --- reports -------------------------------------------------------------------------------------------------


def test_the_junit_file_is_what_ci_systems_read(reports: Path) -> None:
    """The elements, attributes and sums of the format that Jenkins and GitLab document."""
    root = ET.parse(reports / "r.xml").getroot()
    assert root.tag == "testsuites"
    (suite,) = root
    assert suite.tag == "testsuite" and suite.attrib["name"] == "all_gather"
    for element in (root, suite):
        counts = {name: int(element.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
        assert counts == {"tests": 3, "failures": 3, "errors": 0, "skipped": 0}
        assert float(element.attrib["time"]) >= 0
    assert len({case.attrib["name"] for case in suite}) == 3
    for case in suite:
        assert case.tag == "testcase" and case.attrib.keys() == {"classname", "name", "time"}
        (failure,) = case
        assert failure.tag == "failure" and failure.attrib.keys() == {"type", "message"}
        assert f"cxlemu replay {token_of(reports)}" in (failure.text or "")


def test_junit_says_what_was_not_judged(tmp_path: Path) -> None:
    flags = ("--budget", "0s", "--seeds", 10, "--junit", tmp_path / "r.xml")
    assert cxlemu(*FLAGS, *flags).exit_code == 3
    root = ET.parse(tmp_path / "r.xml").getroot()
    assert (root.attrib["tests"], root.attrib["skipped"]) == ("1", "1")
    skipped = root.find("./testsuite/testcase/skipped")
    assert skipped is not None and "10 of 10 cases" in skipped.attrib["message"]


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "action", "data")]


def test_the_page_needs_nothing_but_itself(reports: Path) -> None:
    text = (reports / "r.html").read_text()
    page = Page()
    page.feed(text)
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert all(link.startswith("#") for link in page.links)
    assert set(re.findall(r"https?://[^\"' ]+", text)) == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert "@import" not in text
    assert "url(" not in text.replace("url(#", "")
    assert page.tags.count("svg") == 1
    assert token_of(reports) in text


def test_the_picture_tells_the_story(reports: Path, tmp_path: Path) -> None:
    file = tmp_path / "p.svg"
    assert cxlemu("replay", token_of(reports), "--svg", file).exit_code == 1
    root = ET.parse(file).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "reads v1, should be v2" in texts
    assert {"host 0 · rank 0", "host 1 · rank 1", "pool"} <= set(texts)
    red = [rect for rect in root.iter("{http://www.w3.org/2000/svg}rect") if rect.get("class") == "wrong"]
    assert len(red) == 1


# --- stories -------------------------------------------------------------------------------------------------


def told(case: CampaignCase) -> list[str]:
    """The events of a case's story, from the last store to the line on."""
    execution = executed(case)
    found = story(execution)
    return [f"{event.host} {event.text.split()[0]} {event.wrong}".strip() for event in found.events]


def test_the_story_of_a_missing_flush() -> None:
    """The writer's line stays dirty in its cache, and its reader fetches what was there before."""
    case = CampaignCase(
        collective="broadcast", variant="naive", ranks=2, nbytes=64, calls=1, mutant="0.0.3:delete", moves=[]
    )
    assert told(case) == [
        "0 WAIT_ALL", "0 WRITE", "0 FENCE", "0 SIGNAL", "1 WAIT", "1 INVALIDATE", "1 READ reads v0, should be v1",
    ]  # fmt: skip
    found = story(executed(case))
    last = found.events[-1]
    assert [(held.cached, held.dirty) for held in last.caches] == [(1, True), (0, False)]
    assert last.pool == 0


def test_the_story_of_a_missing_wait() -> None:
    """Nothing is stale: the reader comes before the writer."""
    case = CampaignCase(collective="broadcast", variant="naive", ranks=2, nbytes=64, calls=1, mutant="1.0.0:delete")
    case = case.model_copy(update={"moves": [["step", 1, 0], ["step", 1, 0]]})
    assert told(case)[-1] == "1 READ reads v0 too early: the right version is not written yet"


def test_the_story_of_a_missing_signal() -> None:
    """Its owner went past it; who waits for it is shown last, in red."""
    case = CampaignCase(
        collective="broadcast", variant="naive", ranks=3, nbytes=64, calls=2, mutant="0.0.5:delete", moves=[]
    )
    assert judge(case).kind == "deadlock"
    assert told(case) == [
        "0 COPY", "0 WAIT_ALL", "0 WRITE", "0 FLUSH", "0 FENCE", "0 SIGNAL", "2 WAIT",
        "1 WAIT waits for epoch 1, for ever",
    ]  # fmt: skip
    found = story(executed(case))
    assert found is not None and found.line.endswith(", published[0][0]") and found.events[-1].pool == 0


def test_the_story_of_a_slot_that_is_never_free_again() -> None:
    """Rank 1 never says that it is done: rank 0 waits for that when the ring of two slots comes round."""
    case = CampaignCase(
        collective="broadcast", variant="naive", ranks=2, nbytes=64, calls=3, mutant="1.0.3:delete", moves=[]
    )
    assert judge(case).kind == "deadlock"
    assert told(case)[-2:] == ["1 WAIT", "0 WAIT_ALL waits for epoch 1, for ever"]


def test_what_goes_right_has_no_story() -> None:
    case = BROKEN.model_copy(update={"mutant": None})
    assert judge(case) == Judgement("right")
    assert story(executed(case)) is None


# --- Dask, where it is installed -----------------------------------------------------------------------------


@pytest.mark.deep
def test_a_dask_cluster_judges_as_processes_do() -> None:
    document = with_json(*FLAGS, *MUTANT, "--seeds", 2, "--executor", "dask", code=1)[1]
    (finding,) = document["findings"]
    assert (finding["kind"], finding["count"]) == ("wrong bytes", 2)
    assert finding["case"]["nbytes"] == 1
    assert not multiprocessing.active_children()  # the cluster ends with the campaign


def test_a_token_whose_fault_never_happens_reproduces_nothing() -> None:
    late = Fault(kind="crash", rank=1, when=When(call=0, instruction=999))
    case = CampaignCase(
        collective="broadcast", variant="naive", ranks=2, nbytes=64, launch="turns", script=Script(faults=(late,))
    )
    token = Token("case", {"case": case.plain(), "found": Judgement("hung", "crash", "broadcast naive", "why").plain()})
    assert "not reproduced: fault 1 never happened: rank 1 has" in cxlemu("replay", str(token), code=3).output


def test_cases_whose_faults_never_happen_are_counted_by_themselves(tmp_path: Path) -> None:
    late = tmp_path / "late.yaml"
    late.write_text("faults:\n  - {kind: crash, rank: 1, when: {instruction: 999}}")
    spec = {"collectives": ("broadcast",), "variants": ("naive",), "ranks": (2,), "launches": ("turns",)}
    sweep = Spec.model_validate(spec | {"kinds": ("crash",), "scripts": (str(late),)}).sweep(2)
    result = CampaignRunner(sweep, threads, 1, budget_s=PATIENT_S).run()
    assert result.counts["never happened"] == 2 and result.with_faults == 4
    assert result.complete and not result.untried and result.exit_code == 0
    suites = ET.fromstring(as_junit(result))
    assert suites.attrib["skipped"] == "2" and len(suites.findall(".//skipped")) == 2
    only = Spec.model_validate(spec | {"kinds": ("nature",), "scripts": (str(late),)}).sweep(2)
    result = CampaignRunner(only, threads, 1, budget_s=PATIENT_S).run()
    assert result.untried and result.exit_code == 3
    with pytest.raises(ArgumentError, match="no cases: write kinds or scripts"):
        Spec.model_validate(spec | {"kinds": ()}).sweep(2)


def test_a_campaign_in_which_nature_moves_nothing_has_tried_nothing() -> None:
    never = Judgement("never happened", "nature", "all_gather naive", "the adversary moved no line")
    result = CampaignResult(2, counts=Counter({never.kind: 2}), judged=[("1", "", never, 0.0), ("2", "", never, 0.0)])
    assert result.untried and result.exit_code == 3
    result.judged[1] = ("2", "", Judgement("right"), 0.0)
    result.counts = Counter({never.kind: 1, "right": 1})
    assert not result.untried and result.exit_code == 0


# --- what an algorithm declines ---------------------------------------------------------------------------------

POWERS_OF_TWO = f"{ROOT}/tests/helpers/wrong_algorithms.py:powers_of_two"


def test_calls_that_an_algorithm_declines_are_skipped_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    sweep = Spec(algorithms=(POWERS_OF_TWO,), ranks=(2, 3, 4, 5), kinds=("nature",)).sweep(2)
    assert sorted({case.ranks for case in sweep}) == [2, 4]
    result = CampaignRunner(sweep, threads, 2, budget_s=PATIENT_S).run()
    assert (result.exit_code, result.counts) == (3, {"right": len(sweep)})  # 3 and 5 ranks were named
    assert result.left_out.nowhere == "nothing was judged with n = 3, 5"
    three, five = as_json(result, {})["declined"]
    assert re.fullmatch("all_gather powers_of_two .*, 3 ranks: needs a power of two ranks, not 3", three)
    assert re.fullmatch("all_gather powers_of_two .*, 5 ranks: needs a power of two ranks, not 5", five)
    with Screen(len(sweep), 2, "processes") as screen:
        screen.print(result)
    assert "declined: 2 calls: all_gather powers_of_two" in capsys.readouterr().out


def test_a_campaign_of_which_all_is_declined_has_judged_nothing() -> None:
    with pytest.raises(NothingJudgedError, match=r"nothing was judged: declined: .*, 3 ranks: needs") as raised:
        Spec(algorithms=(POWERS_OF_TWO,), ranks=(3,), kinds=("nature",)).sweep(1)
    assert raised.value.exit_code == 3
