"""What an algorithm is written with: a Builder, whose words become one rank's part of a plan (words.py lists them).

Each module is a layer, which adds one thing to those before it:

    style -> part -> areas -> rounds -> signals -> transfers -> columns -> folds -> partners -> words

streams of instructions and their events, where blocks lie, rounds and slots, doorbells alone, publishing and
retrieving, the same for many peers at once, folding all peers' blocks, folding one peer's. `misuse` tells users what
they got wrong. Builders for two levels, for inboxes and for products add their words to a Builder's.
"""

from collectives.builder.areas import Areas, Chunk
from collectives.builder.part import DONE_GROUP, INPUT, OUTPUT, SCRATCH, Event
from collectives.builder.variant import AGGREGATE, ALL, HIERARCHICAL, LINE, NAIVE, VARIANTS, ZERO_COPY, VariantSpec
from collectives.builder.words import Builder

__all__ = [
    "AGGREGATE",
    "ALL",
    "DONE_GROUP",
    "HIERARCHICAL",
    "INPUT",
    "LINE",
    "NAIVE",
    "OUTPUT",
    "SCRATCH",
    "VARIANTS",
    "ZERO_COPY",
    "Areas",
    "Builder",
    "Chunk",
    "Event",
    "VariantSpec",
]
