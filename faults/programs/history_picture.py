"""The picture of a history that no order explains: hosts are rows, time goes to the right, operations are bars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from faults.campaign.picture import STYLE, text
from faults.programs.histories import SHOWN, LoggedOperation

LEFT, TOP, RIGHT, ROW, BAR, GAP, CHARACTER = 84, 66, 24, 40, 26, 30, 7.5


def history_svg(history: Sequence[LoggedOperation]) -> str:
    """Draw the last operations of a history; that with the last result, which no order gives, is red."""
    return "\n".join(_Drawing(sorted(history, key=lambda its: its.begin)).parts())


class _Drawing:
    def __init__(self, history: Sequence[LoggedOperation]) -> None:
        self._left_out, self._shown = max(len(history) - SHOWN, 0), history[-SHOWN:]
        self._wrong = max(self._shown, key=lambda its: its.end)
        self._x = self._columns()
        ends = [self._x[its.begin] + _width(its) for its in self._shown if not its.end]
        self._right = max([*self._x.values(), *ends]) + GAP
        self._rows = self._placed()

    def _columns(self) -> dict[int, float]:
        """Place the steps at which operations begin or end, so that what a bar says fits into it."""
        steps = sorted({step for its in self._shown for step in (its.begin, its.end) if step})
        x = {step: float(LEFT + GAP * k) for k, step in enumerate(steps)}
        for its in sorted(self._shown, key=lambda its: its.end):
            if its.end and (lacks := _width(its) - (x[its.end] - x[its.begin])) > 0:
                x |= {step: at + lacks for step, at in x.items() if step >= its.end}
        return x

    def _placed(self) -> list[tuple[int, list[LoggedOperation]]]:
        """Give each host a row, and one more for what threads of it do at the same time."""
        rows: list[tuple[int, list[LoggedOperation]]] = []
        for its in sorted(self._shown, key=lambda its: (its.host, its.begin)):
            free = (row for host, row in rows if host == its.host and row[-1].end and row[-1].end < its.begin)
            row = next(free, None)
            if row is None:
                rows.append((its.host, [its]))
            else:
                row.append(its)
        return rows

    def parts(self) -> Iterator[str]:
        says = f"no order explains {self._wrong.call} of host {self._wrong.host}"
        width = max(self._right + RIGHT, 16 + 8.6 * len(says), 520)
        bottom = TOP + ROW * len(self._rows)
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {bottom + 54}" width="{width:g}" '
            f'height="{bottom + 54}" role="img"><style>{STYLE}</style>'
        )
        yield f'<rect width="{width:g}" height="{bottom + 54}" fill="#fff"/>'
        yield text(16, 24, says, "head")
        before = f"; {self._left_out} operations before these" if self._left_out else ""
        yield text(16, 42, f"{self._wrong.object_name}; time goes to the right{before}", "small")
        for step, x in self._x.items():
            yield f'<line x1="{x:g}" x2="{x:g}" y1="{TOP - 8}" y2="{bottom}" class="gap"/>'
            yield text(x, bottom + 12, str(step), "small", anchor="middle")
        yield text(16, bottom + 12, "step", "small")
        for number, (host, row) in enumerate(self._rows):
            y = TOP + ROW * number
            yield text(16, y + 17, f"host {host}")
            yield f'<line x1="{LEFT}" x2="{self._right:g}" y1="{y + BAR / 2:g}" y2="{y + BAR / 2:g}" class="life"/>'
            for its in row:
                yield from self._bar(its, y)
        yield text(16, bottom + 38, "each takes effect at once somewhere in its bar; a dashed one has no end", "small")
        yield "</svg>"

    def _bar(self, its: LoggedOperation, y: int) -> Iterator[str]:
        left, right = self._x[its.begin], self._x[its.end] if its.end else self._right
        wrong = its is self._wrong
        style = f'class="{"wrong" if wrong else "box"}"' + ("" if its.end else ' stroke-dasharray="5 4"')
        yield f'<rect x="{left:g}" y="{y}" width="{right - left:g}" height="{BAR}" rx="4" {style}/>'
        yield text(left + 8, y + 17, its.call, "red" if wrong else "")


def _width(its: LoggedOperation) -> float:
    return len(its.call) * CHARACTER + 16
