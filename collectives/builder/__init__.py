"""An algorithm is written with a Builder, whose words become one rank's part of a plan (words.py lists them).

    part         one rank's part: what its variant declares, what is written, and how words become instructions
    slots        where in a slot the ranks' blocks lie, and how they travel through it
    carriers     other ways: in doorbells' lines, from the heap, into peers' results, with checksums
    rounds       blocks are cut into what fits a slot, and slots are used again
    alike        rounds that follow from those before, made as columns
    folds        folding all peers' blocks, or one peer's
    words        the words of a Builder: publish, retrieve, signal, wait, copy
    crosswise    where blocks of every rank for every other lie, so that one copy moves many
    batch_carrier  carries the blocks of many ranks so that they travel in one copy
    batches      words for blocks that travel in one copy
    recipes      turns a function into an algorithm

Builders for two levels, for inboxes and for products add their words to a Builder's.
"""

from collectives.builder.batch_carrier import CROSSWISE, SIDE_BY_SIDE
from collectives.builder.batches import Batches, RankBatch
from collectives.builder.part import (
    AGGREGATE,
    ALL,
    DONE_GROUP,
    INPUT,
    LINE,
    NAIVE,
    OUTPUT,
    PUSH,
    SCRATCH,
    STAGED,
    VARIANTS,
    ZERO_COPY,
    Event,
    Ints,
    VariantSpec,
)
from collectives.builder.slots import Areas, Chunk, RegionIds
from collectives.builder.words import Builder

__all__ = [
    "AGGREGATE",
    "ALL",
    "CROSSWISE",
    "DONE_GROUP",
    "INPUT",
    "LINE",
    "NAIVE",
    "OUTPUT",
    "PUSH",
    "SCRATCH",
    "SIDE_BY_SIDE",
    "STAGED",
    "VARIANTS",
    "ZERO_COPY",
    "Areas",
    "Batches",
    "Builder",
    "Chunk",
    "Event",
    "Ints",
    "RankBatch",
    "RegionIds",
    "VariantSpec",
]
