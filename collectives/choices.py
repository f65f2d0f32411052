"""What flags of the collectives' commands offer and where they begin, as cxlemu/choices.py: imports nothing."""

# of `cxlemu fused`
KINDS = ("all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce")
STYLES = ("fused", "medium", "unfused")
# Of destinations: (s - rank) mod N at step s; (rank + 1 + s) mod N, so that what need not travel is computed last; 0 to
# N - 1. Of sources: (rank + s) mod N in the first two, own rows first in all.
ORDERS = ("shifted", "own_last", "natural")
FUSED_SHARE = 0.5  # of communication, where its time scale is chosen: half as long as the product

# of `cxlemu simulate`
SIMULATED_MIN_BYTES, SIMULATED_MAX_BYTES, SIMULATED_STEP_FACTOR = 1 << 20, 1 << 30, 4
