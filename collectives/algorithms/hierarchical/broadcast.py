"""Broadcast on two levels: every slice crosses the pool once, through ranks of its own, and is passed on inside.

The root's neighbours read its block inside, and the one at position i passes slice i on to the pool; the ranks at
position i elsewhere read it there and pass it on inside. Of m bytes each rank of the root's cluster writes m / G to
the pool, and each rank elsewhere reads as much from it, and (G - 1) / G m inside.
"""

from collectives.algorithms.hierarchical.levels import HIERARCHICAL, Levels
from collectives.algorithms.hierarchical.regions import Writers
from collectives.builder.recipes import algorithm


@algorithm("broadcast", name=HIERARCHICAL, builder=Levels)
def broadcast(b: Levels) -> None:
    if b.is_root:
        b.copy(b.output(), b.input(), b.nbytes)
    slices = [(position, position * b.stride) for position in range(b.size)]
    inside = [Writers((b.root,), b.size), Writers(b.elsewhere, 1)]
    for chunks in b.levels(b.stride, inside=inside, across=[Writers(b.at_home, 1)]):
        for chunk in chunks:
            part, offset = b.slice_of(b.position, chunk), b.position * b.stride + chunk.offset
            if b.is_root:
                for position, start in slices:
                    b.inside.publish(b.slice_of(position, chunk), b.input(start + chunk.offset), position)
                b.across.publish(part, b.input(offset))
            elif not b.at_roots:
                b.across.forward(b.output(offset), part, b.column_root, stream="across", to=b.inside.block(0))
        for chunk in chunks if not b.is_root else ():
            for position, start in slices:
                part, place = b.slice_of(position, chunk), b.output(start + chunk.offset)
                if b.at_roots and position == b.position:
                    b.inside.forward(place, part, b.root, position, to=b.across.block(0))
                elif b.at_roots:
                    b.inside.retrieve(place, part, b.root, position)
                elif position != b.position:
                    b.inside.retrieve(place, part, b.at(b.home, position))
