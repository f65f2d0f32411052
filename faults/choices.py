"""What flags of the adversary's commands offer, as cxlemu/choices.py: imports nothing."""

# of `cxlemu prove`
PROVED_RANKS = range(2, 5)
PROVED_RANKS_MAX, PROVED_SLOTS_MAX = 1024, 4096
# what a user's algorithm is asked for by default
MATRIX_RANKS = (2, 3, 4, 5, 6, 7, 8, 17)
MATRIX_HOSTS = (1, 2, 3, 4)  # instead, where they share hosts
MATRIX_REDOPS = ("sum", "avg", "max", "min", "prod")
MATRIX_DTYPES = ("f16", "f64", "i32")
MATRIX_ODD_DTYPE = "u8"  # folded with the first operation only, so that blocks have odd numbers of bytes
MATRIX_MOVED_DTYPES = ("u8", "f64")  # where nothing is folded: any number of bytes, and whole elements of many

# of `cxlemu faults sweep`
SWEPT_RANKS_MAX = 16
CAMPAIGN_RANKS_MAX = 64
SWEPT_FAULTS = ("crash", "poison", "lose_card", "link_down")

# of `cxlemu mutate`: the kinds of mistake, which faults/mutate/operators.py makes
MUTATED_RANKS_MAX = 8  # plans are small, but mutants many
MUTATIONS = {
    "delete": "a synchronizing instruction is left out",
    "duplicate": "it is executed twice",
    "earlier": "it is swapped with the instruction before it",
    "later": "it is swapped with the instruction after it",
    "far": "two distant instructions of a stream are swapped (sample of pairs)",
    "value": "a wait accepts an older epoch",
    "without": "a WAIT_ALL does not wait for one of its group",
    "narrow": "a FLUSH or INVALIDATE leaves out its last line, or its first one",
    "line": "a FLUSH or INVALIDATE targets the neighbouring lines",
    "read": "a READ, or a source of a fold, uses the neighbouring line",
    "doorbell": "another doorbell of the same rank is rung or waited for",
    "rank": "the same doorbell of the next rank is waited for",
    "doorbells": "two doorbells of a rank are swapped in every SIGNAL and WAIT",
    "sources": "two sources of a fold are swapped",
    "repeat": "a fold is executed twice",
    "round": "a rank leaves out its part of a round",
}
