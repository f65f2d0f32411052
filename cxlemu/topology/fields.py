"""What may stand in a topology file. Every field says its unit; 1 GB/s is 10^9 bytes/s."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from cxlemu.errors import ArgumentError
from cxlemu.topology.document import Document, Key, dotted, shown
from cxlemu.units import parse_bytes

GRANULE_BYTES_MIN, GRANULE_BYTES_MAX = 256, 16 << 20
GRANULE_BYTES = 64 << 10  # of memories that have owners, unless said
PAGE_BYTES = 4096

Routing = Literal["first", "spread"]  # fabric.py says what they mean
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
Nanoseconds = Annotated[int, Field(ge=0, le=10**9)]
GbytesPerS = Annotated[float, Field(gt=0, le=10**6, allow_inf_nan=False)]
Size = Annotated[int, BeforeValidator(parse_bytes), Field(gt=0, le=2**60)]  # bytes; "128GiB" in a file
NumaNode = Annotated[int, Field(ge=0, le=1023)]


class Misplaced(ValueError):
    """A defect that pydantic cannot see by itself."""

    def __init__(self, key: Key, text: str) -> None:
        super().__init__(f"{dotted(key)} {text}")
        self.key = key
        self.text = text


class Model(BaseModel):
    """A mapping of a file with known keys: strict, immutable, and with errors that say what would be right."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _keys_are_known_and_complete(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            raise Misplaced((), f"is {shown(data)} but should hold the keys {listed(cls.model_fields)}")
        for key in data:
            if key not in cls.model_fields:
                raise Misplaced((key,), f"is not a known key; {closest(key, cls.model_fields)}")
        for key, field in cls.model_fields.items():
            if field.is_required() and key not in data:
                raise Misplaced((key,), f"is missing: {field.description}")
        return data

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy the model as pydantic does, but not its cached properties, which the copy works out anew."""
        made = super().model_copy(update=update, deep=deep)
        for name in made.__dict__.keys() - type(self).model_fields.keys():
            del made.__dict__[name]
        return made


M = TypeVar("M", bound=Model)


def validated(kind: type[M], document: Document, data: Mapping[str, Any] | None = None) -> M:
    """Make a model of a document, or of ``data`` in its place."""
    try:
        return kind.model_validate(document.data if data is None else data)
    except ValidationError as error:
        defects = [_defect(details) for details in error.errors()]
    above = {key[:end] for key, _ in defects for end in range(len(key))}  # defects there only follow
    first = [defect for defect in defects if defect[0] not in above]
    key, text = min(first, key=lambda defect: document.place(defect[0]))
    raise document.error(key, text)


def _defect(details: ErrorDetails) -> tuple[Key, str]:
    """A pydantic error as (key, rest of a sentence that begins with the key)."""
    key: Key = _written(details["loc"])
    context = details.get("ctx", {})
    if details["type"] == "union_tag_invalid":
        return (*key, "kind"), f"is {shown(context['tag'])} but should be one of {context['expected_tags']}"
    if details["type"] == "union_tag_not_found":
        return (*key, "kind"), "is missing: leaf_spine, clos, torus, dragonfly or xlink"
    cause = context.get("error")
    if isinstance(cause, Misplaced):
        return (*key, *cause.key), cause.text
    if isinstance(cause, ArgumentError):
        return key, str(cause)
    message = details["msg"]
    should = message[message.find("should") :].replace("tuple", "list").replace(" after validation", "")
    hint = "; write 10 or 0.5" if details["type"] == "float_type" and isinstance(details["input"], str) else ""
    return key, f"is {shown(details['input'])} but {should}{hint}"  # YAML reads 1e300 as text


def _written(loc: Key) -> Key:
    """The key as the file has it: pydantic also names the kind of fabric whose key it is."""
    return loc[:2] + loc[3:] if loc[:1] == ("fabrics",) else loc


class LocalMemory(Model):
    """A host's own DRAM."""

    latency_ns: Nanoseconds = Field(description="idle load latency, in ns")
    read_gbytes_per_s: GbytesPerS = Field(description="read bandwidth of one host, in GB/s")
    write_gbytes_per_s: GbytesPerS = Field(description="write bandwidth of one host, in GB/s")


class Hosts(Model):
    """``count`` equal hosts. Ranks on one host share its cache."""

    count: int = Field(ge=1, le=1024, description="number of hosts")
    ranks_per_host: int = Field(default=1, ge=1, le=1024, description="number of consecutive ranks on each host")
    memory: LocalMemory = Field(description="the hosts' own DRAM: latency_ns, read_ and write_gbytes_per_s")
    dma_writes: Literal["cache", "memory"] = Field(
        default="cache", description="destination of a device's copy to the pool: the host's cache, or memory"
    )


class Cards(Model):
    """``count`` equal cards. Latency is the card's own: from the request at its port to the data there.

    With an ``owner`` they are memories that every host, or every rank, has: one each, which its owner reaches without a
    link, and others over the owner's links.
    """

    owner: Literal["hosts", "ranks"] | None = Field(default=None, description="owners of the memory, one each")
    count: int = Field(default=1, ge=1, le=256, description="number of cards of this kind")
    capacity_bytes: Size = Field(description="size of one card, for example 128GiB")
    latency_ns: Nanoseconds = Field(description="load latency of the card itself, without the fabric, in ns")
    read_gbytes_per_s: GbytesPerS = Field(description="read bandwidth of one card, in GB/s")
    write_gbytes_per_s: GbytesPerS = Field(description="write bandwidth of one card, in GB/s")
    total_gbytes_per_s: GbytesPerS = Field(description="bandwidth of one card for reads and writes together, in GB/s")
    numa_node: NumaNode | None = Field(default=None, description="NUMA node on which a real card appears")

    @model_validator(mode="after")
    def _total_is_possible(self) -> Cards:
        if self.owner is not None and self.count != 1:
            raise Misplaced(("count",), f"is {self.count} but {self.owner} own one each; leave it out")
        reads, writes, total = self.read_gbytes_per_s, self.write_gbytes_per_s, self.total_gbytes_per_s
        if not max(reads, writes) <= total <= reads + writes:
            raise Misplaced(
                ("total_gbytes_per_s",),
                f"is {total:g} but should lie between the larger of read and write, {max(reads, writes):g}, "
                f"and their sum, {reads + writes:g}",
            )
        return self


class Folding(Model):
    """Folding in the switch instead of the ranks, as NVLink SHARP does."""

    share_of_rate: Annotated[float, Field(gt=0, le=1)] = Field(
        description="share of a link's payload rate for folding and handing out"
    )
    latency_ns: Nanoseconds = Field(description="a call's time beside its bytes, launch included, in ns")


class Switch(Model):
    """A switch between hosts and cards."""

    name: Name = Field(description="the switch's name, for the ends of links")
    level: int = Field(default=1, ge=1, le=8, description="1 beside the hosts, 2 behind that, ...")
    port_latency_ns: Nanoseconds = Field(description="latency from port to port, in ns")
    per_host: bool | None = Field(default=None, description="whether every host has its own such switch, for its ranks")
    folds: Folding | None = Field(default=None, description="rate and latency of folding in the switch; absent: none")


class Carrier(Model):
    """Delays and packing of messages on a link: all figures but its bandwidth."""

    latency_ns: Nanoseconds = Field(description="latency one way, in ns")
    message_ns: Nanoseconds | None = Field(default=None, description="additional time for each message, in ns")
    flit_bytes: Annotated[int, Field(ge=1, le=65536)] | None = Field(
        default=None, description="size of a flit on the link, for example 68"
    )
    flit_payload_bytes: Annotated[int, Field(ge=1, le=65536)] | None = Field(
        default=None, description="payload of a flit, for example 64"
    )
    request_bytes: Annotated[int, Field(ge=1, le=65536)] | None = Field(
        default=None, description="size of the request for each flit that is read, in the other direction"
    )
    buffer_bytes: Annotated[Size, Field(le=2**40)] | None = Field(
        default=None,
        description="size of the queue before it; a transfer without room blocks the previous link or card",
    )

    @model_validator(mode="after")
    def _flits_carry_payload(self) -> Carrier:
        flit, payload = self.flit_bytes, self.flit_payload_bytes
        if flit is None and payload is not None:
            raise Misplaced(("flit_bytes",), "is missing: a flit's size and its payload are given together, or neither")
        if flit is not None and payload is None:
            raise Misplaced(("flit_payload_bytes",), f"is missing: how much of a flit's {flit} bytes is payload")
        if self.request_bytes is not None and flit is None:
            raise Misplaced(("flit_bytes",), "is missing: request_bytes is the size of a flit's request")
        if flit is not None and payload is not None and payload > flit:
            raise Misplaced(("flit_payload_bytes",), f"is {payload} but should be {flit} at most, the flit's size")
        return self


class LinkFigures(Carrier):
    """All figures of a link."""

    gbytes_per_s: GbytesPerS = Field(description="bandwidth of each direction, in GB/s")

    @property
    def payload_gbytes_per_s(self) -> float:
        """The bandwidth of payload in each direction, in GB/s, when all flits are full."""
        return self.gbytes_per_s * (self.flit_payload_bytes or 1) / (self.flit_bytes or 1)


class Link(LinkFigures):
    """A link, or one to each host, rank or card where an end is some of them: ``ranks``, ``host0-15``. Full duplex."""

    name: Name = Field(description="the link's name")
    ends: Annotated[tuple[str, ...], Field(strict=False, min_length=2, max_length=2)] = Field(
        description="both ends, for example [hosts, switch0]"
    )


class Costs(Model):
    """Costs of moving bytes, beside the fabric; an absent figure costs nothing.

    Every rank brings copy engines of its own, one for each direction, and its software.
    """

    to_pool_gbytes_per_s: GbytesPerS | None = Field(
        default=None, description="bandwidth of a rank's engine for writes, in GB/s"
    )
    from_pool_gbytes_per_s: GbytesPerS | None = Field(
        default=None, description="bandwidth of a rank's engine for reads, in GB/s"
    )
    fold_from_pool_gbytes_per_s: GbytesPerS | None = Field(
        default=None, description="bandwidth of reads by a folding kernel, in GB/s; absent: the engine reads for it"
    )
    both_gbytes_per_s: GbytesPerS | None = Field(
        default=None, description="bandwidth of both directions of a rank together, in GB/s"
    )
    call_ns: Nanoseconds | None = Field(default=None, description="time before a call's first instruction, in ns")
    graph_call_ns: Nanoseconds | None = Field(
        default=None, description="the same for a call in a captured graph, in ns"
    )
    copy_ns: Nanoseconds | None = Field(default=None, description="time before each copy to or from the pool, in ns")
    flush_line_ns: Nanoseconds | None = Field(default=None, description="time for each line of a FLUSH, in ns")
    invalidate_line_ns: Nanoseconds | None = Field(
        default=None, description="time for each line of an INVALIDATE, in ns"
    )
    fence_ns: Nanoseconds | None = Field(
        default=None, description="time of a FENCE, without the writes that it awaits, in ns"
    )
    doorbell_ring_ns: Nanoseconds | None = Field(
        default=None, description="time to ring a doorbell, without its transfer, in ns"
    )
    doorbell_arrival_ns: Nanoseconds | None = Field(
        default=None,
        description="time until a doorbell is visible, without its transfer, in ns; others may travel meanwhile",
    )
    doorbell_observe_ns: Nanoseconds | None = Field(
        default=None, description="time to notice a doorbell, without the load, in ns"
    )
    doorbell_scan_ns: Nanoseconds | None = Field(
        default=None, description="time for each further doorbell of a group, in ns"
    )
    doorbell_data_ns: Nanoseconds | None = Field(
        default=None,
        description="time from storing a doorbell with data until all peers see it, in ns; absent: as other doorbells",
    )
    local_copy_gbytes_per_s: GbytesPerS | None = Field(default=None, description="bandwidth of local copies, in GB/s")
    reduce_gbytes_per_s: GbytesPerS | None = Field(
        default=None, description="bandwidth of reductions, over all operands, in GB/s"
    )

    @property
    def observed_ns(self) -> int:
        """Time from the ringing of a doorbell until it is seen, without its transfer and the load."""
        return (self.doorbell_arrival_ns or 0) + (self.doorbell_observe_ns or 0)


class Protocol(Model):
    """One way of sending over a space's links, such as NCCL's Simple, LL128 and LL: costs and slices."""

    name: Name = Field(description="the protocol's name")
    costs: Costs = Field(description="costs of its messages, in place of the topology's")
    sends: bool = Field(
        default=False, description="only for grouped sends and receives, which then use no other protocol"
    )
    slice_bytes: Size | None = Field(default=None, description="size of its largest message; absent: the algorithm's")
    share_of_rate: Annotated[float, Field(gt=0, le=1)] = Field(
        default=1.0, description="share of the links' bandwidth for its payload"
    )


def _as_numbers(cards: Any) -> Any:
    """``0-71`` is all from 0 to 71."""
    match = re.fullmatch(r"(0|[1-9][0-9]{0,4})-(0|[1-9][0-9]{0,4})", cards) if isinstance(cards, str) else None
    return list(range(int(match[1]), int(match[2]) + 1)) if match and int(match[1]) <= int(match[2]) else cards


class Space(Model):
    """Memory that regions can lie in. ``cards`` absent means all, for the kinds that lie on cards.

    A ``cxl_pool`` and ``tier2`` lie on cards without owners, ``peer_memory`` (reached over NICs) and ``xlink`` (over
    NVLink or UALink) on memories of hosts or ranks. Where it is coherent, flushes, fences and invalidates take no time.
    """

    name: Name = Field(description="the space's name")
    kind: Literal["cxl_pool", "host_dram", "accelerator", "tier2", "peer_memory", "xlink"] = Field(
        description="kind of memory"
    )
    coherent: bool = Field(description="whether hardware keeps the hosts' caches coherent over it")
    cards: Annotated[tuple[int, ...], Field(strict=False, min_length=1), BeforeValidator(_as_numbers)] | None = Field(
        default=None, description="consecutive card numbers, for example [0, 1] or 0-1"
    )
    capacity_bytes: Size | None = Field(default=None, description="capacity; absent: all of its cards")
    interleave_bytes: Size | None = Field(default=None, description="consecutive bytes on one card, 256 to 16MiB")
    over: Annotated[tuple[Name, ...], Field(strict=False, min_length=1)] | None = Field(
        default=None, description="the switches or fabrics over which others reach owned memory; absent: any"
    )
    coherence_ns: Nanoseconds | None = Field(
        default=None,
        description="additional time for each access by others than the owner: directory and snoops, in ns",
    )
    snoop_filter_lines: Annotated[int, Field(ge=1, le=2**40)] | None = Field(
        default=None, description="lines that each card's snoop filter tracks; absent: all"
    )
    back_invalidate_ns: Nanoseconds | None = Field(
        default=None, description="time to make room there for another line, in ns; in simulate memory only"
    )
    costs: Costs | None = Field(
        default=None, description="costs of its bytes and doorbells, in place of the topology's"
    )
    protocols: Annotated[tuple[Protocol, ...], Field(strict=False, min_length=1, max_length=8)] | None = Field(
        default=None, description="protocols for sends between ranks, which choose the fastest"
    )

    @property
    def on_cards(self) -> bool:
        """Whether its bytes lie on cards: those of the pool, of a second tier, or of hosts or ranks."""
        return self.kind in {"cxl_pool", "tier2"} or self.owned

    @property
    def owned(self) -> bool:
        """Whether it lies on memories of hosts or ranks."""
        return self.kind in {"peer_memory", "xlink"}

    @property
    def granule_bytes(self) -> int:
        """The bytes dealt to one card before the next: ``interleave_bytes``, or 64 KiB where the file has none."""
        return self.interleave_bytes or GRANULE_BYTES

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Space:
        granule = self.interleave_bytes
        if not self.on_cards:
            for key in ("cards", "interleave_bytes"):
                if getattr(self, key) is not None:
                    raise Misplaced((key,), f"does not apply to a space of kind {self.kind}; leave it out")
            if self.capacity_bytes is None:
                raise Misplaced(("capacity_bytes",), f"is missing: the size of a {self.kind} space")
        elif granule is None and not self.owned:
            raise Misplaced(("interleave_bytes",), "is missing: a power of two from 256 to 16MiB")
        elif granule is not None and (granule & (granule - 1) or not GRANULE_BYTES_MIN <= granule <= GRANULE_BYTES_MAX):
            raise Misplaced(("interleave_bytes",), f"is {granule} but should be a power of two from 256 to 16MiB")
        for key in ("over", "protocols"):
            if getattr(self, key) is not None and not self.owned:
                raise Misplaced((key,), f"does not apply to a space of kind {self.kind}; leave it out")
        for key in ("coherence_ns", "snoop_filter_lines", "back_invalidate_ns"):
            if getattr(self, key) is not None and not self.coherent:
                raise Misplaced((key,), "does not apply to a space that is not coherent; leave it out")
        if (self.snoop_filter_lines is None) != (self.back_invalidate_ns is None):
            raise Misplaced(("snoop_filter_lines",), "and back_invalidate_ns belong together: give both or none")
        return self


class Item(Model):
    """A line of the bill of materials: a part that joins hosts, or memory that they share."""

    name: Annotated[str, Field(min_length=1, max_length=80)] = Field(description="name of the part")
    kind: Literal["switch", "adapter", "cable", "card"] = Field(description="switch, adapter, cable or card")
    count: int = Field(ge=1, le=10**6, description="number of such parts")
    price_usd: Annotated[float, Field(ge=0, le=10**8, allow_inf_nan=False)] = Field(
        description="price of one, in US dollars"
    )
    power_watts: Annotated[float, Field(ge=0, le=10**6, allow_inf_nan=False)] = Field(
        description="power of one, in watts"
    )


class Emulation(Model):
    """Resources of this machine for the emulation."""

    card_bytes: Size = Field(description="size of the memory behind each card, for example 32MiB")
    numa_node: NumaNode | None = Field(default=None, description="NUMA node for the cards' memory")

    @model_validator(mode="after")
    def _whole_pages(self) -> Emulation:
        if self.card_bytes % PAGE_BYTES:
            raise Misplaced(("card_bytes",), f"is {self.card_bytes} but should be a multiple of {PAGE_BYTES}")
        return self


def listed(names: Iterable[str]) -> str:
    """List the first 20 of many names: enough to recognize one's own."""
    words = list(names)
    return ", ".join(words[:20]) + (", ..." if len(words) > 20 else "")


def closest(name: object, names: Iterable[str]) -> str:
    """Suggest what a wrong name should be: ``did you mean leaf0?``, else the names to choose from."""
    words = list(names)
    near = difflib.get_close_matches(str(name), words, 1)
    return f"did you mean {near[0]}?" if near else f"write one of {listed(words)}"
