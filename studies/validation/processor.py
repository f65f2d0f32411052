"""A processor that reads and writes a pool, and the benchmarks that run on it."""

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from cxlemu.topology.described import Described
from cxlemu.topology.fields import GbytesPerS, Name, Nanoseconds


class Processor(Described):
    """What the measurements' processors and benchmarks are, and what nobody says of them."""

    noun: ClassVar[str] = "processor"
    folder: ClassVar[Path] = Path(__file__).parent

    name: Name = Field(description="the processor's name")
    description: str = Field(default="", description="one line for people")
    reads_at_once: int = Field(ge=1, le=1024, description="reads of 4 KiB that a benchmark keeps under way")
    small_reads_at_once: int = Field(ge=1, le=1024, description="reads of 64 B beside them under way")
    other_card_gbytes_per_s: GbytesPerS = Field(description="bandwidth of another maker's card, both ways, in GB/s")
    matmul_ns: Nanoseconds = Field(description="time to start a product with an empty queue, in ns")
    thread_read_gbytes_per_s: GbytesPerS = Field(description="bandwidth of one thread's reads, in GB/s")
    thread_write_gbytes_per_s: GbytesPerS = Field(
        description="bandwidth of one thread's stores past the caches, in GB/s"
    )
    lines_read_first: float = Field(ge=0, le=1, description="share of stored lines that are read first")
    flush_line_ns: Nanoseconds = Field(description="time to flush a line, beside its bytes, in ns")
