"""Programs in C and C++ for tests: built for the emulated pool, run on its hosts, checked as they run."""

import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from cxlemu.errors import ArgumentError
from faults.programs import suppressions
from faults.programs.commands import hosts_of, parse_commands, parse_pools
from faults.programs.compile import compiler, compiler_arguments, is_clang
from faults.programs.judge import again, report_of, suppress
from faults.programs.result import WORST_CASES, ExecSetting, RunChoice, RunEnding, RunResult, untouched
from faults.programs.run import run
from faults.programs.words import text

COMPILE_S = 300.0
SUFFIXES = {".c": "c", ".cc": "c++", ".cpp": "c++", ".cxx": "c++"}


class ProgramFailed(AssertionError):
    """The checker found a mistake, or a program failed, hung or went past its deadline."""


class TestProgram:
    """A program that was built.

    Attributes:
        path: The executable file.
    """

    __test__ = False  # pytest collects nothing here

    def __init__(self, path: Path, seed: int) -> None:
        self.path, self._seed = path, seed

    def run(
        self,
        commands: str,
        *,
        pool: str | Sequence[str],
        hosts: int | None = None,
        seeds: int = 10,
        suppressions_file: Path | None = None,
        steps: int = 25_000,
        deadline_s: float = 60.0,
    ) -> None:
        """Run the program on emulated hosts: in the worst case for staleness, and with ``seeds`` adversaries.

        Args:
            commands: As for ``cxlemu exec``: ``{program} new :: {program} produce : {program} consume``.
            pool: What the program opens, ``PATH``, ``PATH=SIZE`` or ``PATH=FILE``; several in a list.
            hosts: How many hosts there are. None: one for each command of a stage, at least two.
            seeds: How many runs with evictions, prefetches and arrivals; the test's own seed chooses them.
            suppressions_file: Findings to live with, each with a reason.
            steps: After how many steps that change nothing a run hangs.
            deadline_s: Of a run, in seconds.

        Raises:
            ProgramFailed: Something is wrong; the message is the report, with the command that repeats the run.
            ArgumentError, ConfigError: Commands, pools or suppressions are not as they have to be.
        """
        words = [word.replace("{program}", str(self.path)) for word in shlex.split(commands)]
        pools = [pool] if isinstance(pool, str) else list(pool)
        hosts = hosts or hosts_of(words)
        setting = ExecSetting(
            parse_commands(words, hosts), parse_pools(pools), hosts, deadline_s=deadline_s, idle_budget=steps
        )
        reasons = suppressions.read(suppressions_file) if suppressions_file is not None else []
        chosen = [RunChoice(None, schedule) for schedule in WORST_CASES]
        for choice in (*chosen, *(RunChoice(self._seed + k, self._seed + k) for k in range(seeds))):
            result = suppress(setting, run(setting, choice), reasons)
            if result.failed or result.ending is RunEnding.DEADLINE:
                report = text(report_of(setting, [result], words, reasons))
                begins = "".join(f"{its.begins}\n" for its in setting.pools if its.begins)
                outputs = begins + _outputs(setting, result) + "".join(f"{says}\n" for says in result.doing)
                command = again(setting, result, words)
                raise ProgramFailed(f"{result.choice}: {result.ending.value}\n{report}{outputs}again: {command}")
            if untouched(setting, [result]):
                raise ProgramFailed(f"{result.choice}: no command opened {' or '.join(pools)}, so nothing was checked")
            if unjudged := [*result.unfired.values(), *result.undecided]:
                raise ProgramFailed(f"{result.choice}: {unjudged[0]}")


def _outputs(setting: ExecSetting, result: RunResult) -> str:
    outputs = ""
    for one in result.exits:
        if one.failed:
            name = shlex.join(setting.commands[one.command].words)
            outputs += f"{name} (host {setting.commands[one.command].host}) ended with {one.code}\n{one.output}"
    return outputs


def builder(folder: Path, beside: Path, seed: int) -> Callable[..., TestProgram]:
    """Make the fixture ``cxl_program``.

    Args:
        folder: Where programs are built.
        beside: Where sources are looked for.
        seed: The test's own.
    """
    built = 0

    def build(source: str | Path, *more: str | Path, flags: Sequence[str] = ("-O1",)) -> TestProgram:
        """Build a program with ``cxlemu cc`` or ``cxlemu c++``.

        Args:
            source: A file in C or C++, beside the test.
            *more: Further files of the program.
            flags: Flags of the compiler.

        Raises:
            ArgumentError: There is no compiler, or the source is in another language.
            ProgramFailed: It does not compile; the message is the compiler's.
        """
        nonlocal built
        files = [str(beside / file) for file in (source, *more)]
        language = SUFFIXES.get(Path(source).suffix)
        if language is None:
            raise ArgumentError(f"cxl_program takes {', '.join(SUFFIXES)} files, not {source}")
        command = compiler(language)
        target = folder / f"{Path(source).stem}-{built}"
        words = compiler_arguments(language, [*flags, *files, "-o", str(target)], clang=is_clang(command[-1]))
        done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=COMPILE_S)
        if done.returncode:
            raise ProgramFailed(f"{source} does not compile:\n{done.stderr}")
        built += 1
        return TestProgram(target, seed)

    return build
