"""One vocabulary: every option of every command that says a concept says it as cxlemu.cli.vocabulary does."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from collectives.cli.fused import virtual
from cxlemu.cli import INTERRUPTED, main
from cxlemu.cli.commands import as_verb, commands, load
from cxlemu.cli.output import write_json
from cxlemu.cli.several import for_each_ranks
from cxlemu.cli.vocabulary import VOCABULARY, ConceptOption, RanksParam, SecondsParam, option
from cxlemu.errors import ArgumentError, CxlemuError
from tests.helpers.commands import cxlemu
from tests.helpers.tables import with_rows

# Verbs that print no result: they compile, or hold something until Ctrl-C.
NO_RESULT = {"cc", "c++", "pool capacity hold"}
WORD_OF = {flag: name for name, word in VOCABULARY.items() for flag in word.flags}

# What was written once, or could be, and how it is written.
REPLACED = {
    "--bytes": "-b/--minbytes",
    "--size": "-b/--minbytes",
    "--budget-s": "--budget",
    "--fault": "--kinds",
    "--script": "--faults",
    "--kind": "--kinds",
}


def verbs() -> Iterator[tuple[str, click.Command]]:
    yield from below("", main)
    for verb in commands("cxlemu.simulate"):
        form = load("cxlemu.simulate", verb)
        assert form is not None
        yield f"simulate {verb}", form
    yield "fused --engine virtual", as_verb(virtual)


def below(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield name, command
        return
    ctx = click.Context(command, info_name=name)
    for verb in command.list_commands(ctx):
        found = command.get_command(ctx, verb)
        assert found is not None
        yield from below(f"{name} {verb}".strip(), found)


VERBS = dict(verbs())


def wrong(command: click.Command) -> list[str]:
    """What of a command's options does not hold to the vocabulary."""
    found = []
    for its in command.params:
        if not isinstance(its, click.Option):
            continue
        flags = {*its.opts, *its.secondary_opts}
        words = {WORD_OF[flag] for flag in flags if flag in WORD_OF}
        found += [f"{flag} is written {REPLACED[flag]}" for flag in flags & set(REPLACED)]
        if not words:
            continue
        if not isinstance(its, ConceptOption) or words != {its.word}:
            found.append(f"{'/'.join(its.opts)} is not made by option({'/'.join(sorted(words))!r})")
            continue
        word = VOCABULARY[its.word]
        if tuple(its.opts) != word.flags or its.is_flag != word.settled.get("is_flag", False):
            found.append(f"{'/'.join(its.opts)}: as {'/'.join(word.flags)} everywhere")
        if word.types and not isinstance(its.type, word.types):
            found.append(f"{'/'.join(its.opts)} takes {its.type}")
        if "callback" in word.settled and its.callback is not word.settled["callback"]:
            found.append(f"{'/'.join(its.opts)} is not treated as everywhere")
    return found


@pytest.mark.parametrize("verb", VERBS)
def test_every_command_holds_to_the_vocabulary(verb: str) -> None:
    command = VERBS[verb]
    assert wrong(command) == []
    assert verb in NO_RESULT or any("--json" in its.opts for its in command.params), "prints a result without --json"


def test_the_walk_finds_the_commands() -> None:
    assert {"run", "simulate memory", "reproduce cccl", "pool capacity add", "faults sweep", *NO_RESULT} <= set(VERBS)
    assert len(VERBS) > 40


@pytest.mark.parametrize(
    "told",
    [
        click.option("--json", is_flag=True),
        click.option("-b", "--bytes", type=int),
        click.option("--budget-s", type=float),
        click.option("-d", "--dtype"),
        click.option("-n", "--nproc", type=int),
        click.option("--fault"),
        option("budget", type=float),
        option("ranks", type=click.IntRange(1)),
        option("ranks", type=str),
        option("json", callback=None),
    ],
)
def test_a_verb_that_differs_is_found(told: object) -> None:
    @click.command()
    def command(**given: object) -> None: ...

    assert wrong(told(command))  # type: ignore[operator]


def test_one_that_does_not_differ_is_left_alone() -> None:
    @click.command()
    @option("json")
    @option("budget", default="60s")
    @option("ranks", type=RanksParam(1, 8))
    def command(**given: object) -> None: ...

    assert wrong(command) == []


@with_rows(("60", 60.0), ("60s", 60.0), ("1.5m", 90.0), ("2h", 7200.0), ("0.2s", 0.2))
def test_times(text: str, seconds: float) -> None:
    assert SecondsParam().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["soon", "5d", "-1s", "0s", "", "1e3s", "99999999"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="write 60s, 10m or 2h"):
        SecondsParam().convert(text, None, None)


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_an_option_that_takes_one_value_and_is_given_twice_is_noted(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script may bring options that its caller overrides, as other commands allow."""
    command = VERBS[verb] if verb else main
    for its in command.params:
        if isinstance(its, click.Option) and not its.multiple and (not its.is_flag or its.secondary_opts):
            value = [] if its.is_flag else ["x"] * its.nargs
            twice = [its.opts[0], *value, [*its.opts, *its.secondary_opts][-1], *value]
            with suppress(click.ClickException, CxlemuError):
                command.make_context(verb, twice)
            note = f"note: {max(its.opts, key=len)} is given twice; the last one counts\n"
            assert capsys.readouterr().err.startswith(note)


@pytest.mark.parametrize("verb", VERBS)
def test_an_empty_word_is_no_file(verb: str) -> None:
    """It would be the current folder: all its litmus tests, or a file that cannot be written."""
    command = VERBS[verb]
    for its in command.params:
        if isinstance(its.type, click.Path):
            words, flag = ([its.opts[0], ""], max(its.opts, key=len)) if isinstance(its, click.Option) else ([""], "an")
            with pytest.raises(ArgumentError, match=f"^{flag}.* '' names no file$"):
                command.make_context(verb, words)


def test_the_environment_and_the_defaults_are_no_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPTION_X", "1")

    @click.command()
    @click.option("--x", envvar="OPTION_X")
    def command(x: str) -> None:
        click.echo(x)

    as_verb(command)
    given = {(): "1", ("--x", "2"): "2"}
    assert {words: CliRunner().invoke(command, words, default_map={"x": "3"}).output for words in given} == {
        words: f"{value}\n" for words, value in given.items()
    }


LITMUS = Path(__file__).parent / "faults/litmus"
TWICE = {
    "run barrier barrier": "barrier is named twice",
    "run all_reduce -d f32,f32": "-d f32 is given twice",
    "topology check laptop laptop": "laptop is named twice",
    f"litmus {LITMUS}/MP.yaml {LITMUS}/MP.yaml": "is named twice",
    f"litmus {LITMUS} {LITMUS}/MP.yaml": "is named twice",
    "prove all_reduce --variant line,line": "--variant line is given twice",
    "mutate all_reduce --variant line,line": "--variant line is given twice",
    "faults sweep barrier --kinds crash,crash": "--kinds crash is given twice",
    "faults campaign barrier barrier": "barrier is named twice",
    "faults campaign --kinds crash,crash": "--kinds crash is given twice",
    "faults campaign -b 64 -b 64": "-b 64 is given twice",
    "simulate training --parallel tp=2,tp=4": "--parallel tp=2,tp=4: tp is named twice",
    "bench -n 2 --peers openmpi,openmpi": "--peers openmpi is given twice",
    "bench --peers none --peer-python openmpi=/a --peer-python openmpi=/b": "--peer-python: openmpi is named twice",
}


@pytest.mark.parametrize("words", TWICE)
def test_what_a_list_names_twice_is_refused(words: str) -> None:
    result = cxlemu(*words.split())
    assert (result.exit_code, TWICE[words] in result.output) == (2, True), result.output


# One cheap call of each kind of verb; the others have tests of their own.
JSON_ALONE = [
    "plan list",
    "plan show barrier -n 2",
    "plan save barrier -n 2 -O PATH",
    "topology list",
    "topology show laptop",
    "topology check laptop six-cards",
    "topology cost titan2-6xcz120",
    "pool list",
    "doctor",
    "run barrier -n 2 -c laptop --launch threads",
    "simulate broadcast -n 2 -b 64",
    "prove barrier -n 2",
    "explore barrier -n 2",
    "mutate barrier -n 2 -j 1",
    "faults sweep barrier -n 2 --kinds crash -j 1 --sample 2",
]


@pytest.mark.parametrize("words", JSON_ALONE)
def test_with_a_dash_stdout_has_json_and_nothing_else(words: str, tmp_path: Path) -> None:
    asked = [word.replace("PATH", str(tmp_path / "x.plan")) for word in words.split()]
    result = cxlemu(*asked, "--json", "-")
    assert result.exit_code in (0, 1), result.output
    assert isinstance(json.loads(result.stdout), list | dict)


def test_a_file_has_the_same_and_text_stays_on_stdout(tmp_path: Path) -> None:
    shown = cxlemu("plan", "list", "--json", "-").stdout
    result = cxlemu("plan", "list", "--json", tmp_path / "plans.json")
    assert (tmp_path / "plans.json").read_text() == shown
    assert "two_shot" in result.stdout and not result.stdout.startswith("[")


def test_a_file_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    saved = tmp_path / "x.plan"
    result = cxlemu("plan", "save", "barrier", "-O", saved, "--json", "/nowhere/x.json", code=2)
    assert "--json /nowhere/x.json cannot be written" in result.stderr
    assert not saved.exists()


def test_text_of_a_process_goes_to_stderr_with_a_dash() -> None:
    command = [sys.executable, "-m", "cxlemu", "prove", "barrier", "-n", "2", "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)
    assert "barrier" in done.stderr


# --- several numbers of ranks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [verb for verb, its in VERBS.items() if any(p.name == "ranks" for p in its.params)])
def test_several_numbers_of_ranks_are_taken_or_refused_in_a_sentence(verb: str) -> None:
    """A command that takes them is called for each, or takes all at once; its help shows the forms."""
    command = VERBS[verb]
    [ranks] = [its for its in command.params if its.name == "ranks"]
    with click.Context(command) as ctx:
        if isinstance(ranks.type, RanksParam):
            for twice in ("3,3", "2-4,3"):
                with pytest.raises(click.BadParameter, match="-n 3 is named twice"):
                    ranks.type_cast_value(ctx, twice)
            assert ranks.type_cast_value(ctx, "2,3") == (2, 3) and ranks.make_metavar(ctx) == "N|N-N|N,N"
        else:
            with pytest.raises(click.BadParameter, match=r"are several numbers of ranks: give one, .*\w\.$"):
                ranks.type_cast_value(ctx, "2-3")
            assert ranks.type_cast_value(ctx, "3") == 3


@pytest.mark.parametrize("words", ["simulate barrier", "explore barrier", "faults sweep barrier --sample 1 -j 1"])
def test_a_command_runs_once_for_each_number(words: str) -> None:
    one, both = (cxlemu(*words.split(), "-n", n, "--json", "-") for n in ("2", "2,3"))
    assert one.exit_code == both.exit_code == 0, both.output
    runs = json.loads(both.stdout)["runs"]
    assert [run["ranks"] for run in runs] == [2, 3] and runs[0].keys() == json.loads(one.stdout).keys()


def several(codes: dict[int, int | type[BaseException]], path: Path, *, more: str = "", interrupted: int = 0) -> Result:
    """Run a command for as many numbers of ranks as there are codes, which each run exits with."""

    @click.command()
    @option("ranks", type=RanksParam(1, 9))
    @click.option("--trace")
    @option("json")
    @for_each_ranks("trace")
    @click.pass_context
    def command(ctx: click.Context, ranks: int, trace: str | None, json_file: Path | None) -> None:
        code = codes[ranks]
        if not isinstance(code, int):
            raise code("no such world")
        write_json(json_file, {"ranks": ranks} | ({"interrupted": True} if ranks == interrupted else {}))
        ctx.exit(code)

    return CliRunner().invoke(command, ["-n", ",".join(map(str, codes)), "--json", str(path), *more.split()])


@with_rows(
    ({2: 0, 3: 0}, 0, [2, 3]),
    ({2: 0, 3: 1, 4: 3}, 1, [2, 3, 4]),
    ({2: 3, 3: 0}, 3, [2, 3]),
    ({2: 0, 3: INTERRUPTED, 4: 0}, INTERRUPTED, [2, 3]),
    ({2: 1, 3: INTERRUPTED, 4: 0}, 1, [2, 3]),
)
def test_the_worst_exit_code_counts_and_ctrl_c_ends_all(
    codes: dict[int, int | type[BaseException]], code: int, ended: list[int], tmp_path: Path
) -> None:
    assert several(codes, tmp_path / "runs.json").exit_code == code
    document = json.loads((tmp_path / "runs.json").read_text())
    assert [run["ranks"] for run in document["runs"]] == ended
    assert document["interrupted"] is (INTERRUPTED in codes.values())


def test_what_ended_before_an_error_stands(tmp_path: Path) -> None:
    refused = several({2: 0, 3: ArgumentError, 4: 0, 5: 0}, tmp_path / "runs.json").exception
    assert isinstance(refused, ArgumentError) and str(refused) == "-n 3: no such world; not tried: -n 4, 5"
    assert json.loads((tmp_path / "runs.json").read_text()) == {"runs": [{"ranks": 2}], "interrupted": False}
    several({2: ArgumentError, 3: 0}, tmp_path / "none.json")
    assert not (tmp_path / "none.json").exists()


def test_ctrl_c_within_a_run_that_found_something_ends_all(tmp_path: Path) -> None:
    assert several({2: 1, 3: 0}, tmp_path / "runs.json", interrupted=2).exit_code == 1
    document = json.loads((tmp_path / "runs.json").read_text())
    assert document == {"runs": [{"ranks": 2, "interrupted": True}], "interrupted": True}
    several({2: 0, 3: KeyboardInterrupt}, tmp_path / "between.json")
    assert json.loads((tmp_path / "between.json").read_text()) == {"runs": [{"ranks": 2}], "interrupted": True}


def test_a_file_of_one_run_goes_with_one_number(tmp_path: Path) -> None:
    refused = several({2: 0, 3: 0}, tmp_path / "runs.json", more="--trace x").exception
    assert str(refused) == "--trace holds one run: give one number of ranks with -n"
    assert several({2: 0}, tmp_path / "run.json", more="--trace x").exit_code == 0
    assert json.loads((tmp_path / "run.json").read_text()) == {"ranks": 2}
