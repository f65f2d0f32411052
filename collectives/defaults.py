"""The defaults of a sweep. Imports nothing, so that --help is there at once."""

AUTO, EVERY = "auto", "every"
DEFAULT_SEED = 1
# Four sizes, among which "auto" takes every variant but naive.
MIN_BYTES, MAX_BYTES, STEP_FACTOR = 32, 1 << 20, 32
# All slots on all cards. More than a second-level cache and less than a last-level one: the writer of a line should
# neither find it in the reader's own cache, from where it comes slowly, nor have to go to memory.
REGION_BYTES = 8 << 20
