"""Figures that others measured and published, each with where and when. None of them chose a figure of a config here,
unless its row says so."""

from dataclasses import dataclass

TITAN = "arXiv 2608.21731, as summarized; XConn Titan", "2026-08"
BELUGA = "Beluga, arXiv 2511.20172; XConn XC50256", "2025-11"
CZ120 = "Micron, MLC on one CZ120, as tomshardware.com reports", "2023-08"
GB200 = "Azure/AI-benchmarking-guide issue 7, nvbandwidth, GB200", "2025-04"
H800_PAIR = "deepseek-ai/DeepSeek-V3 issue 28, H800, measured one way", "2024-12"
H100_PAIR = "NVIDIA/nccl issue 1264, p2pBandwidthLatencyTest, HGX H100", "2024-04"
A100_RING = "NVIDIA/nccl-tests issue 149, NCCL's author, 8 x A100 on NVSwitch, 8 GiB", "2023-07"
A100_TWO = "NVIDIA/nccl-tests issue 178, 2 x A100, NV12, 12 GiB", "2023-11"
NDR = "NVIDIA/nccl-tests issue 290, NVIDIA's answer, H100, NDR, a NIC in a ring", "2025-03"
HDR_FOUR = "NVIDIA/nccl-tests issue 119, 3 hosts with 8 x A100 and 4 HDR adapters, 128 MiB", "2022-11"
PERFTEST = "linux-rdma/perftest issue 131, ib_read_lat and ib_write_lat, adapter not named", "2022-01"
FLUX_90 = "bytedance/flux issue 90, 8 x H100, 8192 x 28672, PyTorch and FLUX", "2025-04"
SYMMETRIC = "NVIDIA/nccl issue 1940, symmetric kernels, 8 x H200 or H800", "2025-12"
GRAPHS = "NVIDIA/nccl issue 1259, 2 x H100, NVLink SHARP, CUDA graphs", "2024-04"
SHARP = "NVIDIA/nccl issue 1455, NCCL_ALGO=NVLS, H100, 2 to 4 GiB", "2024-09"
SHARP_H200 = "NVIDIA/nccl-tests issue 272, 8 x H200, 4 GiB", "2024-11"
SHARP_H800 = "NVIDIA/nccl issue 1374, 8 x H800, NVLS", "2024-07"
SHARP_B300 = "NVIDIA/nccl issue 2140, 8 x B300, NVLS", "2026-04"
CMPI = "cMPI, arXiv 2510.05476, as summarized; another CXL platform", "2025-10"
UCX = "openucx/ucx issue 8851, ib_read_bw over HDR", "2023-02"
SPARKS = "NVIDIA/dgx-spark-playbooks issue 25, nccl-tests, 2 x GB10, 200 Gb/s", "2025-11"
SPARKS_SMALL = "NVIDIA/dgx-spark-playbooks pull request 103, nccl-tests, 2 x GB10, 200 Gb/s", "2026"
A100_HDR = "NVIDIA/nccl-tests issue 150, 2 hosts with one A100 each, HDR", "2023-06"
A100_PAIR = "NVIDIA/nccl-tests issue 100, p2pBandwidthLatencyTest, HGX A100", "2021-12"
CACHELIB = "github.com/intel/CacheLib/wiki, OCP demo configuration, another maker's card on x8, no switch", "2023-10"
RINGS_ROCE = "NVIDIA/nccl issue 1368, NCCL_ALGO=Ring, 5 hosts with 8 x H100 and four 400 Gb/s adapters, RoCE", "2024-07"
RINGS_RACKS = "NVIDIA/nccl issue 1801, GB200 in three racks joined by InfiniBand, ring, 16 GiB", "2025-08"
DEEPEP = "github.com/deepseek-ai/DeepEP, README, H800 with a CX7 of 400 Gb/s each, normal kernels", "2025-02"
NVL72 = "coreweave/nccl-tests pull request 43, 72 x GB200, NVLS", "2025-02"
B200 = "NVIDIA/nccl issue 1807, 8 x B200, NVLS", "2025-08"
H100_EIGHT = "NVIDIA/nccl issue 1281, nccl-tests, 8 x H100", "2024-05"
H100_SIX = "NVIDIA/cuda-samples issue 392, p2pBandwidthLatencyTest, H100 with six links to each other", "2025-11"
VLLM = "vllm-project/vllm pull request 24111, 6 x H100, custom and symmetric kernels, CUDA graphs", "2025-09"
H20 = "deepseek-ai/DeepEP issue 303, nccl-tests, 8 x H20 on NVLink 4", "2025"
PCIE_GPUS = "NVIDIA/nvbandwidth issue 50, copy engines of A6000, PCIe 4.0 x16", "2025-11"
PCIE_HOST = "NVIDIA/nvbandwidth issue 24, a kernel's copies on H100, PCIe 5.0 x16", "2024-09"
SQUARES = "zzc0721/torch-performance-test-data issue 79, H100, PyTorch 2.7", "2025-10"

# of these, the model's figures were written down before anybody here looked up the measured ones, but for THONKING
HDR_ADAPTER = "Azure/azurehpc-health-checks issue 46, ib_write_bw over HDR, NDv4", "2023-11"
NDR_ADAPTER = "NVIDIA/nccl-tests issue 267, NVIDIA's answer, ConnectX-7, 400 Gb/s", "2025-01"
DGX_PAIR = "NVIDIA/nccl issue 812, NVIDIA's answer, DGX A100 with eight HDR adapters each", "2023-03"
KERNEL_LOADS = "NVIDIA/nvbandwidth issue 42, a kernel's copies of 512 MiB, A100, PCIe 4.0 x16", "2025-07"
BAM = "ZaidQureshi/bam issue 54, measured peak, A100, PCIe 4.0 x16", "2025-02"
LEONARDO = "NVIDIA/nccl-tests issue 331, NCCL, A100 with four links of NVLink 3 to each other", "2025"
ALL_TO_ALL = "NVIDIA/nccl issue 2169, alltoall_perf, 500 MiB, 4 x H100", "2026"
THONKING = "thonking.ai/p/strangely-matrix-multiplications, cuBLAS, random values, A100", "2024"
XLA = "tensorflow/tensorflow, third_party/xla/xla/service/gpu/model/matmul_interpolator_data.h, sm_90", "2025"
PREDICTED_FIRST = HDR_ADAPTER, NDR_ADAPTER, DGX_PAIR, KERNEL_LOADS, BAM, LEONARDO, ALL_TO_ALL, THONKING, XLA


@dataclass(frozen=True, slots=True)
class Measurement:
    figure: str
    unit: str  # its unit, or "x" for a ratio
    low: float  # the lower end of what was measured
    high: float
    source: str  # where it was published, and on which hardware
    date: str  # when: a year, or a year and a month
    # whether our configs have a figure of the same thing, measured by others: then it predicts nothing
    put_in: bool = False


def one(figure: str, unit: str, value: float, where: tuple[str, str], *, put_in: bool = False) -> Measurement:
    return Measurement(figure, unit, value, value, *where, put_in)


PORT_READ = one("one x8 port, reads", "GB/s", 21.9, TITAN)
PORT_WRITE = one("one x8 port, writes", "GB/s", 22.0, TITAN)
TWO_PORTS = one("one host, two x8 ports", "GB/s", 47.2, TITAN)
HOST_READ = one("one host's x16 port, reads by its processor", "GB/s", 46.2, BELUGA)
HOST_WRITE = one("one host's x16 port, writes by its processor", "GB/s", 33.0, BELUGA)
MIXED = one("one card, two reads to a write", "GB/s", 36.0, CZ120)
TWO_STREAMS = one("two 4 KiB streams, one port, each", "GB/s", 10.6, TITAN)
WRITE_STREAMS = one("two 4 KiB streams of writes, one port, each", "GB/s", 11.0, TITAN)
KEPT = one("4 KiB reads beside 64 B reads, rate kept", "x", 0.978, TITAN)
SLOWER = one("64 B reads beside 4 KiB reads, time", "x", 6.9, TITAN)
LOAD = Measurement("64 B load through a switch", "us", 0.555, 0.750, *BELUGA, put_in=True)
OTHER_CARD = {  # by reads and writes in turn
    mix: one(f"another card, {said}", "GB/s", value, CACHELIB)
    for mix, said, value in (
        ((1, 0), "reads", 17.8),
        ((3, 1), "three reads to a write", 23.6),
        ((2, 1), "two reads to a write", 25.1),
        ((1, 1), "a read to a write", 27.2),
    )
}
OTHER_LOAD = one("64 B load of it", "us", 0.25, CACHELIB)
TITAN_LOAD = one("64 B load through another switch", "us", 0.2205, TITAN)
ANSWERED = one("a call and its answer, between two hosts", "us", 2.11, BELUGA)
COPIED = one("64 KiB copied from the pool into a GPU", "us", 11.73, BELUGA)
STORED = one("16 KiB stored past the caches", "us", 2.41, BELUGA)
FLUSHED_WRITE = one("16 KiB stored and flushed", "us", 8.50, BELUGA)
FLUSHED_READ = one("16 KiB flushed and read", "us", 5.98, BELUGA)
MESSAGE = one("8 bytes and a flag, to another host", "us", 0.79, CMPI)
RDMA_READ = one("RDMA reads, one HDR adapter", "GB/s", 23.0, UCX, put_in=True)
GATHERED = Measurement("all_gather, 16 GiB, 2 ranks, busbw", "GB/s", 18.94, 20.95, *SPARKS)
PAIR = Measurement("two A100 on NVLink, both ways", "GB/s", 424.0, 521.0, *A100_PAIR)
NVLINK_5 = one("two GPUs on NVLink 5, one way", "GB/s", 770.0, GB200)
NVLINK_H800 = one("two H800 on NVLink, one way", "GB/s", 160.0, H800_PAIR)
NVLINK_H100 = Measurement("two H100 on NVLink, one way", "GB/s", 371.0, 376.8, *H100_PAIR)
NVLINK_H100_BOTH = one("two H100 on NVLink, both ways", "GB/s", 783.0, H100_PAIR)
REDUCED_BY_EIGHT = one("all_reduce, 8 x A100, busbw", "GB/s", 230.0, A100_RING)
REDUCED_BY_TWO = one("all_reduce, 2 x A100, busbw", "GB/s", 208.0, A100_TWO)
NDR_RING = Measurement("all_gather over NDR, 2 ranks, busbw", "GB/s", 46.0, 48.0, *NDR)
HDR_RINGS = one("all_reduce over four HDR adapters a host, busbw", "GB/s", 96.0, HDR_FOUR, put_in=True)
NDR_RINGS = {  # by hosts and adapters of each
    (5, 4): one("all_reduce over four 400 Gb/s adapters a host, busbw", "GB/s", 190.0, RINGS_ROCE),
    (3, 4): Measurement("all_reduce over four NDR adapters a rack, busbw", "GB/s", 196.72, 196.87, *RINGS_RACKS),
    (3, 8): Measurement("all_reduce over eight NDR adapters a rack, busbw", "GB/s", 393.64, 393.66, *RINGS_RACKS),
}
TOKENS_RDMA = Measurement("tokens to experts on other hosts, an adapter", "GB/s", 43.0, 47.0, *DEEPEP)
TOKENS_NVLINK = Measurement("tokens to experts, 8 x H800", "GB/s", 153.0, 158.0, *DEEPEP)
HDR_WRITE = one("RDMA writes, one HDR adapter", "GB/s", 24.25, HDR_ADAPTER)
NDR_WRITE = Measurement("RDMA writes, one NDR adapter", "GB/s", 48.0, 49.0, *NDR_ADAPTER)
DGX_RINGS = one("all_reduce over eight HDR adapters a host, 2 hosts, busbw", "GB/s", 192.0, DGX_PAIR)
RDMA_LOAD = one("RDMA read of a few bytes", "us", 1.91, PERFTEST)
RDMA_STORE = one("RDMA write of a few bytes, one way", "us", 0.93, PERFTEST)
SYMMETRIC_8 = one("all_reduce of 8 B, 8 x H800", "us", 2.3, SYMMETRIC)
GRAPH_64K = one("all_reduce of 64 KiB, 2 x H100", "us", 6.0, GRAPHS)
IN_SWITCH_H100 = {  # by GPUs
    ranks: Measurement(f"all_reduce in the switch, {ranks} x H100, busbw", "GB/s", low, high, *SHARP)
    for ranks, (low, high) in {
        **dict.fromkeys((2, 3, 4), (365.0, 370.0)),
        5: (420.0, 420.0),
        6: (440.0, 440.0),
        7: (460.0, 460.0),
        8: (480.0, 480.0),
    }.items()
}
IN_SWITCH_H200 = one("all_reduce in the switch, 8 x H200, busbw", "GB/s", 475.0, SHARP_H200)
IN_SWITCH_H800 = one("all_reduce in the switch, 8 x H800, busbw", "GB/s", 215.0, SHARP_H800)
IN_SWITCH_B300 = one("all_reduce in the switch, 8 x B300, busbw", "GB/s", 845.0, SHARP_B300)
IN_SWITCH_B200 = one("all_reduce in the switch, 8 x B200, busbw", "GB/s", 830.0, B200)
IN_SWITCH_72 = {  # by bytes
    8 << 30: Measurement("all_reduce of 8 GiB in the switch, 72 x GB200", "us", 20006.0, 20299.0, *NVL72),
    512 << 20: Measurement("all_reduce of 512 MiB in the switch, 72 x GB200", "us", 1806.7, 1835.9, *NVL72),
}
OF_EIGHT = {
    "all_gather": one("all_gather, 8 x H100, busbw", "GB/s", 350.0, H100_EIGHT),
    "reduce_scatter": one("reduce_scatter, 8 x H100, busbw", "GB/s", 360.0, H100_EIGHT),
}
BY_NCCL = {  # by ranks and bytes
    (8, 8): Measurement("all_reduce of 8 B by NCCL, 8 x H20", "us", 12.49, 12.50, *H20),
    (8, 1024): Measurement("all_reduce of 1 KiB by NCCL, 8 x H20", "us", 15.71, 16.38, *H20),
    (2, 8): Measurement("all_reduce of 8 B by NCCL, 2 x A100", "us", 9.76, 9.90, *LEONARDO),
    **{
        (6, kib << 10): one(f"all_reduce of {kib} KiB by NCCL, 6 x H100", "us", us, VLLM)
        for kib, us in ((512, 23.0), (1024, 25.0), (2048, 43.0), (4096, 53.0))
    },
}
FOUR_LINKS = one("two A100 on four links of NVLink 3, one way", "GB/s", 72.0, LEONARDO)
EXCHANGED = Measurement("all_to_all by NCCL, 4 x H100, busbw", "GB/s", 334.9, 337.99, *ALL_TO_ALL)
SIX_LINKS = one("two H100 on six links of NVLink 4, both ways", "GB/s", 260.89, H100_SIX)
OF_SIX = {  # by KiB: in one step and in two, each rank reading its peers, and folded in the switch
    kib: [
        one(f"all_reduce of {kib} KiB, 6 x H100, {how}", "us", us, VLLM)
        for us, how in zip(each, ("one step", "two steps", "in the switch"), strict=True)
    ]
    for kib, each in {512: (13.0, 15.0, 13.0), 1024: (21.0, 17.0, 16.0), 4096: (70.0, 37.0, 31.0)}.items()
}
PCIE_4 = one("two GPUs on PCIe 4.0 x16, one way", "GB/s", 26.34, PCIE_GPUS)
PCIE_5_WRITE = Measurement("a GPU stores to its host over PCIe 5.0 x16", "GB/s", 52.76, 52.78, *PCIE_HOST)
PCIE_5_READ = Measurement("a GPU loads from its host over PCIe 5.0 x16", "GB/s", 35.03, 35.39, *PCIE_HOST)
PCIE_4_LOADS = (
    one("a GPU loads from its host over PCIe 4.0 x16", "GB/s", 25.13, KERNEL_LOADS),
    one("a GPU loads at most over PCIe 4.0 x16", "GB/s", 25.0, BAM),
)
GEMM = {  # by rows, columns and depth
    (side,) * 3: one(f"GEMM of {side} cubed, H100, bf16", "TFLOP/s", value, SQUARES)
    for side, value in ((1024, 176.62), (2048, 676.59), (4096, 788.72), (8192, 797.51), (10240, 719.72))
}
KERNELS = {  # the product alone, of a compiler's table
    (m, n, k): one(f"kernel of {m} x {n} x {k}, H100, bf16", "TFLOP/s", value, XLA)
    for m, n, k, value in (
        (1024, 1024, 1024, 236.3),
        (2048, 2048, 2048, 632.0),
        (4096, 4096, 4096, 783.3),
        (4096, 1024, 4096, 738.5),
        (4096, 2048, 4096, 758.4),
        (2048, 4096, 4096, 753.6),
        (1024, 4096, 4096, 738.5),
        (512, 4096, 4096, 644.1),
    )
}
GEMM_A100 = Measurement("GEMM of 8192 cubed, A100, bf16", "TFLOP/s", 257.0, 258.0, *THONKING)
PRODUCTS = {  # GEMM and reduce-scatter, by rows: unfused, fused
    rows: [
        one(f"GEMM+RS, m = {rows}, {style}", "ms", ms, FLUX_90)
        for style, ms in zip(("unfused", "fused"), both, strict=True)
    ]
    for rows, both in {
        1024: (0.180, 0.183),
        2048: (0.290, 0.331),
        4096: (0.542, 0.633),
        8192: (1.040, 1.241),
        16384: (2.011, 2.459),
    }.items()
}
SMALL = {
    8: Measurement("all_reduce of 8 B, 2 ranks", "us", 18.96, 19.90, *A100_HDR),
    16: Measurement("all_reduce of 16 B, 2 ranks", "us", 19.10, 20.67, *A100_HDR),
    32: Measurement("all_reduce of 32 B, 2 ranks", "us", 18.98, 19.16, *A100_HDR),
    64: Measurement("all_reduce of 64 B, 2 ranks", "us", 19.07, 19.36, *A100_HDR),
    8 << 10: Measurement("all_reduce of 8 KiB, 2 ranks", "us", 30.33, 35.15, *SPARKS_SMALL),
    16 << 10: Measurement("all_reduce of 16 KiB, 2 ranks", "us", 30.75, 31.67, *SPARKS_SMALL),
    32 << 10: Measurement("all_reduce of 32 KiB, 2 ranks", "us", 37.44, 39.56, *SPARKS_SMALL),
    64 << 10: Measurement("all_reduce of 64 KiB, 2 ranks", "us", 64.71, 67.93, *SPARKS_SMALL),
}
