"""Requests: a trace in Mooncake's public format, and a generator with a seed beside it.

A trace has a JSON object on each line (https://github.com/kvcache-ai/Mooncake, FAST25-release/traces): ``timestamp`` in
ms, ``input_length`` and ``output_length`` in tokens, and ``hash_ids``, one for each block of 512 tokens of the input.
Equal ids stand for equal blocks behind equal prefixes.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cxlemu.errors import ArgumentError
from cxlemu.files import read_file
from cxlemu.units import counted

BLOCK_TOKENS = 512
TRACE_BYTES_MAX = 256 << 20
REQUESTS_MAX = 200_000
TOKENS_MAX = 1 << 22  # of one request, in and out each
ALL_TOKENS_MAX = 1 << 32
HOURS_MAX = 24 * 31
NS_A_MS = 1_000_000


class ServingRequest(NamedTuple):
    arrival_ns: int
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]  # the ids of its input's blocks, of which the last may be part of one

    @property
    def block_count(self) -> int:
        """How many blocks its input and output take."""
        return -(-(self.input_tokens + self.output_tokens) // BLOCK_TOKENS)

    def tokens_of(self, blocks: int) -> int:
        """Count the tokens of the first ``blocks`` blocks of its input."""
        return min(blocks * BLOCK_TOKENS, self.input_tokens)


def load(path: Path, limit: int | None = None) -> list[ServingRequest]:
    """Read a trace, or its first ``limit`` requests; return them in the order of their times."""
    try:
        text = read_file(path, TRACE_BYTES_MAX).decode()
    except OSError as error:
        raise ArgumentError(f"{path}: the trace cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ArgumentError(f"{path}: not a trace, which is text in UTF-8") from None
    requests: list[ServingRequest] = []
    tokens = 0
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        if limit is not None and len(requests) == limit:
            break
        if len(requests) == REQUESTS_MAX:
            raise ArgumentError(f"{path}: more than {REQUESTS_MAX} requests: take the first ones with --requests")
        try:
            request = _request(line)
        except ValueError as error:
            raise ArgumentError(f"{path}:{number}: {error}") from None
        tokens += request.input_tokens + request.output_tokens
        if tokens > ALL_TOKENS_MAX:
            raise ArgumentError(f"{path}:{number}: more than {ALL_TOKENS_MAX} tokens up to here: take --requests")
        requests.append(request)
    return sorted(requests, key=lambda its: its.arrival_ns)


def _request(line: str) -> ServingRequest:
    try:
        ranges = json.loads(line, object_pairs_hook=_once)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"not a JSON object: {error}"[:200]) from None
    if not isinstance(ranges, dict):
        raise ValueError("not a JSON object")
    arrival = ranges.get("timestamp")
    if isinstance(arrival, bool) or not isinstance(arrival, int | float) or not 0 <= arrival <= HOURS_MAX * 3_600_000:
        raise ValueError(f"timestamp is {_shown(arrival)} but should be milliseconds, from 0 to {HOURS_MAX} hours")
    given, wanted = (_count(ranges, key) for key in ("input_length", "output_length"))
    blocks = ranges.get("hash_ids", [])
    most = -(-given // BLOCK_TOKENS)
    if not isinstance(blocks, list) or len(blocks) not in (0, most - 1, most):
        raise ValueError(f"hash_ids should list {most}, one for each {BLOCK_TOKENS} tokens of input_length {given}")
    for block in blocks:
        if isinstance(block, bool) or not isinstance(block, int) or not 0 <= block < 1 << 63:
            raise ValueError(f"hash_ids have {_shown(block)} but should be whole numbers from 0 up")
    if len(set(blocks)) < len(blocks):
        raise ValueError("hash_ids name a block twice: an id names a block and everything before it")
    return ServingRequest(round(arrival * NS_A_MS), given, wanted, tuple(blocks))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for key, count in Counter(key for key, _ in pairs).items():
        if count > 1:
            raise ValueError(f"{key[:40]} is given twice")
    return dict(pairs)


def _count(fields: dict[str, Any], key: str) -> int:
    value = fields.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= TOKENS_MAX:
        raise ValueError(f"{key} is {_shown(value)} but should be tokens, from 1 to {TOKENS_MAX}")
    return value


def _shown(value: object) -> str:
    return repr(value)[:40] if value is not None else "missing"


def dumped(requests: Iterable[ServingRequest]) -> bytes:
    """Return a trace's file."""
    rows = (
        {
            "timestamp": request.arrival_ns // NS_A_MS,
            "input_length": request.input_tokens,
            "output_length": request.output_tokens,
            "hash_ids": list(request.blocks),
        }
        for request in requests
    )
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def generate(count: int, per_s: float, seed: int, workload: str = "chat") -> list[ServingRequest]:
    """Make requests that arrive as a Poisson process, the same for a seed. All other figures are assumed.

    ``chat``: conversations whose turns come back with all that was said before, behind a few shared system prompts, the
    popular ones more often (Zipf); lengths are log-normal. ``documents``: short questions and short answers about one
    of some long documents, each as likely as the others.
    """
    if not 1 <= count <= REQUESTS_MAX or not 0 < per_s <= 1e6:
        raise ArgumentError(
            f"{count} requests at {per_s:g} a second: generate 1 to {REQUESTS_MAX}, at most 1000000 a second"
        )
    random = np.random.default_rng(seed)
    at_ms = np.cumsum(random.exponential(1000 / per_s, count))
    if not at_ms[-1] <= HOURS_MAX * 3_600_000:
        raise ArgumentError(f"{count} requests at {per_s:g} a second take longer than {HOURS_MAX} hours")
    arrivals = (at_ms.astype(np.int64) * NS_A_MS).tolist()
    return (_chat if workload == "chat" else _documents)(arrivals, random)


_PROMPTS, _PROMPT_IDS = 16, 8
_OPENS, _ENDS = 0.3, 0.25  # how often a request opens a conversation, and how often one ends
_LONGEST_BLOCKS = 64
_DOCUMENTS, _DOCUMENT_BLOCKS, _QUESTION_TOKENS, _ANSWER_TOKENS = 48, 32, 128, 32


def _chat(arrivals: Sequence[int], random: np.random.Generator) -> list[ServingRequest]:
    prompts = [[_PROMPT_IDS * which + block for block in range(2 + which % 4)] for which in range(_PROMPTS)]
    next_id = _PROMPT_IDS * _PROMPTS
    going: list[list[int]] = []
    requests = []
    for arrival_ns in arrivals:
        new = not going or random.random() < _OPENS
        if new:
            going.append(list(prompts[min(int(random.zipf(1.6)) - 1, _PROMPTS - 1)]))
        prompt = going[-1 if new else int(random.integers(len(going)))]
        turn, answer = (int(n) for n in np.clip(random.lognormal((6.6, 5.2), (0.8, 0.6)), 16, (16384, 2048)))
        more = -(-turn // BLOCK_TOKENS)
        prompt += range(next_id, next_id + more)
        next_id += more
        requests.append(ServingRequest(arrival_ns, (len(prompt) - more) * BLOCK_TOKENS + turn, answer, tuple(prompt)))
        if turn % BLOCK_TOKENS:  # the next turn begins within this block, which is another one then
            prompt[-1] = next_id
            next_id += 1
        if len(prompt) > _LONGEST_BLOCKS or random.random() < _ENDS:
            going.remove(prompt)
    return requests


def _documents(arrivals: Sequence[int], random: np.random.Generator) -> list[ServingRequest]:
    requests = []
    for number, arrival_ns in enumerate(arrivals):
        first = int(random.integers(_DOCUMENTS)) * _DOCUMENT_BLOCKS
        blocks = (*range(first, first + _DOCUMENT_BLOCKS), _DOCUMENTS * _DOCUMENT_BLOCKS + number)
        tokens = _DOCUMENT_BLOCKS * BLOCK_TOKENS + _QUESTION_TOKENS
        requests.append(ServingRequest(arrival_ns, tokens, _ANSWER_TOKENS, blocks))
    return requests


def multiplied(requests: Sequence[ServingRequest], times: int) -> list[ServingRequest]:
    """Return what ``times`` as many users ask for: everyone's blocks are their own, and copies come in between."""
    if len(requests) * times > REQUESTS_MAX:
        raise ArgumentError(f"{times} x {len(requests)} requests exceed the limit of {REQUESTS_MAX}: take --requests")
    span_ns = max(request.arrival_ns for request in requests) - min(request.arrival_ns for request in requests)
    gap_ns = span_ns // len(requests)
    apart = max((block for request in requests for block in request.blocks), default=0) + 1
    copies = [
        request._replace(
            arrival_ns=request.arrival_ns + copy * gap_ns // times,
            blocks=tuple(copy * apart + block for block in request.blocks),
        )
        for copy in range(times)
        for request in requests
    ]
    return sorted(copies, key=lambda request: request.arrival_ns)


def reusable_tokens(requests: Sequence[ServingRequest]) -> int:
    """Count the input tokens that a request before has had already: what an endless store could give."""
    seen: set[int] = set()
    total = 0
    for request in requests:
        hits = next((arrival for arrival, block in enumerate(request.blocks) if block not in seen), len(request.blocks))
        total += min(request.tokens_of(hits), request.input_tokens - 1)
        seen.update(request.blocks)
    return total


def described(requests: Sequence[ServingRequest]) -> str:
    """Say in a line what a trace asks for."""
    given, wanted = (
        sum(request.input_tokens for request in requests),
        sum(request.output_tokens for request in requests),
    )
    seen = reusable_tokens(requests) / given
    span_s = (requests[-1].arrival_ns - requests[0].arrival_ns) / 1e9
    return (
        f"{counted(len(requests), 'request')} in {span_s:.1f} s, {given / len(requests):,.0f} tokens in and "
        f"{wanted / len(requests):,.0f} out on average, {seen:.0%} of the input seen before"
    )
