"""The choices and defaults of the collectives' commands' flags, as in cxlemu/choices.py: imports nothing."""

PLAN_SUFFIX = ".plan"

# `cxlemu fused`
KINDS = ("all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce")
STYLES = ("fused", "medium", "unfused")
# In which order destinations are served: (s - rank) mod N at step s; (rank + 1 + s) mod N, so that what need not travel
# is computed last; 0 to N - 1. Sources: (rank + s) mod N in the first two, own rows first in all.
ORDERS = ("shifted", "own_last", "natural")
FUSED_SHARE = 0.5  # communication's time where its scale is chosen: half as long as the product

# `cxlemu simulate`
SIMULATED_MIN_BYTES, SIMULATED_MAX_BYTES, SIMULATED_STEP_FACTOR = 1 << 20, 1 << 30, 4
WITH = "Let the job of a file share the fabric, and print how much each of the two slows down."


def is_plan(spec: str) -> bool:
    """Whether a string names a plan file, and not a collective or ``FILE.py:function``."""
    return spec.endswith(PLAN_SUFFIX)
