"""Figures that others measured and published, each with where and when. None of them chose a figure of a config here,
unless its row says so."""

from __future__ import annotations

from dataclasses import dataclass

TITAN = "arXiv 2608.21731, as summarized; XConn Titan", "2026-08"
BELUGA = "Beluga, arXiv 2511.20172; XConn XC50256", "2025-11"
CMPI = "cMPI, arXiv 2510.05476, as summarized; another CXL platform", "2025-10"
UCX = "openucx/ucx issue 8851, ib_read_bw over HDR", "2023-02"
SPARKS = "NVIDIA/dgx-spark-playbooks issue 25, nccl-tests, 2 x GB10, 200 Gb/s", "2025-11"
SPARKS_SMALL = "NVIDIA/dgx-spark-playbooks pull request 103, nccl-tests, 2 x GB10, 200 Gb/s", "2026"
A100_HDR = "NVIDIA/nccl-tests issue 150, 2 hosts with one A100 each, HDR", "2023-06"
A100_PAIR = "NVIDIA/nccl-tests issue 100, p2pBandwidthLatencyTest, HGX A100", "2021-12"


@dataclass(frozen=True, slots=True)
class Measurement:
    """A published measurement.

    Attributes:
        figure: What was measured.
        unit: Its unit, or "x" for a ratio.
        low: The lower end of what was measured.
        high: The upper end.
        source: Where it was published, and on which hardware.
        date: When: a year, or a year and a month.
        put_in: Whether our configs have a figure of the same thing, measured by others: then it predicts nothing.
    """

    figure: str
    unit: str
    low: float
    high: float
    source: str
    date: str
    put_in: bool = False


def one(figure: str, unit: str, value: float, where: tuple[str, str], *, put_in: bool = False) -> Measurement:
    """Return a measurement of one value."""
    return Measurement(figure, unit, value, value, *where, put_in)


PORT_READ = one("one x8 port, reads", "GB/s", 21.9, TITAN, put_in=True)
PORT_WRITE = one("one x8 port, writes", "GB/s", 22.0, TITAN, put_in=True)
TWO_PORTS = one("one host, two x8 ports", "GB/s", 47.2, TITAN)
TWO_STREAMS = one("two 4 KiB streams, one port, each", "GB/s", 10.6, TITAN)
KEPT = one("4 KiB reads beside 64 B reads, rate kept", "x", 0.978, TITAN)
SLOWER = one("64 B reads beside 4 KiB reads, time", "x", 6.9, TITAN)
LOAD = Measurement("64 B load through a switch", "us", 0.555, 0.750, *BELUGA, put_in=True)
STORED = one("16 KiB stored past the caches", "us", 2.41, BELUGA)
FLUSHED_READ = one("16 KiB flushed and read", "us", 5.98, BELUGA)
MESSAGE = one("8 bytes and a flag, to another host", "us", 0.79, CMPI)
RDMA_READ = one("RDMA reads, one HDR adapter", "GB/s", 23.0, UCX, put_in=True)
GATHERED = Measurement("all_gather, 16 GiB, 2 ranks, busbw", "GB/s", 18.94, 20.95, *SPARKS)
PAIR = Measurement("two A100 on NVLink, both ways", "GB/s", 424.0, 521.0, *A100_PAIR)
SMALL = {
    64: Measurement("all_reduce of 64 B, 2 ranks", "us", 19.07, 19.36, *A100_HDR),
    8 << 10: Measurement("all_reduce of 8 KiB, 2 ranks", "us", 30.33, 35.15, *SPARKS_SMALL),
    16 << 10: Measurement("all_reduce of 16 KiB, 2 ranks", "us", 30.75, 31.67, *SPARKS_SMALL),
    32 << 10: Measurement("all_reduce of 32 KiB, 2 ranks", "us", 37.44, 39.56, *SPARKS_SMALL),
    64 << 10: Measurement("all_reduce of 64 KiB, 2 ranks", "us", 64.71, 67.93, *SPARKS_SMALL),
}
THREAD_WRITE_GBYTES_PER_S = 7.9  # one thread's, by others on XC50256: what STORED's processor brings
THREAD_READ_GBYTES_PER_S = 6.6
