"""The output of ``cxlemu faults sweep`` while it runs: findings as they come, and a row when its last run is over."""

from collections import Counter
from collections.abc import Iterable, Sequence

from cxlemu.cli.console import print_wrapped
from cxlemu.cli.report import LiveReport
from faults.inject.judge import ScenarioVerdict
from faults.inject.scenario import Scenario
from faults.inject.sweep import ScenarioResult, key_of, summed_up

FINDINGS_SHOWN = 20
WORDS = ("collective", "variant", "fault")
RARE = (ScenarioVerdict.NEVER, ScenarioVerdict.UNPROTECTED)  # stand behind a row that has one, and have no column
COLUMNS = {"runs": 4} | {one.value: max(map(len, one.value.split())) for one in ScenarioVerdict if one not in RARE}


class SweepReport(LiveReport):
    def __init__(self, scenarios: Sequence[Scenario]) -> None:
        super().__init__("faults", len(scenarios))
        self.results: list[ScenarioResult] = []
        self._left = Counter(map(key_of, scenarios))
        self._widths = [max(map(len, words)) for words in zip(WORDS, *self._left, strict=True)]

    def tell(self, result: ScenarioResult) -> None:
        """Take the next result, and print it if it is a finding, and the row that it completes."""
        self.results.append(result)
        self._progress.advance(self._task)
        if not result.verdict.ok and sum(not each.verdict.ok for each in self.results) <= FINDINGS_SHOWN:
            scenario = result.scenario
            what = f"{scenario.collective} {scenario.variant}: {scenario.script.faults[0]}"
            print_wrapped(self._out, f"{result.verdict.value}: {what}: {result.why}", "red")
        key = key_of(result.scenario)
        self._left[key] -= 1
        if not self._left[key]:
            self._row(key)

    def _open(self) -> None:
        above, below = ({name: name.rpartition(" ")[side] for name in COLUMNS} for side in (0, 2))
        self._line(("", "", ""), above.values())
        self._line(WORDS, below.values())

    def _close(self, error: BaseException | None) -> None:
        if self.results and self._left[key := key_of(self.results[-1].scenario)]:
            self._row(key)

    def _row(self, key: tuple[str, str, str]) -> None:
        [row] = summed_up(each for each in self.results if key_of(each.scenario) == key)
        counts = {"runs": row.verdicts.total()} | {one.value: row.verdicts[one] for one in ScenarioVerdict}
        rare = [f"{row.verdicts[one]} {one.value}" for one in RARE if row.verdicts[one]]
        self._line(key, [counts[name] for name in COLUMNS], ", ".join(rare))

    def _line(self, words: Sequence[str], cells: Iterable[object], more: str = "") -> None:
        first = [f"{word:<{width}}" for word, width in zip(words, self._widths, strict=True)]
        rest = [f"{cell!s:>{width}}" for cell, width in zip(cells, COLUMNS.values(), strict=True)]
        self._print(" ".join([*first, *rest, more]).rstrip())
