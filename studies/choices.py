"""What flags of the studies' commands offer, as cxlemu/choices.py: imports nothing."""

# `cxlemu simulate training`: where the optimizer's state is kept
OFFLOAD_PLACES = ("host", "pool")

# `cxlemu simulate memory`
PAGES = 128  # for how many pages of a sample the nearest memory has room
SEED = 1
TIERS_CONFIGS = ("tiers-rdma", "tiers-clusters", "tiers-scalepool")

# `cxlemu bench`: what --source means, whether sources are rewritten before each call
SOURCES = {"same": (False,), "rewritten": (True,), "both": (False, True)}
