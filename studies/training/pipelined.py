"""A step in pipeline stages, one forward and one backward in turn (1F1B, arXiv 2104.04473), the optimizer sharded.

Each stage begins with gathering the weights that the step before updated, and ends with scattering its gradients among
data ranks, and its update. With overlap the first microbatch's forward follows the gathering block by block, and the
last one's backward goes before the scattering; without, they stand before and behind. One stage is plain data
parallelism.
"""

from collections.abc import Sequence

from studies.training.durations import Durations
from studies.training.timeline import COMPUTE, Part, TimelineProgram

SENDING = "between"


def blocks_of(blocks: int, stages: int) -> list[int]:
    """Divide blocks among stages as equally as can be.

    Blocks that are left over go to stages in the middle, as the ends have embedding and head.
    """
    each, more = divmod(blocks, stages)
    first = (stages - more) // 2
    return [each + (first <= stage < first + more) for stage in range(stages)]


def order(stage: int, stages: int, microbatches: int) -> list[tuple[bool, int]]:
    """Order one stage's passes: (whether it is a forward pass, microbatch) for each.

    First come as many forwards as there are stages behind it, then both in turn, then the backwards that are left.
    """
    ahead = min(stages - 1 - stage, microbatches)
    steps = [(True, number) for number in range(ahead)]
    for number in range(microbatches - ahead):
        steps += [(True, ahead + number), (False, number)]
    return steps + [(False, number) for number in range(microbatches - ahead, microbatches)]


def program(durations: Durations, microbatches: int) -> TimelineProgram:
    """Build the step's operations, with one lane for each stage; each data rank takes ``microbatches``."""
    made = TimelineProgram()
    stages = durations.parallelism.pipeline
    blocks = blocks_of(durations.model.blocks, stages)
    sent: dict[tuple[bool, int, int], int] = {}  # (forward?, stage, microbatch): how its result leaves the stage
    awaited: list[tuple[int, tuple[bool, int, int]]] = []
    handing_over = tuple(durations.hand_over())
    for stage in range(stages):
        lane = _Stage(durations, made, stage, blocks[stage])
        lane.gather()
        for forward, number in order(stage, stages, microbatches):
            comes = (forward, stage - 1 if forward else stage + 1, number)
            first, last = lane.turn(forward, number, microbatches)
            if 0 <= comes[1] < stages:
                awaited.append((first, comes))
            goes = stage + 1 if forward else stage - 1
            if 0 <= goes < stages:
                stream = "forward" if forward else "backward"
                words = f"{stream} {number} to stage {goes}"
                sent[forward, stage, number] = made.add(words, stage, f"{stream} out", handing_over, (last,))
        lane.finish()
    for number, key in awaited:
        made.operations[number].after.append(sent[key])
    return made


class _Stage:
    """One stage's operations, in order."""

    def __init__(self, durations: Durations, made: TimelineProgram, stage: int, blocks: int) -> None:
        self.its, self.made, self.stage, self.blocks = durations, made, stage, blocks
        stages = durations.parallelism.pipeline
        self.head = stage == stages - 1
        self.embedding = durations.model.embedding_parameters // min(stages, 2) if stage in (0, stages - 1) else 0
        self.sending = SENDING if durations.parallelism.overlap else COMPUTE
        self.whole = {
            True: tuple(durations.forward(blocks, head=self.head)),
            False: tuple(durations.backward(blocks, head=self.head)),
        }
        self.gathered: list[int] = []
        self.scattered: list[int] = []

    def gather(self) -> None:
        for index in range(self.blocks):
            weights = self.its.gather(1, self.embedding if not index else 0)
            self.gathered.append(self._add(f"gather {index}", self.sending, weights))

    def turn(self, forward: bool, number: int, microbatches: int) -> tuple[int, int]:
        """Add one microbatch: in one piece, except for the first forward and the last backward."""
        words = f"{'forward' if forward else 'backward'} {number}"
        make = self.its.forward if forward else self.its.backward
        if forward and number == 0:
            ran = [
                self._add(
                    f"{words}, block {index}", COMPUTE, make(1, head=self.head and index == self.blocks - 1), (weights,)
                )
                for index, weights in enumerate(self.gathered)
            ]
        elif not forward and number == microbatches - 1:
            ran = []
            for begin in reversed(range(self.blocks)):
                ran.append(
                    self._add(f"{words}, block {begin}", COMPUTE, make(1, head=self.head and begin == self.blocks - 1))
                )
                if self.its.parallelism.overlap:
                    self._scatter(begin, ran[-1:])
        else:
            ran = [self._add(words, COMPUTE, self.whole[forward])]
        return ran[0], ran[-1]

    def finish(self) -> None:
        if not self.its.parallelism.overlap:
            for begin in reversed(range(self.blocks)):
                self._scatter(begin, ())
        self._add("update", COMPUTE, self.its.update(self.blocks, self.embedding), self.scattered[-1:])

    def _scatter(self, index: int, after: Sequence[int]) -> None:
        gradients = self.its.scatter(1, self.embedding if not index else 0)
        self.scattered.append(self._add(f"scatter {index}", self.sending, gradients, after))

    def _add(self, words: str, stream: str, parts: Sequence[Part], after: Sequence[int] = ()) -> int:
        return self.made.add(words, self.stage, stream, parts, after)
