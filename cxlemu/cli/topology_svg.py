"""A topology as a picture, an SVG file: one panel for the file's own switches and links, one per fabric."""

from collections.abc import Iterator
from html import escape

from cxlemu.cli.topology_panels import BESIDE, MARGIN, WIDTH, DrawnBox, DrawnLink, Note, panel
from cxlemu.cli.topology_parts import parts
from cxlemu.topology import Topology

LINE = 18.0
INK, PALE = "#1b2733", "#5c6b78"
STYLE = f"""text {{ font: 12px sans-serif; fill: {INK}; text-anchor: middle }}
.title {{ font-size: 16px; font-weight: bold; text-anchor: start }} .left {{ text-anchor: start; fill: {PALE} }}
.ends {{ font-size: 10px; fill: {PALE} }} .upright {{ font-size: 10px; fill: {PALE}; text-anchor: start }}
.name {{ fill: white; font-size: 11px }} .small {{ fill: white; font-size: 9px }}
.switch {{ fill: #2f6f9f }} .host {{ fill: #3c7a57 }} .card {{ fill: #a5622a }} .more {{ fill: {PALE} }}
path {{ stroke: #8fa3b3; fill: none }}"""


def topology_svg(topology: Topology) -> str:
    """Draw a topology's hosts, switches, cards and all links between them, as the text of an SVG file."""
    top = MARGIN + LINE
    body = [_text(MARGIN, MARGIN, topology.title, "title")]
    for part in parts(topology):
        drawing, head = panel(topology, part), LINE
        texts = []
        captions = part.captions() if part.fabric else ()  # else they stand between the rows
        for line, style in [(part.title, "title"), *((line, "left") for line in captions)]:
            if line:
                texts.append(_text(MARGIN, head + LINE, line, style))
                head += LINE
        body += [f'<g transform="translate(0 {top:g})">', *texts]
        body += [f'<g transform="translate(0 {head + LINE:g})">', *map(_wire, drawing.wires)]
        body += [line for node in drawing.nodes for line in _box(node)]
        body += [line for note in drawing.notes for line in _note(note)]
        body += ["</g>", "</g>"]
        top += head + drawing.height + 2 * LINE
    size = f'width="{WIDTH:g}" height="{top + MARGIN:g}" viewBox="0 0 {WIDTH:g} {top + MARGIN:g}"'
    head_line = f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{STYLE}</style>'
    return "\n".join([head_line, '<rect width="100%" height="100%" style="fill: white"/>', *body, "</svg>\n"])


def _wire(wire: DrawnLink) -> str:
    x, y, x2, y2 = wire.x, wire.y, wire.x2, wire.y2
    bend = (x + x2) / 2 - wire.bow * (y2 - y), (y + y2) / 2 - wire.bow * abs(x2 - x)
    return f'<path class="{wire.kind}" d="M{x:.1f} {y:.1f} Q{bend[0]:.1f} {bend[1]:.1f} {x2:.1f} {y2:.1f}"/>'


def _box(node: DrawnBox) -> Iterator[str]:
    """Draw a box with its lines of text; a name that has no room is shown when a pointer is over it."""
    x, y, width, high = node.x, node.y, node.width, node.high
    if node.upright:
        transform = f'transform="translate({x - 3:.1f} {y:.1f}) rotate(90)"'
        yield f'<text class="upright" {transform}>{escape(node.text[0])}</text>'
        return
    if node.kind == "end":
        yield _text(x, y + 4, node.text[0], "ends")
        return
    transform = f'x="{x - width / 2:.1f}" y="{y - high / 2:.1f}" width="{width:.1f}" height="{high:.1f}"'
    yield f'<rect {transform} rx="3" class="{node.kind}"><title>{escape(node.title)}</title></rect>'
    first = y + 4 - 6 * (len(node.text) - 1)
    for row, line in enumerate(node.text):
        yield _text(x, first + 12 * row, line, "small" if row else "name")


def _note(note: Note) -> Iterator[str]:
    first = note.y + 4 - LINE / 2 * (len(note.lines) - 1)
    beside = WIDTH - MARGIN - BESIDE + LINE
    yield from (_text(beside, first + LINE * row, line, "left") for row, line in enumerate(note.lines))


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}">{escape(text)}</text>'
