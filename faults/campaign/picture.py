"""A message-sequence picture of a line's story: hosts and the pool are columns, time goes down.

A column's band is what its cache holds of the line, in the colour of that version: filled when clean, hatched when
dirty, absent when the line is not there. Arrows are the line on its way between cache and pool; dashed arrows are
doorbells. A wrong read is red. The picture needs nothing but itself: no script, no font, no network.
"""

from collections.abc import Iterator
from html import escape
from textwrap import wrap

from faults.campaign.case import CampaignCase
from faults.campaign.explain import Held, Story, StoryEvent, story
from faults.campaign.judge import executed
from faults.campaign.record import Execution

LEFT, TOP, RIGHT, LEGEND = 64, 128, 110, 640
COLUMN, ROW, BAND, BOX = 270, 46, 10, 30
TEXT_CHARS = 33  # of an instruction's text beside its column, in each of two lines
COLOURS = ("#9aa3ad", "#2f7ed8", "#1f9d55", "#c77700", "#8e44ad", "#00838f", "#ad1457", "#5d6d1e")

STYLE = """
svg{font:12px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;background:#fff}
text{fill:#1b1f24}.head{font-weight:bold;font-size:14px}.small{font-size:10px;fill:#5b6570}
.life{stroke:#c9d0d7;stroke-width:1}.box{fill:#f6f8fa;stroke:#8c959f}.nature{fill:#fff8e1;stroke:#c9a400}
.wrong{fill:#ffe3e3;stroke:#d1242f;stroke-width:2.5}.red{fill:#c4161c;font-weight:bold}
.bell{stroke:#5b6570;stroke-dasharray:5 4;fill:none}.gap{stroke:#c9d0d7;stroke-dasharray:1 4}
"""


def picture(case: CampaignCase) -> str | None:
    """Draw a case's wrong read or deadlock as SVG, by executing it again; None if nothing is wrong or shown."""
    return drawn(executed(case)) if case.launch == "lockstep" else None


def drawn(execution: Execution) -> str | None:
    """Draw, as SVG, an execution's first wrong read or, without one, the wait that never ends; else None."""
    tale = story(execution)
    return None if tale is None else svg(tale)


def svg(story: Story) -> str:
    """Draw a story as one ``<svg>`` element, to stand alone or in a page."""
    width = max(LEFT + COLUMN * len(story.hosts) + RIGHT, LEGEND)
    bottom = TOP + ROW * len(story.events) + ROW * bool(story.left_out_at_the_end)
    height = bottom + 62 + 20 * len(story.versions)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img"><style>{STYLE}</style>',
        *_definitions(story),
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        text(16, 24, _title(story), "head"),
        text(16, 42, story.line, "small"),
        *_headings(story, bottom),
        *_bands(story),
        *(part for index, event in enumerate(story.events) for part in _event(story, index, event)),
        *(part for index, event in enumerate(story.events) for part in _arrows(story, index, event)),
        *_bells(story),
        *_ending(story, bottom),
        *_legend(story, bottom + 30),
        "</svg>",
    ]
    return "\n".join(parts)


def _title(story: Story) -> str:
    """Return the picture's title: the first wrong step or, without one, the line."""
    return next((f"{story.hosts[event.host]} {event.wrong}" for event in story.events if event.wrong), story.line)


def _definitions(story: Story) -> Iterator[str]:
    yield "<defs>"
    for number in range(len(story.versions)):
        colour = _colour(number)
        yield (
            f'<pattern id="d{number % len(COLOURS)}" width="6" height="6" patternUnits="userSpaceOnUse" '
            f'patternTransform="rotate(45)"><rect width="6" height="6" fill="#fff"/>'
            f'<rect width="3.4" height="6" fill="{colour}"/></pattern>'
            + _arrowhead(f"m{number % len(COLOURS)}", colour)
        )
        if number + 1 == len(COLOURS):
            break
    yield _arrowhead("bell", "#5b6570") + "</defs>"


def _arrowhead(name: str, colour: str) -> str:
    return (
        f'<marker id="{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto">'
        f'<path d="M0 0L10 5L0 10z" fill="{colour}"/></marker>'
    )


def _headings(story: Story, bottom: int) -> Iterator[str]:
    for column, heading in enumerate([*story.hosts, "pool"]):
        x = _x(column)
        yield f'<rect x="{x - 70}" y="52" width="140" height="{BOX}" rx="5" class="box"/>'
        yield text(x, 72, heading, "head", anchor="middle")
        yield f'<line x1="{x}" x2="{x}" y1="{52 + BOX}" y2="{bottom}" class="life"/>'


def _bands(story: Story) -> Iterator[str]:
    """From each change of a column's state to the next."""
    columns = [[event.caches[host] for event in story.events] for host in range(len(story.hosts))]
    columns.append([Held(event.pool) for event in story.events])
    for column, states in enumerate(columns):
        since = 0
        for index in range(1, len(states) + 1):
            if index < len(states) and states[index] == states[since]:
                continue
            yield from _band(column, states[since], _y(since), _y(index))
            since = index


def _band(column: int, held: Held, top: int, bottom: int) -> Iterator[str]:
    x, height = _x(column), bottom - top
    if held.cached is not None:
        number = held.cached % len(COLOURS)
        fill = f"url(#d{number})" if held.dirty else COLOURS[number]
        yield (
            f'<rect x="{x - BAND / 2}" y="{top}" width="{BAND}" height="{height}" fill="{fill}" '
            f'stroke="{COLOURS[number]}"/>'
        )
    if held.posted is not None:
        yield (
            f'<line x1="{x + BAND}" x2="{x + BAND}" y1="{top}" y2="{bottom}" stroke="{_colour(held.posted)}" '
            f'stroke-width="2" stroke-dasharray="2 3"/>'
        )


def _bells(story: Story) -> Iterator[str]:
    """From a signal to the wait that it ends, beside the boxes of both."""
    for signal, wait in story.signals:
        rings, waits = story.events[signal], story.events[wait]
        to_the_right = waits.host > rings.host
        start = _box_end(rings) + 2 if to_the_right else _x(rings.host) - 8
        end = _x(waits.host) - 8 if to_the_right else _box_end(waits) + 2
        yield f'<path d="M{start} {_y(signal)}L{end} {_y(wait)}" class="bell" marker-end="url(#bell)"/>'


def _lines(event: StoryEvent) -> list[str]:
    return wrap(event.text, TEXT_CHARS)[:2] or [""]


def _box_end(event: StoryEvent) -> int:
    return _x(event.host) + 14 + round(max(map(len, [*_lines(event), event.place])) * 7.3 + 14)


def _event(story: Story, index: int, event: StoryEvent) -> Iterator[str]:
    x, y = _x(event.host), _y(index)
    if event.left_out:
        yield from _gap(story, event.left_out, y - ROW // 2 - 1)
    yield text(LEFT - 8, y + 4, str(index + 1), "small", anchor="end")
    style = "wrong" if event.wrong else "nature" if event.place == "nature" else "box"
    lines = _lines(event)
    height = 16 + 14 * len(lines)
    width = _box_end(event) - x - 14
    yield f'<rect x="{x + 14}" y="{y - 17}" width="{width}" height="{height}" rx="4" class="{style}"/>'
    for number, line in enumerate(lines):
        yield text(x + 21, y - 4 + 13 * number, line, "red" if event.wrong else "")
    yield text(x + 21, y - 4 + 13 * len(lines), event.place, "small")
    yield f'<circle cx="{x}" cy="{y}" r="4" fill="{"#d1242f" if event.wrong else "#1b1f24"}"/>'
    if event.wrong:
        yield text(x + 14, y + 36 + 13 * (len(lines) - 1), event.wrong, "red")


def _arrows(story: Story, index: int, event: StoryEvent) -> Iterator[str]:
    """The line on its way: to the pool when that changed, from the pool when the cache got it without a store."""
    before_pool, before = _before(story, index)
    pool, y, x = len(story.hosts), _y(index), _x(event.host)
    if event.pool != before_pool:
        yield _arrow(x, _x(pool), y + 18, event.pool)
    held = event.caches[event.host]
    if held.cached is not None and before[event.host].cached is None and not held.dirty:
        yield _arrow(_x(pool), x, y + 18, held.cached)


def _arrow(start: int, end: int, y: int, version: int) -> str:
    gap = BAND if end > start else -BAND
    return (
        f'<line x1="{start + gap}" x2="{end - gap}" y1="{y}" y2="{y}" stroke="{_colour(version)}" stroke-width="2" '
        f'marker-end="url(#m{version % len(COLOURS)})"/>'
        + text(max(start, end) - 26, y - 4, f"v{version}", "small", anchor="end")
    )


def _before(story: Story, index: int) -> tuple[int, tuple[Held, ...]]:
    if index == 0:
        return 0, (Held(),) * len(story.hosts)
    return story.events[index - 1].pool, story.events[index - 1].caches


def _ending(story: Story, bottom: int) -> Iterator[str]:
    if story.left_out_at_the_end:
        yield from _gap(story, story.left_out_at_the_end, bottom - ROW // 2)


def _gap(story: Story, steps: int, y: int) -> Iterator[str]:
    yield f'<line x1="16" x2="{_x(len(story.hosts))}" y1="{y}" y2="{y}" class="gap"/>'
    yield text(16, y - 3, f"{steps} more", "small")


def _legend(story: Story, y: int) -> Iterator[str]:
    yield text(
        16, y, "filled: clean in the cache; hatched: dirty; dotted: written back, but not yet in the pool", "small"
    )
    for number, meaning in enumerate(story.versions):
        top = y + 22 + 20 * number
        yield f'<rect x="16" y="{top - 10}" width="12" height="12" fill="{_colour(number)}"/>'
        yield text(34, top, f"v{number}: {meaning}")


def _x(column: int) -> int:
    return LEFT + 20 + COLUMN * column


def _y(index: int) -> int:
    return TOP + ROW * index


def _colour(version: int) -> str:
    return COLOURS[version % len(COLOURS)]


def text(x: float, y: float, words: str, style: str = "", *, anchor: str = "start") -> str:
    kind = f' class="{style}"' if style else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{kind}>{escape(words)}</text>'
