"""What flags of the studies' commands offer, as cxlemu/choices.py: imports nothing."""

# of `cxlemu simulate training`: where the optimizer's state is kept
OFFLOAD_PLACES = ("host", "pool")

# of `cxlemu simulate memory`
PAGES = 128  # of a sample that the nearest memory holds
SEED = 1
TIERS_CONFIGS = ("tiers-rdma", "tiers-clusters", "tiers-scalepool")

# of `cxlemu bench`: what --source means, whether sources are rewritten before each call
SOURCES = {"same": (False,), "rewritten": (True,), "both": (False, True)}
