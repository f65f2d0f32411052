"""The picture of a history that no order explains: hosts are rows, time goes to the right, operations are bars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from faults.campaign.picture import STYLE, text
from faults.programs.histories import SHOWN, LoggedOperation

LEFT, TOP, RIGHT, ROW, BAR, GAP, CHARACTER = 84, 66, 24, 40, 26, 30, 7.5


def history_svg(history: Sequence[LoggedOperation]) -> str:
    """Draw the last operations of a history; that with the last result, which no order gives, is red."""
    return "\n".join(_Drawing(sorted(history, key=lambda operation: operation.begin)).parts())


class _Drawing:
    def __init__(self, history: Sequence[LoggedOperation]) -> None:
        self._left_out, self._shown = max(len(history) - SHOWN, 0), history[-SHOWN:]
        self._wrong = max(self._shown, key=lambda operation: operation.end)
        self._x = self._columns()
        ends = [self._x[operation.begin] + _width(operation) for operation in self._shown if not operation.end]
        self._right = max([*self._x.values(), *ends]) + GAP
        self._rows = self._placed()

    def _columns(self) -> dict[int, float]:
        """Place the steps at which operations begin or end, so that what a bar says fits into it."""
        steps = sorted({step for operation in self._shown for step in (operation.begin, operation.end) if step})
        x = {step: float(LEFT + GAP * k) for k, step in enumerate(steps)}
        for its in sorted(self._shown, key=lambda operation: operation.end):
            if its.end and (lacks := _width(its) - (x[its.end] - x[its.begin])) > 0:
                x |= {step: offset + lacks for step, offset in x.items() if step >= its.end}
        return x

    def _placed(self) -> list[tuple[int, list[LoggedOperation]]]:
        """Give each host a row, and one more for what threads of it do at the same time."""
        rows: list[tuple[int, list[LoggedOperation]]] = []
        for operation in sorted(self._shown, key=lambda operation: (operation.host, operation.begin)):
            free = (
                row for host, row in rows if host == operation.host and row[-1].end and row[-1].end < operation.begin
            )
            row = next(free, None)
            if row is None:
                rows.append((operation.host, [operation]))
            else:
                row.append(operation)
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
            for operation in row:
                yield from self._bar(operation, y)
        yield text(16, bottom + 38, "each takes effect at once somewhere in its bar; a dashed one has no end", "small")
        yield "</svg>"

    def _bar(self, operation: LoggedOperation, y: int) -> Iterator[str]:
        left, right = self._x[operation.begin], self._x[operation.end] if operation.end else self._right
        wrong = operation is self._wrong
        style = f'class="{"wrong" if wrong else "box"}"' + ("" if operation.end else ' stroke-dasharray="5 4"')
        yield f'<rect x="{left:g}" y="{y}" width="{right - left:g}" height="{BAR}" rx="4" {style}/>'
        yield text(left + 8, y + 17, operation.call, "red" if wrong else "")


def _width(operation: LoggedOperation) -> float:
    return len(operation.call) * CHARACTER + 16
