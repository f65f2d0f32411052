"""Finds what an algorithm asks of a ring: how many blocks a rank publishes in a round, and of how many bytes."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from collectives.builder.batches import Batches
from collectives.builder.recipes import Recipe
from collectives.builder.slots import Chunk, Loop
from collectives.builder.words import Builder
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Call, Layout


@dataclass
class _Asking(Builder):
    """Builds no rounds: notes what the algorithm asks for."""

    asked: list[Loop] = field(init=False, default_factory=list)

    def rounds(
        self,
        nbytes: int,
        *,
        writers: list[int] | None = None,
        blocks: int = 1,
        spread: str,
        answered: bool = False,
        chunk_bytes: int = 0,
        bells: int = 0,
        alike: int = 0,
    ) -> Iterator[list[Chunk]]:
        writers = list(range(self.ranks)) if writers is None else writers
        if nbytes:
            self.asked.append(Loop(nbytes, writers, blocks, spread, chunk_bytes, bells))
        return iter(())


@dataclass
class _AskingInBatches(_Asking, Batches):
    """The same with words for batches."""


def loops_of(recipe: Recipe, call: Call) -> list[Loop]:
    """The loops over rounds in which a one-level algorithm of ours moves a call's blocks, as the root asks for them."""
    kind = _AskingInBatches if recipe.builder is Batches else _Asking
    asking = kind(call, Layout(call.ranks, 1, 1, LINE_BYTES, 1, LINE_BYTES), recipe.spec, call.root)
    recipe.algorithm(asking)
    return asking.asked
