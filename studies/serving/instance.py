"""An instance: what it batches in each iteration, and what its memory holds.

Requests wait in the order in which they come. One is admitted when the memory has room for its whole prompt and answer,
so that none is ever put off again. An iteration takes a token of each answer that goes on, and then chunks of prompts
up to its budget of tokens (chunked prefill, arXiv 2403.02310; vLLM's default).
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from studies.serving.blocks import BlockCache
from studies.serving.iterations import Iterations
from studies.serving.requests import ServingRequest

BOTH, PREFILL, DECODE = "both", "prefill", "decode"


@dataclass(eq=False)
class Served:
    number: int
    request: ServingRequest
    first_ns: int | None = None  # when its first token came
    end_ns: int | None = None
    refused: bool = False
    restarts: int = 0
    from_accelerator: int = 0  # tokens of its input that its instance's memory had
    from_store: int = 0
    computed: int = 0
    again: int = 0  # tokens that were computed before it began again
    # on the instance where it is now
    ready: int = 0  # tokens of its input whose keys and values are there
    kept: list[int] = field(default_factory=list)  # blocks in use that others may reuse
    private: int = 0

    def begin(self) -> None:
        """Go back to the beginning, with nothing computed or reused."""
        self.ready, self.kept, self.private = 0, [], 0
        self.again, self.computed = self.again + self.computed, 0
        self.from_accelerator = self.from_store = 0

    @property
    def at_once_ns(self) -> float | None:
        """The time to its first token."""
        return None if self.first_ns is None else self.first_ns - self.request.arrival_ns

    @property
    def token_ns(self) -> float | None:
        """The time from token to token after the first; None for an answer of one."""
        more = self.request.output_tokens - 1
        return (
            None if self.end_ns is None or self.first_ns is None or not more else (self.end_ns - self.first_ns) / more
        )


@dataclass(eq=False)
class Instance:
    """Some accelerators of a host that hold a model together."""

    number: int
    host: int
    ranks: Sequence[int]
    role: str
    iterations: Iterations
    chunk: int  # tokens of an iteration
    most: int  # requests at a time
    alive: bool = True
    busy: bool = False
    busy_ns: int = 0
    iterated: int = 0
    waiting: deque[Served] = field(default_factory=deque)
    here: dict[int, Served] = field(default_factory=dict)  # all its requests, those that wait as well
    prompts: deque[Served] = field(default_factory=deque)  # admitted, with a part of the prompt to compute
    admitted: int = 0
    answering: int = 0
    context: int = 0  # tokens that the answers look back at
    load: int = 0  # tokens, in and out, of the requests here

    def __post_init__(self) -> None:
        self.memory = BlockCache(self.iterations.blocks)
        self._ends: defaultdict[int, list[Served]] = defaultdict(list)  # by iteration, the answers that end with it
        self._taken: list[tuple[Served, int]] = []

    def ranks_of(self, reply: Served) -> Sequence[int]:
        """The ranks that hold a request's keys and values: one of its groups of tensor ranks."""
        tensor = self.iterations.tensor
        first = reply.number * tensor % len(self.ranks)
        return self.ranks[first : first + tensor]

    def fits(self, request: ServingRequest) -> bool:
        """Whether its memory can hold a request at all."""
        return request.block_count <= self.memory.capacity

    def take(self, reply: Served) -> None:
        """Let a request wait here."""
        self.here[reply.number] = reply
        self.load += reply.request.input_tokens + reply.request.output_tokens
        self.waiting.append(reply)

    def admit(self) -> Served | None:
        """Admit the request that waits longest, with what the memory has of its input; None: there is no room."""
        if not self.waiting or self.admitted == self.most:
            return None
        first = self.waiting[0]
        request = first.request
        hits = self.memory.prefix(request.blocks)
        if not self.memory.reserve(request.block_count - hits, request.blocks[:hits]):
            return None
        self.waiting.popleft()
        self.admitted += 1
        first.kept, first.private = list(request.blocks[:hits]), request.block_count - hits
        if self.role != DECODE:
            first.from_accelerator = first.ready = min(request.tokens_of(hits), request.input_tokens - 1)
        return first

    def share(self, reply: Served, blocks: Sequence[int]) -> None:
        """Let others reuse blocks that are there now."""
        new = self.memory.share(blocks)
        reply.kept += new
        reply.private -= len(new)

    def begin(self) -> int | None:
        """Compose an iteration; return what it takes in ns, or None where there is nothing to compute."""
        left = self.chunk - self.answering
        pairs = tokens = ends = 0
        self._taken = []
        for prompt in self.prompts:
            if left <= 0:
                break
            take = min(left, prompt.request.input_tokens - prompt.ready)
            self._taken.append((prompt, take))
            pairs += take * prompt.ready + take * (take + 1) // 2
            ends += prompt.ready + take == prompt.request.input_tokens
            left -= take
            tokens += take
        if not tokens and not self.answering:
            return None
        self.busy = True
        ns = self.iterations.ns(tokens + self.answering, pairs, self.context, ends + self.answering)
        self.busy_ns += ns
        return ns

    def end(self) -> tuple[list[Served], list[Served]]:
        """End an iteration; return the requests whose prompt is through, and those whose answer is."""
        self.busy = False
        self.iterated += 1
        self.context += self.answering
        through = []
        for begun, take in self._taken:
            begun.ready += take
            begun.computed += take
            if begun.ready == begun.request.input_tokens:
                self.prompts.popleft()
                through.append(begun)
        return through, self._ends.pop(self.iterated, [])

    def answer(self, reply: Served) -> None:
        """Go on with an answer whose first token is there."""
        self.answering += 1
        self.context += reply.request.input_tokens + 1
        self._ends[self.iterated + reply.request.output_tokens - 1].append(reply)

    def answered(self, reply: Served) -> None:
        self.answering -= 1
        self.context -= reply.request.input_tokens + reply.request.output_tokens
        self.leave(reply)

    def leave(self, reply: Served) -> None:
        """Let a request go; what others may reuse stays until its room is needed."""
        del self.here[reply.number]
        self.admitted -= 1
        self.load -= reply.request.input_tokens + reply.request.output_tokens
        self.memory.leave(reply.kept)
        self.memory.release(reply.private)
        reply.kept, reply.private = [], 0

    def lose(self) -> list[Served]:
        """Lose the host: return all requests that were here."""
        lost = [self.here[number] for number in sorted(self.here)]
        self.alive = self.busy = False
        for queue in (self.waiting, self.here, self.prompts, self._ends):
            queue.clear()
        self.admitted = self.answering = self.context = self.load = 0
        self.memory = BlockCache(self.iterations.blocks)
        return lost
