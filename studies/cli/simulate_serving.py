"""``cxlemu simulate serving``: what a store of keys and values does for a model server."""

import re
from pathlib import Path
from typing import Any

import click

from collectives.choices import WITH
from cxlemu.cli.options import Flags, argument, choice, concept, flag, path, switch, taking
from cxlemu.cli.params import BytesParam, Names, NumberParam
from studies.choices import (
    BATCH_REQUESTS,
    CHUNK_TOKENS,
    PLACES,
    REQUESTS,
    REQUESTS_PER_S,
    ROUTES,
    SERVING_CONFIG,
    WORKLOADS,
)

HOSTS_MAX = 1024


class HostsParam(click.ParamType):  # type: ignore[type-arg]  # generic only in the newest click
    name = "hosts"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        match = re.fullmatch(r"hosts=([0-9]{1,4})-([0-9]{1,4})", str(value))
        first, last = (int(match[1]), int(match[2])) if match else (0, 0)
        if not 1 <= first <= last <= HOSTS_MAX:
            self.fail(f"{str(value)[:40]!r} should be hosts=FIRST-LAST, from 1 to {HOSTS_MAX}.", param, ctx)
        return first, last


class ServingFlags(Flags):
    trace: Path | None = argument(required=False, type=click.Path(path_type=Path))
    config: str = concept("config", default=SERVING_CONFIG, help="Topology of hosts and fabric: a file or a name.")
    places: tuple[str, ...] | None = flag(
        "--place",
        type=Names(PLACES),
        metavar="PLACES",
        help=f"Where the store lies: {', '.join(PLACES)}; a comma list or all.  [default: all that -c has]",
    )
    capacity_bytes: int | None = flag(
        "--capacity", type=BytesParam(), help="Size of the store on all hosts together.  [default: what -c has]"
    )
    warm: bool = switch("--warm", help="Begin with a store that holds all blocks that will be reused.")
    model: str = flag("--model", default="llama3-8b", help="Model: a shipped name or a file.")
    accelerator: str | None = flag(
        "--accelerator", help="Accelerator: a shipped name or a file.  [default: that of -c]"
    )
    tensor: int = flag(
        "--tp", type=click.IntRange(1, 1024), metavar="N", default=1, help="Number of accelerators of an instance."
    )
    expert: int = flag(
        "--ep",
        type=click.IntRange(1, 1024),
        metavar="N",
        default=1,
        help="Number of such groups of --tp accelerators that share an instance's experts, and its requests.",
    )
    inside: str | None = flag(
        "--inside", metavar="CONFIG", help="Topology of the fabric between an instance's accelerators."
    )
    hosts: int | None = flag(
        "--hosts", type=click.IntRange(1, HOSTS_MAX), metavar="N", help="Number of hosts.  [default: that of -c]"
    )
    sweep: tuple[int, int] | None = flag(
        "--sweep",
        type=HostsParam(),
        metavar="hosts=N-N",
        help="Serve on more and more hosts, each with the same load, and find out when the fabric saturates.",
    )
    prefill: int = flag(
        "--prefill",
        type=click.IntRange(0, 1024),
        metavar="N",
        default=0,
        help="Number of instances that only compute prompts; the others then only answer.",
    )
    route: str = choice(
        "--route",
        of=ROUTES,
        default="balance",
        help="Send a request to the instance with the fewest tokens to do; prefix subtracts those it has in memory.",
    )
    chunk: int = flag(
        "--chunk",
        type=click.IntRange(16, 1 << 20),
        metavar="TOKENS",
        default=CHUNK_TOKENS,
        help="Largest number of tokens of an iteration.",
    )
    batch: int = flag(
        "--batch",
        type=click.IntRange(1, 1 << 16),
        metavar="N",
        default=BATCH_REQUESTS,
        help="Largest number of requests that an instance serves at once.",
    )
    requests: int | None = flag(
        "--requests",
        type=click.IntRange(1),
        metavar="N",
        help=f"Number of requests: the first of TRACE, or generated ones.  [default: all, or {REQUESTS}]",
    )
    workload: str = choice(
        "--workload",
        of=WORKLOADS,
        default=WORKLOADS[0],
        help="Generated requests: turns of conversations, or questions about long documents.",
    )
    rate: float | None = flag(
        "--rate",
        type=NumberParam(0, min_open=True),
        metavar="N",
        help=f"Number of generated requests per second.  [default: {REQUESTS_PER_S:g} for each host]",
    )
    seed: int = flag("--seed", type=click.IntRange(0), metavar="N", default=1, help="Seed of the generated requests.")
    written: Path | None = path("--write-trace", metavar="PATH", help="Write the requests there as a trace.")
    crashes: tuple[str, ...] = flag(
        "--crash", multiple=True, metavar="HOST@S", help="Crash a host S seconds after the start, with its memory."
    )
    lost_cards: tuple[str, ...] = flag(
        "--lose-card", multiple=True, metavar="CARD@S", help="Lose a card of the pool S seconds after the start."
    )
    cold_starts: tuple[str, ...] = flag(
        "--cold-start",
        multiple=True,
        metavar="HOST@S",
        help="Let a host begin S seconds after the start, or again after its crash; it reads its weights first.",
    )
    beside: Path | None = path("--with", metavar="FILE", help=WITH)
    intervals: bool = switch("--intervals", help="Also give each answer's range, while figures vary within theirs.")
    verbose: bool = concept("verbose", help="Also show the links and cards that were busiest.")
    json_file: Path | None = concept("json")
    plot_file: Path | None = concept("plot", help="Draw the run over time to a .png, .svg or .pdf.")


@click.command()
@taking(ServingFlags, work="simulate_serving_run:run")
def command() -> None:
    """Simulate serving of a language model, with a store of keys and values that requests reuse.

    TRACE has requests in Mooncake's format: JSON lines with timestamp (ms), input_length, output_length and hash_ids of
    blocks of 512 tokens. Without it, a generator makes conversations from a seed. Each request reuses the prefix that
    its instance's accelerators hold, then what the store has, which is read over the fabric of -c, where hosts queue.

    \b
    Examples:
      cxlemu simulate serving --hosts 4 --write-trace requests.jsonl
      cxlemu simulate serving --place accelerator,pool --plot serving.png
      cxlemu simulate serving my_trace.jsonl --requests 1000 --json serving.json
      cxlemu simulate serving --place pool --crash 0@5 --cold-start 0@10
      cxlemu simulate serving --hosts 4 --prefill 1 --place pool,rdma
      cxlemu simulate serving --workload documents --warm --hosts 8

    Exit codes: 0 served, 2 bad input, 3 nothing was served or reused, an incident came after the end, or the sweep
    ended before the fabric saturated.
    """
