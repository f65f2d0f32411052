"""What flags of the studies' commands offer, as cxlemu/choices.py: imports nothing."""

# `cxlemu simulate training`: where the optimizer's state is kept
OFFLOAD_PLACES = ("host", "pool")

# `cxlemu simulate memory`
PAGES = 128  # for how many pages of a sample the nearest memory has room
SEED = 1
STEPFACTOR = 2
TIERS_CONFIGS = ("tiers-rdma", "tiers-clusters", "tiers-scalepool")

# `cxlemu bench`: what --source means, whether sources are rewritten before each call
SOURCES = {"same": (False,), "rewritten": (True,), "both": (False, True)}

# `cxlemu simulate serving`: where the store of keys and values lies; how requests are spread over instances
PLACES = ("accelerator", "host", "pool", "rdma")
ROUTES = ("balance", "prefix")
WORKLOADS = ("chat", "documents")
SERVING_CONFIG = "serving-16xh100"
REQUESTS, REQUESTS_PER_S = 500, 5.0  # of the generator, the latter on each host
CHUNK_TOKENS, BATCH_REQUESTS = 2048, 256  # vLLM's --max-num-batched-tokens and --max-num-seqs
