"""What pictures of measurements share: nothing that is written lies outside the picture."""

import pytest

from studies.cli.picture import legend, panels

pytest.importorskip("matplotlib")

LABELS = ["this machine's limit", "Open MPI", "MPICH", "cxlemu, persistent", "the same, arrays in the pool", "cxlemu"]


@pytest.mark.parametrize(("count", "columns"), [(1, 1), (2, 2), (8, 4)])
def test_title_and_legend_lie_inside_the_picture(count: int, columns: int) -> None:
    rows = count // columns
    title = "2 ranks on this machine, float32, source rewritten before each call"
    figure, every = panels((3.6 * columns, 3.2 * rows + 0.9), rows, columns, title=title, share="xy")
    for panel in every:
        for number, label in enumerate(LABELS):
            panel.plot([1, 2, 4], [number, 2, 3], label=label)
    legend(figure, columns=7)
    figure.canvas.draw()
    width, height = figure.canvas.get_width_height()
    for its in (figure.legends[0], figure._suptitle):
        box = its.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= width and 0 <= box.y0 < box.y1 <= height
    shown = [text.get_text() for text in figure.legends[0].get_texts()]
    assert sorted(shown) == sorted(LABELS)
